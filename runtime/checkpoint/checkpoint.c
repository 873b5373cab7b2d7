#include "runtime/checkpoint/checkpoint.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdio.h>
#include <string.h>

// ---- From a plan

static void take_units(fsdp_checkpoint *c, const fsdp_plan *plan) {
  const fsdp_units *units = plan->units;
  c->unit_count = units->count;
  c->units = fsdp_alloc_zeroed((size_t)units->count, sizeof *c->units);
  c->params = fsdp_alloc_zeroed((size_t)units->param_count + 1, sizeof *c->params);
  for (int u = 0; u < units->count; u++) {
    const fsdp_unit *unit = &units->units[u];
    memcpy(c->units[u].path, unit->path, sizeof unit->path);
    c->units[u].shard_axes = unit->shard_axes;
    c->units[u].replica_axes = unit->replica_axes;
    for (int i = 0; i < unit->param_count; i++) {
      const fsdp_unit_param *slot = &units->params[unit->first_param + i];
      const fsdp_param *param = &plan->graph->params[slot->param];
      fsdp_checkpoint_param *p = &c->params[c->param_count++];
      memcpy(p->name, param->name, sizeof param->name);
      memcpy(p->shape, param->shape, sizeof p->shape);
      p->dims = param->dims;
      p->numel = param->numel;
      p->unit = u;
    }
  }
}

fsdp_checkpoint *fsdp_checkpoint_create(const fsdp_plan *plan, const char *model_name) {
  fsdp_checkpoint *c = fsdp_alloc_zeroed(1, sizeof *c);
  c->model = plan->config.model;
  c->mesh = plan->program->mesh;
  snprintf(c->optimizer, sizeof c->optimizer, "%s", plan->optimizer->name);
  c->slot_count = plan->optimizer->slot_count;
  for (int i = 0; i < c->slot_count; i++) {
    snprintf(c->slots[i].name, sizeof c->slots[i].name, "%s", plan->optimizer->slots[i].name);
    c->slots[i].dtype = fsdp_plan_slot_dtype(plan, i);
  }
  snprintf(c->model_name, sizeof c->model_name, "%s", model_name);
  snprintf(c->strategy, sizeof c->strategy, "%s", fsdp_strategy_name(plan->config.strategy));
  take_units(c, plan);
  FSDP_CHECK(fsdp_checkpoint_lay_out(c), "a unit of a plan is too large");
  for (int u = 0; u < c->unit_count; u++)
    FSDP_CHECK(c->units[u].padded_numel == plan->units->units[u].padded_numel, "unit '%s' lies differently",
               c->units[u].path);
  for (int p = 0; p < c->param_count; p++)
    FSDP_CHECK(c->params[p].offset == plan->units->params[p].offset, "%s lies elsewhere", c->params[p].name);
  c->file_count = fsdp_mesh_ranks(&c->mesh);
  c->files = fsdp_alloc_zeroed((size_t)c->file_count, sizeof *c->files);
  c->options = json_object();
  return c;
}

void fsdp_checkpoint_destroy(fsdp_checkpoint *c) {
  if (!c) return;
  json_decref(c->options);
  free(c->carried);
  free(c->files);
  free(c->params);
  free(c->units);
  free(c);
}

// ---- Where elements lie

// Elements of a checkpoint, at most; bounds what a damaged manifest can declare.
#define NUMEL_MAX (INT64_C(1) << 56)

// The first element of slice `slice` of a shard of `shard` elements; the last one has the remainder.
static int64_t slice_begin(int64_t shard, int replicas, int slice) {
  return slice == replicas ? shard : fsdp_slice_elems(shard, replicas) * slice;
}

bool fsdp_checkpoint_lay_out(fsdp_checkpoint *c) {
  int64_t left = NUMEL_MAX; // for all units together
  for (int u = 0, p = 0; u < c->unit_count; u++) {
    int64_t offset = 0;
    for (; p < c->param_count && c->params[p].unit == u; p++) {
      c->params[p].offset = offset;
      if (c->params[p].numel > left) return false;
      left -= c->params[p].numel;
      offset = fsdp_round_up(offset + c->params[p].numel, FSDP_UNIT_ALIGN_ELEMS);
    }
    int64_t shards = fsdp_mesh_group_size(&c->mesh, c->units[u].shard_axes);
    c->units[u].padded_numel = fsdp_round_up(offset, FSDP_UNIT_ALIGN_ELEMS * shards);
  }
  return true;
}

void fsdp_checkpoint_piece(const fsdp_checkpoint *c, int rank, int unit, int64_t *first, int64_t *numel) {
  const fsdp_checkpoint_unit *u = &c->units[unit];
  fsdp_mesh_group shards = fsdp_mesh_group_of(&c->mesh, u->shard_axes, rank);
  fsdp_mesh_group replicas = fsdp_mesh_group_of(&c->mesh, u->replica_axes, rank);
  int64_t shard = u->padded_numel / shards.size, begin = slice_begin(shard, replicas.size, replicas.rank);
  *first = shards.rank * shard + begin;
  *numel = slice_begin(shard, replicas.size, replicas.rank + 1) - begin;
}

int fsdp_checkpoint_holder(const fsdp_checkpoint *c, int unit, int64_t element) {
  const fsdp_checkpoint_unit *u = &c->units[unit];
  int replicas = fsdp_mesh_group_size(&c->mesh, u->replica_axes);
  int64_t shard = u->padded_numel / fsdp_mesh_group_size(&c->mesh, u->shard_axes), within = element % shard;
  int64_t equal = fsdp_slice_elems(shard, replicas);
  int slice = equal > 0 ? (int)fsdp_min_i64(replicas - 1, within / equal) : replicas - 1;
  int rank = fsdp_mesh_group_member(&c->mesh, u->shard_axes, 0, (int)(element / shard));
  return fsdp_mesh_group_member(&c->mesh, u->replica_axes, rank, slice);
}

int fsdp_checkpoint_boxes(const fsdp_checkpoint *c, int param, int rank, fsdp_box boxes[FSDP_BOXES_MAX]) {
  const fsdp_checkpoint_param *p = &c->params[param];
  int64_t first, numel;
  fsdp_checkpoint_piece(c, rank, p->unit, &first, &numel);
  int64_t begin = fsdp_max_i64(first, p->offset), end = fsdp_min_i64(first + numel, p->offset + p->numel);
  if (begin >= end) return 0;
  return fsdp_boxes_cut(p->dims, p->shape, begin - p->offset, end - begin, begin - first, boxes);
}

int64_t fsdp_checkpoint_slot_bytes(const fsdp_checkpoint *c, int rank, int slot) {
  int64_t total = 0, first, numel;
  for (int u = 0; u < c->unit_count; u++) {
    fsdp_checkpoint_piece(c, rank, u, &first, &numel);
    total += numel;
  }
  return total * fsdp_dtype_bytes(c->slots[slot].dtype);
}

int fsdp_checkpoint_find_slot(const fsdp_checkpoint *c, const char *name) {
  for (int i = 0; i < c->slot_count; i++) {
    if (strcmp(c->slots[i].name, name) == 0) return i;
  }
  return -1;
}

int64_t fsdp_checkpoint_numel(const fsdp_checkpoint *c) {
  int64_t total = 0;
  for (int p = 0; p < c->param_count; p++) total += c->params[p].numel;
  return total;
}

int fsdp_checkpoint_find(const fsdp_checkpoint *c, const char *name) {
  for (int p = 0; p < c->param_count; p++) {
    if (strcmp(c->params[p].name, name) == 0) return p;
  }
  return -1;
}
