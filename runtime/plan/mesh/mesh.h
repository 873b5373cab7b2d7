// The mesh: the ranks as a grid with named axes, the groups that collectives run over, and what depends on
// the rank.
//
//   data=2, fsdp=3         fsdp 0   fsdp 1   fsdp 2
//               data 0   | rank 0 | rank 1 | rank 2 |      row-major, the last axis fastest
//               data 1   | rank 3 | rank 4 | rank 5 |
//
// The ranks that differ only in a set of axes form a group: over {fsdp} ranks 0 1 2 and 3 4 5, over {data}
// ranks 0 3, 1 4 and 2 5. Axes of size 1 are in no set, so that equal groups have equal sets.
#pragma once

#include "models/graph/placement.h"

#include <stdbool.h>
#include <stdint.h>

// The axes that every mesh has, with size 1 unless given.
#define FSDP_AXIS_DATA    "data"    // replicas
#define FSDP_AXIS_FSDP    "fsdp"    // shards of units
#define FSDP_AXIS_TENSOR  "tensor"  // letters of weights
#define FSDP_AXIS_CONTEXT "context" // the sequence
#define FSDP_AXIS_EXPERT  "expert"

#define FSDP_AXIS_NAME_BYTES 16
#define FSDP_AXIS_OWN_MAX    3 // axes that a user may name beside these
#define FSDP_MESH_RANKS_MAX  (1 << 20)
#define FSDP_MESH_TEXT_BYTES (FSDP_MESH_AXES_MAX * (FSDP_AXIS_NAME_BYTES + 12))

typedef struct fsdp_mesh_axis {
  char name[FSDP_AXIS_NAME_BYTES];
  int size;
} fsdp_mesh_axis;

typedef struct fsdp_mesh {
  fsdp_mesh_axis axes[FSDP_MESH_AXES_MAX];
  int count;
} fsdp_mesh;

// The mesh data=`data`, fsdp=`fsdp`; the other axes have size 1.
fsdp_mesh fsdp_mesh_of(int data, int fsdp);

// Appends an axis. False if the mesh has an axis of this name, has no room for it beside those that every
// mesh has, or the name or size is invalid.
bool fsdp_mesh_add(fsdp_mesh *mesh, const char *name, int size);
// Adds the axes that every mesh has and this one lacks: data and fsdp before the others.
void fsdp_mesh_complete(fsdp_mesh *mesh);
// Sets the size of an axis, which the mesh must have.
void fsdp_mesh_resize(fsdp_mesh *mesh, const char *name, int size);

// Index of an axis, or -1.
int fsdp_mesh_find(const fsdp_mesh *mesh, const char *name);
// Size of an axis; 1 if the mesh lacks it.
int fsdp_mesh_size(const fsdp_mesh *mesh, const char *name);
// The product of all sizes.
int fsdp_mesh_ranks(const fsdp_mesh *mesh);

// Where a rank lies on each axis.
void fsdp_mesh_coordinates(const fsdp_mesh *mesh, int rank, int coordinates[FSDP_MESH_AXES_MAX]);
// The rank at these coordinates.
int fsdp_mesh_rank(const fsdp_mesh *mesh, const int coordinates[FSDP_MESH_AXES_MAX]);

// The axes named in `names` (separated by commas), or all, without those of size 1.
fsdp_axis_set fsdp_mesh_axes(const fsdp_mesh *mesh, const char *names);
fsdp_axis_set fsdp_mesh_all_axes(const fsdp_mesh *mesh);

// The group of a rank: its ranks, this rank's place among them (row-major in the axes of the set), and which
// of the equal groups it is.
typedef struct fsdp_mesh_group {
  int size, rank, color;
} fsdp_mesh_group;

// The number of ranks in every group over `axes`; the group of one rank.
int fsdp_mesh_group_size(const fsdp_mesh *mesh, fsdp_axis_set axes);
fsdp_mesh_group fsdp_mesh_group_of(const fsdp_mesh *mesh, fsdp_axis_set axes, int rank);
// The rank at `place` of the group of `rank`.
int fsdp_mesh_group_member(const fsdp_mesh *mesh, fsdp_axis_set axes, int rank, int place);

// The axes whose groups span nodes of `ranks_per_node` neighbouring ranks.
fsdp_axis_set fsdp_mesh_axes_across(const fsdp_mesh *mesh, int ranks_per_node);

// Lets `axes` cut a dimension, inside those that cut it already; the axis with the lowest index is outermost.
void fsdp_dim_axes_cut(fsdp_dim_axes *dim, fsdp_axis_set axes);
// Which part of the dimension a rank holds, counted along it, and of how many.
int fsdp_dim_axes_part(const fsdp_dim_axes *dim, const fsdp_mesh *mesh, int rank, int *parts);

// "data=2,fsdp=4", with `separator` between; axes of size 1 except data and fsdp are omitted. Returns `out`.
const char *fsdp_mesh_print(const fsdp_mesh *mesh, const char *separator, char out[FSDP_MESH_TEXT_BYTES]);
// "fsdp" or "data+fsdp"; "-" for none. Returns `out`.
const char *fsdp_mesh_print_axes(const fsdp_mesh *mesh, fsdp_axis_set axes, char out[FSDP_MESH_TEXT_BYTES]);

// ---- Numbers that depend on the rank

// base + (place in the group over `axes`) * step.
fsdp_affine fsdp_affine_of_place(const fsdp_mesh *mesh, fsdp_axis_set axes, int64_t base, int64_t step);
int64_t fsdp_affine_at(const fsdp_affine *affine, const fsdp_mesh *mesh, int rank);
// The axes that it depends on.
fsdp_axis_set fsdp_affine_axes(const fsdp_affine *affine, const fsdp_mesh *mesh);
// The least and the greatest value over all ranks.
void fsdp_affine_bounds(const fsdp_affine *affine, const fsdp_mesh *mesh, int64_t *low, int64_t *high);
