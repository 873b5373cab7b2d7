// Placements: how a value or a parameter lies over the axes of the mesh.
//
//   dim[0] = {0, 1}     dimension 0 is cut over axis 0, and each of its parts over axis 1
//   dim[1] = {}         dimension 1 is whole on every rank
//   partial             axes over which every rank holds a summand; the value is their sum
//   flat                axes over which the flat storage of what `dim` leaves is cut (a parameter's shards)
//
// An axis appears at most once. Axes are indices into the mesh (runtime/plan/layout/mesh.h), which knows
// their names and sizes.
#pragma once

#define FSDP_MAX_DIMS      4
#define FSDP_MESH_AXES_MAX 8

// Bit a: axis a of the mesh.
typedef unsigned fsdp_axis_set;

// The axes that cut one dimension, the outermost first.
typedef struct fsdp_dim_axes {
  signed char count, axes[FSDP_MESH_AXES_MAX];
} fsdp_dim_axes;

typedef struct fsdp_placement {
  fsdp_dim_axes dim[FSDP_MAX_DIMS];
  fsdp_axis_set partial, flat;
} fsdp_placement;
