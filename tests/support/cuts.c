#include "tests/support/cuts.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

// ---- By definition

int place_by_counting(const fsdp_mesh *mesh, fsdp_axis_set axes, int rank) {
  int place = 0, before = 1; // ranks of the axes behind
  for (int a = mesh->count - 1; a >= 0; a--) {
    int size = mesh->axes[a].size, coordinate = rank % size;
    rank /= size;
    if (!(axes & 1u << a)) continue;
    place += coordinate * before;
    before *= size;
  }
  return place;
}

static int64_t ranks_over(const fsdp_mesh *mesh, fsdp_axis_set axes) {
  int64_t ranks = 1;
  for (int a = 0; a < mesh->count; a++)
    if (axes & 1u << a) ranks *= mesh->axes[a].size;
  return ranks;
}

// Deals groups and items out as cards: so many to the first rank, so many to the next.
int64_t expand_cut(const fsdp_cut *cut, const fsdp_mesh *mesh, int rank, int64_t **indices) {
  int64_t group_ranks = ranks_over(mesh, cut->group_axes), item_ranks = ranks_over(mesh, cut->item_axes);
  int64_t count = 0, capacity = 0, begin = 0;
  *indices = NULL;
  for (int b = 0; b < cut->block_count; b++) {
    const fsdp_cut_block *block = &cut->blocks[b];
    int64_t groups = 0, items = 0; // of a rank
    while (groups * group_ranks < block->groups) groups++;
    while (items * item_ranks < block->items) items++;
    for (int64_t g = 0; g < groups * group_ranks; g++)
      for (int64_t i = 0; i < items * item_ranks; i++) {
        bool mine = g / groups == place_by_counting(mesh, cut->group_axes, rank) &&
                    i / items == place_by_counting(mesh, cut->item_axes, rank);
        for (int64_t w = 0; mine && w < block->width; w++) {
          if (count == capacity) {
            capacity = 2 * capacity + 16;
            *indices = fsdp_realloc(*indices, (size_t)capacity * sizeof **indices);
          }
          bool real = g < block->groups && i < block->items;
          (*indices)[count++] = real ? begin + (g * block->items + i) * block->width + w : -1;
        }
      }
    begin += block->groups * block->items * block->width;
  }
  return count;
}

int64_t expand_param(const fsdp_param *param, const fsdp_mesh *mesh, int rank, int64_t **indices) {
  const fsdp_cut *cut = &param->cut;
  int64_t *held = NULL, shape[FSDP_MAX_DIMS], numel = 1, first = 0;
  memcpy(shape, param->shape, sizeof shape);
  if (cut->outer_axes) { // as many indices to each rank, the last ones fewer
    const int64_t ranks = ranks_over(mesh, cut->outer_axes);
    FSDP_CHECK(!cut->block_count || cut->dim > 0, "a dimension that is cut twice");
    shape[0] = (param->shape[0] + ranks - 1) / ranks;
    first = shape[0] * place_by_counting(mesh, cut->outer_axes, rank);
  }
  if (cut->part_count) { // of the rank's places some
    shape[0] = cut->part_count;
    first += cut->part_first;
  }
  if (cut->block_count) shape[cut->dim] = expand_cut(cut, mesh, rank, &held);
  for (int d = 0; d < param->dims; d++) numel *= shape[d];
  *indices = fsdp_alloc((size_t)numel * sizeof **indices + 1);
  int64_t at[FSDP_MAX_DIMS] = {0};
  for (int64_t e = 0; e < numel; e++) {
    int64_t index = 0;
    for (int d = 0; d < param->dims; d++) {
      int64_t whole = held && d == cut->dim ? held[at[d]] : at[d] + (d == 0 ? first : 0);
      if (whole >= param->shape[d]) whole = -1;
      index = index < 0 || whole < 0 ? -1 : index * param->shape[d] + whole;
    }
    (*indices)[e] = index;
    for (int d = param->dims - 1; d >= 0 && ++at[d] == shape[d]; d--) at[d] = 0;
  }
  free(held);
  return numel;
}

// ---- Making

void cut_param(fsdp_graph *graph, int param, const fsdp_cut *cut, const fsdp_mesh *mesh) {
  fsdp_param *p = &graph->params[param];
  fsdp_value *value = &graph->values[p->value];
  int64_t *indices;
  p->cut = *cut;
  value->local[cut->dim] = expand_cut(cut, mesh, 0, &indices);
  free(indices);
  value->local_numel = 1;
  for (int d = 0; d < value->dims; d++) value->local_numel *= value->local[d];
}

fsdp_cut random_blocks(random_source *random) {
  fsdp_cut cut = {.block_count = random_int(random, 1, FSDP_CUT_MAX_BLOCKS)};
  for (int b = 0; b < cut.block_count; b++)
    cut.blocks[b] = (fsdp_cut_block){.groups = random_int(random, 1, 5),
                                     .items = random_int(random, 1, 4),
                                     .width = random_int(random, 1, 3)};
  return cut;
}

void random_cut_axes(random_source *random, const fsdp_mesh *mesh, fsdp_axis_set axes, fsdp_cut *cut) {
  for (int a = 0; a < mesh->count; a++) {
    if (!(axes & 1u << a) || mesh->axes[a].size == 1) continue;
    int use = random_int(random, 0, 2);
    if (use == 1) cut->group_axes |= 1u << a;
    if (use == 2) cut->item_axes |= 1u << a;
  }
}

fsdp_graph *random_cut_graph(random_graph_config config) {
  random_source *shapes = &config.shapes, *cuts = &config.cuts;
  fsdp_graph *graph = fsdp_graph_create(1, 1);
  int module = fsdp_graph_module(graph, -1, "", "Root", "");
  graph->block_class = "Part";
  for (int p = 0; p < config.params; p++) {
    char name[24];
    if (p == 0 || random_int(shapes, 0, 2) == 0) {
      snprintf(name, sizeof name, "part%d", p);
      module = fsdp_graph_module(graph, 0, name, "Part", "");
    }
    fsdp_cut cut = random_blocks(shapes);
    fsdp_param spec = {.dims = random_int(shapes, 1, FSDP_MAX_DIMS)};
    for (int d = 0; d < spec.dims; d++) spec.shape[d] = random_int(shapes, 1, 5);
    cut.dim = random_int(shapes, 0, spec.dims - 1);
    spec.shape[cut.dim] = 0;
    for (int b = 0; b < cut.block_count; b++)
      spec.shape[cut.dim] += cut.blocks[b].groups * cut.blocks[b].items * cut.blocks[b].width;
    snprintf(spec.name, sizeof spec.name, "weight%d", p);
    int param = fsdp_graph_param(graph, module, &spec);
    graph->values[graph->params[param].value].flat = config.flat_axes & fsdp_mesh_all_axes(config.mesh);
    if (random_int(cuts, 0, 3) == 0) continue; // whole
    random_cut_axes(cuts, config.mesh, config.cut_axes, &cut);
    cut_param(graph, param, &cut, config.mesh);
  }
  return graph;
}
