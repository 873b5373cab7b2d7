// What an op does on a mesh, its strategy: the axes that shard each of its letters. How a value lies there,
// its placement (models/graph/placement.h): its axes, and which part a rank has.
#pragma once

#include "models/graph/graph.h"
#include "runtime/plan/mesh/mesh.h"

// By letter, 'a' to 'z'.
typedef struct fsdp_op_strategy {
  fsdp_axis_set of[26];
} fsdp_op_strategy;

static inline fsdp_axis_set fsdp_strategy_axes(const fsdp_op_strategy *strategy, char letter) {
  return strategy->of[letter - 'a'];
}

// All axes that a placement names. An axis that appears twice is a broken invariant.
fsdp_axis_set fsdp_placement_axes(const fsdp_placement *placement);

// The axes that shard the tokens of the batch; none in a graph that reads no tokens.
fsdp_axis_set fsdp_placement_token_axes(const fsdp_graph *graph);

// Lets `axes` cut a dimension, inside those that cut it already; the axis with the lowest index is outermost.
void fsdp_dim_axes_cut(fsdp_dim_axes *dim, fsdp_axis_set axes);
// The same of a placement, in which none of them may stand yet.
void fsdp_placement_cut(fsdp_placement *placement, int dim, fsdp_axis_set axes);

// Which part of dimension `dim` a rank holds, counted along the dimension, and of how many.
int fsdp_placement_part(const fsdp_placement *placement, const fsdp_mesh *mesh, int dim, int rank,
                        int *parts);
