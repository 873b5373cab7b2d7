// How a dimension or a parameter lies over the axes of the mesh, and numbers that depend on where a rank is.
// Axes are indices into the mesh (runtime/plan/mesh/mesh.h), which knows their names and sizes.
#pragma once

#include <stdint.h>

#define FSDP_MAX_DIMS       4
#define FSDP_MESH_AXES_MAX  9 // five that every mesh has, three more, and one of replicas (factored.h)
#define FSDP_CUT_MAX_BLOCKS 4

// Bit a: axis a of the mesh.
typedef unsigned fsdp_axis_set;

// The axes that cut one dimension, the outermost first.
typedef struct fsdp_dim_axes {
  signed char count, axes[FSDP_MESH_AXES_MAX];
} fsdp_dim_axes;

// A number that depends on the rank: base + sum over axes of coordinate * stride.
typedef struct fsdp_affine {
  int64_t base;
  int64_t stride[FSDP_MESH_AXES_MAX];
} fsdp_affine;

// A part of a parameter's dimension: `groups` of `items` of `width` elements each, row-major.
typedef struct fsdp_cut_block {
  int64_t groups, items, width;
} fsdp_cut_block;

// How tensor parallelism cuts one dimension of a parameter: on whole items, each block by itself.
//
//   q_proj, 3 key/value heads of 2 query heads each, over 2 ranks: groups 3, items 2, width the head's
//   rank 0   | group 0: items 0 1 | group 1: items 0 1 |
//   rank 1   | group 2: items 0 1 | (padding)          |
//
// Of each block a rank holds ceil(groups / ranks over group_axes) groups, of each of these
// ceil(items / ranks over item_axes) items: those that follow the ones of the ranks before it (row-major in
// the axes). What lies beyond the real groups or items is padding, and zero. The rank's blocks lie side by
// side, as the whole ones do.
typedef struct fsdp_cut {
  int dim;
  int block_count; // 0: no dimension is cut in blocks
  fsdp_cut_block blocks[FSDP_CUT_MAX_BLOCKS];
  fsdp_axis_set group_axes, item_axes;
  // Cut dimension 0 besides, of which a rank holds ceil(indices / ranks) from a multiple of these on: the
  // experts of a stack.
  fsdp_axis_set outer_axes;
  // Of the indices of dimension 0 that a rank has, padding included, part_count from part_first on: a block
  // of experts. part_count 0: all.
  int64_t part_first, part_count;
} fsdp_cut;
