// Cuts of parameters for tests: set by hand, drawn at random, and expanded element by element.
#pragma once

#include "models/graph/graph.h"
#include "runtime/plan/mesh/mesh.h"
#include "tests/support/random_program.h"

// Writes the cut into the parameter and its value: what a rank holds, and the axes that cut it.
void cut_param(fsdp_graph *graph, int param, const fsdp_cut *cut, const fsdp_mesh *mesh);

// A cut of 1 to 4 blocks. cut.dim is 0, and nothing cuts it yet.
fsdp_cut random_blocks(random_source *random);
// Lets some of `axes` cut groups and some of them items.
void random_cut_axes(random_source *random, const fsdp_mesh *mesh, fsdp_axis_set axes, fsdp_cut *cut);

// What random_cut_graph draws: modules and shapes follow from `shapes` alone, and from `cuts` which of
// `cut_axes` cut which parameter. All lie flat over `flat_axes`.
typedef struct random_graph_config {
  random_source shapes, cuts;
  const fsdp_mesh *mesh;
  int params;
  fsdp_axis_set cut_axes, flat_axes;
} random_graph_config;

// A graph that computes nothing: parameters of 1 to 4 dimensions in a few modules. The caller owns it.
fsdp_graph *random_cut_graph(random_graph_config config);

// The place of a rank among those that differ only in `axes`, by definition.
int place_by_counting(const fsdp_mesh *mesh, fsdp_axis_set axes, int rank);

// What `rank` holds of the cut dimension, one index of the whole dimension for each of its own, -1 for
// padding. Returns how many there are; the caller frees *indices.
int64_t expand_cut(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, int64_t **indices);

// What `rank` holds of a parameter: for each element of its piece, flattened, the index in the flattened
// whole parameter, or -1. Returns how many there are; the caller frees *indices.
int64_t expand_param(const fsdp_param *param, const fsdp_mesh *mesh, int rank, int64_t **indices);
