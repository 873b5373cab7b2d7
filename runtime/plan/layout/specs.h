// Specs: the axes of the mesh that each dimension of a model's weights and module outputs lies over.
#pragma once

#include "models/graph/graph.h"
#include "runtime/plan/layout/mesh.h"

#include <stdio.h>

// Dimensions of every module's output: (batch, sequence, channels).
#define FSDP_OUTPUT_DIMS 3

#define FSDP_SPEC_TEXT_BYTES (FSDP_MESH_AXES_MAX * (FSDP_AXIS_NAME_BYTES + 2) + FSDP_MAX_DIMS * 8)

// The axes that cut each dimension, also those of size 1.
typedef struct fsdp_spec {
  int dims;
  fsdp_dim_axes dim[FSDP_MAX_DIMS];
} fsdp_spec;

// Of a whole model.
typedef struct fsdp_specs {
  fsdp_spec input;    // (batch, sequence) of tokens and targets
  fsdp_spec *params;  // by parameter of the graph
  fsdp_spec *modules; // of their outputs, by module; dims 0: it has none (a ModuleList)
} fsdp_specs;

// Without rules: weights on fsdp (and context), the batch on data and fsdp. Never NULL.
fsdp_specs *fsdp_specs_default(const fsdp_graph *graph, const fsdp_mesh *mesh);
void fsdp_specs_destroy(fsdp_specs *specs); // NULL is allowed

// Writes the placements into a graph with the shapes of one rank: parameters lie flat over the axes of their
// specs, and the shapes of the batch's inputs become those of the global batch.
void fsdp_specs_write(const fsdp_specs *specs, fsdp_graph *graph, const fsdp_mesh *mesh);

// The specs as a file of rules that gives the same specs (sharding.h). Names alike but for their integers,
// with equal specs, become one line.
void fsdp_specs_print(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh, FILE *out);

// Every module but a list makes one tensor.
bool fsdp_module_has_output(const fsdp_graph *graph, int module);

// The axes of a spec with more than one rank.
fsdp_axis_set fsdp_spec_axes(const fsdp_spec *spec, const fsdp_mesh *mesh);
// "[[data, fsdp], null]". Returns `out`.
const char *fsdp_spec_print(const fsdp_spec *spec, const fsdp_mesh *mesh, char out[FSDP_SPEC_TEXT_BYTES]);
