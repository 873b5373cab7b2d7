#include "runtime/plan/mesh/cut.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

fsdp_axis_set fsdp_cut_axes(const fsdp_cut *cut) {
  FSDP_CHECK(!(cut->group_axes & cut->item_axes), "an axis cuts both groups and items");
  FSDP_CHECK(!(cut->outer_axes & (cut->group_axes | cut->item_axes)), "an axis cuts two dimensions");
  return cut->group_axes | cut->item_axes | cut->outer_axes;
}

int64_t fsdp_cut_block_size(const fsdp_cut_block *block) {
  return block->groups * block->items * block->width;
}

// What every rank holds of a block, padding included.
static fsdp_cut_block local_block(const fsdp_cut *cut, int block, int64_t group_ranks, int64_t item_ranks) {
  const fsdp_cut_block *whole = &cut->blocks[block];
  return (fsdp_cut_block){.groups = (whole->groups + group_ranks - 1) / group_ranks,
                          .items = (whole->items + item_ranks - 1) / item_ranks,
                          .width = whole->width};
}

int64_t fsdp_cut_size(const fsdp_cut *cut) {
  int64_t size = 0;
  for (int b = 0; b < cut->block_count; b++) size += fsdp_cut_block_size(&cut->blocks[b]);
  return size;
}

int64_t fsdp_cut_local_size(const fsdp_cut *cut, const fsdp_mesh *mesh) {
  int groups = fsdp_mesh_group_size(mesh, cut->group_axes),
      items = fsdp_mesh_group_size(mesh, cut->item_axes);
  int64_t size = 0;
  for (int b = 0; b < cut->block_count; b++) {
    fsdp_cut_block local = local_block(cut, b, groups, items);
    size += fsdp_cut_block_size(&local);
  }
  return size;
}

int64_t fsdp_cut_local_shape(const fsdp_cut *cut, const fsdp_mesh *mesh, int dims, const int64_t *shape,
                             int64_t *local) {
  int64_t numel = 1;
  FSDP_CHECK(cut->block_count == 0 || (cut->dim < dims && fsdp_cut_size(cut) == shape[cut->dim]),
             "blocks of %lld elements in dimension %d", (long long)fsdp_cut_size(cut), cut->dim);
  FSDP_CHECK(!fsdp_cut_is_outer(cut) || !cut->block_count || cut->dim > 0, "dimension 0 is cut twice");
  for (int d = 0; d < dims; d++) {
    local[d] = cut->block_count > 0 && d == cut->dim ? fsdp_cut_local_size(cut, mesh) : shape[d];
    if (d == 0) local[d] = fsdp_cut_outer_of(cut, mesh, 0, local[d]).held;
    numel *= local[d];
  }
  return numel;
}

// How many of `count` are left for the rank at `place`, which holds up to `local` of them.
static int64_t real_of(int64_t count, int64_t local, int place) {
  return fsdp_max_i64(0, fsdp_min_i64(local, count - local * place));
}

fsdp_cut_outer fsdp_cut_outer_of(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, int64_t indices) {
  const fsdp_mesh_group group = fsdp_mesh_group_of(mesh, cut->outer_axes, rank);
  const int64_t held = fsdp_cut_outer_places(cut, mesh, indices), real = real_of(indices, held, group.rank);
  if (!cut->part_count) return (fsdp_cut_outer){group.rank * held, held, real};
  return (fsdp_cut_outer){group.rank * held + cut->part_first, cut->part_count,
                          fsdp_max_i64(0, fsdp_min_i64(real - cut->part_first, cut->part_count))};
}

bool fsdp_cut_is_outer(const fsdp_cut *cut) {
  return cut->outer_axes || cut->part_count;
}

int64_t fsdp_cut_outer_places(const fsdp_cut *cut, const fsdp_mesh *mesh, int64_t indices) {
  const int64_t ranks = fsdp_mesh_group_size(mesh, cut->outer_axes);
  return (indices + ranks - 1) / ranks;
}

int64_t fsdp_cut_part_indices(const fsdp_cut *cut, const fsdp_mesh *mesh, int64_t indices) {
  int64_t sum = 0;
  for (int i = 0; i < fsdp_mesh_group_size(mesh, cut->outer_axes); i++) {
    const int rank = fsdp_mesh_group_member(mesh, cut->outer_axes, 0, i);
    sum += fsdp_cut_outer_of(cut, mesh, rank, indices).real;
  }
  return sum;
}

fsdp_cut_run fsdp_cut_run_at(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, int64_t local) {
  fsdp_mesh_group groups = fsdp_mesh_group_of(mesh, cut->group_axes, rank);
  fsdp_mesh_group items = fsdp_mesh_group_of(mesh, cut->item_axes, rank);
  int64_t begin = 0; // of the block in the whole dimension
  for (int b = 0; b < cut->block_count; b++) {
    const fsdp_cut_block *whole = &cut->blocks[b];
    fsdp_cut_block own = local_block(cut, b, groups.size, items.size);
    int64_t size = fsdp_cut_block_size(&own);
    if (local >= size) {
      local -= size;
      begin += fsdp_cut_block_size(whole);
      continue;
    }
    int64_t real_groups = real_of(whole->groups, own.groups, groups.rank);
    int64_t real_items = real_of(whole->items, own.items, items.rank);
    int64_t row = own.items * own.width, group = local / row, within = local % row;
    if (group >= real_groups) return (fsdp_cut_run){-1, size - local};
    if (within >= real_items * own.width) return (fsdp_cut_run){-1, row - within};
    int64_t first = (groups.rank * own.groups + group) * whole->items + items.rank * own.items;
    bool neighbours = own.items == whole->items; // one group follows the other
    return (fsdp_cut_run){.index = begin + first * own.width + within,
                          .count = neighbours ? real_groups * row - local : real_items * own.width - within};
  }
  FSDP_CHECK(false, "an index %lld behind a rank's part of a dimension", (long long)local);
}
