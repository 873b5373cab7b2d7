// What a rank holds of a dimension that tensor parallelism cuts (fsdp_cut, models/graph/placement.h).
//
//   3 groups of 2 items of width 1, then 5 of 1; over 2 ranks        (-: padding)
//   whole     a b  c d  e f | u v w x y         11 elements
//   rank 0    a b  c d      | u v w              7
//   rank 1    e f  - -      | x y -              7: every rank has as many
//
// A run is a range that is contiguous both in the whole dimension and on the rank, or padding there.
#pragma once

#include "runtime/plan/mesh/mesh.h"

// Elements from one on to the end of their run.
typedef struct fsdp_cut_run {
  int64_t index; // of the first one in the whole dimension; -1: padding
  int64_t count;
} fsdp_cut_run;

// The axes that cut.
fsdp_axis_set fsdp_cut_axes(const fsdp_cut *cut);

// Indices of dimension 0 that a rank has if outer_axes cut it, or of their part: `held` places from `first`
// on, of which `real` are no padding; all `indices` if neither does.
typedef struct fsdp_cut_outer {
  int64_t first, held, real;
} fsdp_cut_outer;
fsdp_cut_outer fsdp_cut_outer_of(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, int64_t indices);

// Whether a rank has some of the indices of dimension 0.
bool fsdp_cut_is_outer(const fsdp_cut *cut);

// Places of dimension 0 that a rank has of all parts, and the indices that all ranks have of this one.
int64_t fsdp_cut_outer_places(const fsdp_cut *cut, const fsdp_mesh *mesh, int64_t indices);
int64_t fsdp_cut_part_indices(const fsdp_cut *cut, const fsdp_mesh *mesh, int64_t indices);

// Elements of a block; of the whole dimension that blocks cut; of a rank's, padding included. 0 if there are
// none.
int64_t fsdp_cut_block_size(const fsdp_cut_block *block);
int64_t fsdp_cut_size(const fsdp_cut *cut);
int64_t fsdp_cut_local_size(const fsdp_cut *cut, const fsdp_mesh *mesh);

// The shape that a rank holds of a parameter of `shape`: `shape` itself if nothing is cut. Returns its
// elements.
int64_t fsdp_cut_local_shape(const fsdp_cut *cut, const fsdp_mesh *mesh, int dims, const int64_t *shape,
                             int64_t *local);

// The run that starts at index `local` (0 to the local size - 1) of a rank's part of the dimension.
fsdp_cut_run fsdp_cut_run_at(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, int64_t local);
