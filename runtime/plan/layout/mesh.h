// The mesh: the ranks as a grid with named axes, and the groups that collectives run over.
//
// Ranks are laid out row-major over the axes in order, the last one fastest: with data=R, fsdp=F, rank r has
// fsdp coordinate r % F and data coordinate r / F, so a shard group is F neighbouring ranks (one node's).
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/status.h"

typedef enum fsdp_axis { FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_COUNT } fsdp_axis;

typedef struct fsdp_mesh {
  int size[FSDP_AXIS_COUNT]; // R replicas, F ranks in a shard group
} fsdp_mesh;

// The communicators of a step; each is used by one stream only, so that they can overlap without deadlock.
typedef enum fsdp_group {
  FSDP_GROUP_GATHER,  // all-gathers, over the shard group
  FSDP_GROUP_REDUCE,  // reduce-scatters, over the shard group
  FSDP_GROUP_REPLICA, // all-reduces of shards, over the ranks that hold the same shard
  FSDP_GROUP_WORLD,   // scalars, over all ranks
  FSDP_GROUP_COUNT
} fsdp_group;

static inline int fsdp_mesh_ranks(const fsdp_mesh *mesh) {
  return mesh->size[FSDP_AXIS_DATA] * mesh->size[FSDP_AXIS_FSDP];
}
static inline int fsdp_mesh_coordinate(const fsdp_mesh *mesh, fsdp_axis axis, int rank) {
  int f = mesh->size[FSDP_AXIS_FSDP];
  return axis == FSDP_AXIS_FSDP ? rank % f : rank / f;
}
// Ranks of a group, this rank's place in it, and which of the equal groups it is (for splitting a
// communicator).
static inline int fsdp_mesh_group_size(const fsdp_mesh *mesh, fsdp_group group) {
  return group == FSDP_GROUP_WORLD     ? fsdp_mesh_ranks(mesh)
         : group == FSDP_GROUP_REPLICA ? mesh->size[FSDP_AXIS_DATA]
                                       : mesh->size[FSDP_AXIS_FSDP];
}
static inline int fsdp_mesh_group_rank(const fsdp_mesh *mesh, fsdp_group group, int rank) {
  return group == FSDP_GROUP_WORLD     ? rank
         : group == FSDP_GROUP_REPLICA ? fsdp_mesh_coordinate(mesh, FSDP_AXIS_DATA, rank)
                                       : fsdp_mesh_coordinate(mesh, FSDP_AXIS_FSDP, rank);
}
static inline int fsdp_mesh_group_color(const fsdp_mesh *mesh, fsdp_group group, int rank) {
  return group == FSDP_GROUP_WORLD     ? 0
         : group == FSDP_GROUP_REPLICA ? fsdp_mesh_coordinate(mesh, FSDP_AXIS_FSDP, rank)
                                       : fsdp_mesh_coordinate(mesh, FSDP_AXIS_DATA, rank);
}
