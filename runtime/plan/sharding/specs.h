// Specs: the axes of the mesh that each dimension of a model's weights and module outputs lies over.
//
// They say how things are stored. An axis of the input's spec is ZeRO's for weights: one that names it is cut
// over it flat, whichever dimension it names. Any other axis cuts the dimension that names it.
#pragma once

#include "models/graph/graph.h"
#include "runtime/plan/mesh/mesh.h"

#include <stdio.h>

#define FSDP_SPEC_TEXT_BYTES  (FSDP_MESH_AXES_MAX * (FSDP_AXIS_NAME_BYTES + 2) + FSDP_MAX_DIMS * 8)
#define FSDP_SPEC_PLACE_BYTES 160

// The source of a spec; of two, the higher one holds.
typedef enum fsdp_spec_source {
  FSDP_SPEC_DEFAULT,    // no line: a weight's may be propagated
  FSDP_SPEC_PROPAGATED, // propagation from other specs
  FSDP_SPEC_PRESET,     // a preset
  FSDP_SPEC_GIVEN       // a rule of the user, or strategies of operators
} fsdp_spec_source;

// What a plan makes of a user's rule for an output, which the partition writes.
typedef enum fsdp_rule_outcome {
  FSDP_RULE_FOLLOWED,
  FSDP_RULE_NO_TENSOR, // the output is no tensor of its own, and the rule cuts it
  FSDP_RULE_OTHERWISE  // what makes the output, maybe beside others, does not store it so
} fsdp_rule_outcome;

// The axes that cut each dimension, also those of size 1.
typedef struct fsdp_spec {
  int dims;
  fsdp_spec_source source;
  fsdp_rule_outcome outcome;
  fsdp_dim_axes dim[FSDP_MAX_DIMS];
  // What a preset asked of an output, for which the partition writes into `dim` how it came to lie.
  fsdp_dim_axes asked[FSDP_MAX_DIMS];
  char place[FSDP_SPEC_PLACE_BYTES]; // of the source, for messages: "llama.yaml:3"; "": a default
} fsdp_spec;

// Of a whole model.
typedef struct fsdp_specs {
  fsdp_spec input;                               // (batch, sequence) of tokens and targets
  fsdp_spec *params;                             // by parameter of the graph
  fsdp_spec (*outputs)[FSDP_MODULE_MAX_OUTPUTS]; // by module; dims 0: it has none there, as a ModuleList
} fsdp_specs;

// Without rules: weights on fsdp (and context and expert), the batch on data and fsdp (and expert), the
// sequence on context. Never NULL. A stack of experts is cut over expert (decisions.h).
fsdp_specs *fsdp_specs_default(const fsdp_graph *graph, const fsdp_mesh *mesh);
void fsdp_specs_destroy(fsdp_specs *specs); // NULL is allowed

// Gives every output the default: a tensor with three dimensions lies as the input does in its first two;
// others are whole.
void fsdp_specs_outputs_as_input(fsdp_specs *specs, const fsdp_graph *graph);

// The rule of a user for a module's output, NULL: none; that for the residual stream where a norm of a sum
// takes it, which is the one for the layer whose output is added.
const fsdp_spec *fsdp_specs_rule(const fsdp_specs *specs, int module);
const fsdp_spec *fsdp_specs_residual_rule(const fsdp_specs *specs, const fsdp_graph *graph,
                                          const fsdp_node *sum);
// The axes that cut the sequence of a spec, which may be NULL, and of any output.
fsdp_axis_set fsdp_spec_sequence(const fsdp_spec *spec, const fsdp_mesh *mesh);
fsdp_axis_set fsdp_specs_sequence(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh);

// By module, the node of the forward that makes its output, or -1: the last one of the module or below it,
// else the one that uses its parameters.
void fsdp_specs_find_makers(const fsdp_graph *graph, int *maker);

// The specs as a file of rules that gives the same specs (sharding.h). Names alike but for their integers,
// with equal specs, become one line. Behind a parameter's line stands its note, if it has one: `notes` by
// parameter; NULL: there are none.
void fsdp_specs_print(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                      const char *const *notes, FILE *out);

// The axes of a spec, and of one dimension, with more than one rank.
fsdp_axis_set fsdp_spec_axes(const fsdp_spec *spec, const fsdp_mesh *mesh);
fsdp_axis_set fsdp_dim_axis_set(const fsdp_dim_axes *dim, const fsdp_mesh *mesh);
// Appends an axis to a dimension, unless the mesh lacks it or it has one rank.
void fsdp_dim_axes_add(fsdp_dim_axes *dim, const fsdp_mesh *mesh, const char *axis);
// Whether the same axes with more than one rank cut two dimensions, in one order.
bool fsdp_dim_axes_equal(const fsdp_dim_axes *a, const fsdp_dim_axes *b, const fsdp_mesh *mesh);
// "[[data, fsdp], null]". Returns `out`.
const char *fsdp_spec_print(const fsdp_spec *spec, const fsdp_mesh *mesh, char out[FSDP_SPEC_TEXT_BYTES]);
