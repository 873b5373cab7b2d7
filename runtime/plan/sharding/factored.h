// A mesh of which one axis is factored in two.
//
// Where the axis that cuts attention's heads (tensor) has more ranks than there are key/value heads, it
// becomes two neighbouring axes: one that cuts key/value heads, and inside it one of replicas, which hold the
// same key/value heads and cut the query heads of each. The ranks stay where they are.
//
//   tensor=8, 2 key/value heads     tensor=2, tensor_replica=4
#pragma once

#include "runtime/plan/sharding/specs.h"

#define FSDP_AXIS_REPLICA "_replica"

typedef struct fsdp_factored_mesh {
  fsdp_mesh mesh;
  int axis; // that of key/value heads, before that of the replicas; -1: nothing is factored
} fsdp_factored_mesh;

// The mesh that the graph's attention needs with these specs. The replicas are the greatest divisor of the
// axis's size that is no more than ranks per key/value head; with one query head for each there are none.
fsdp_factored_mesh fsdp_factored_mesh_of(const fsdp_specs *specs, const fsdp_graph *graph,
                                         const fsdp_mesh *mesh);

// The mesh before an axis of `mesh` was factored, as messages name it: what has halves has its size again.
fsdp_mesh fsdp_factored_whole(const fsdp_mesh *mesh);

// The axes of the factored mesh, with more than one rank, that axes of the mesh before it was factored
// became, and those that a dimension of a spec names.
fsdp_axis_set fsdp_factored_of(const fsdp_factored_mesh *factored, fsdp_axis_set axes);
fsdp_axis_set fsdp_factored_axes(const fsdp_factored_mesh *factored, const fsdp_dim_axes *dim);

// The axes, of the mesh before it was factored, that `axes` of the factored mesh belong to: both halves of
// the factored one are it.
fsdp_axis_set fsdp_factored_source(const fsdp_factored_mesh *factored, fsdp_axis_set axes);
