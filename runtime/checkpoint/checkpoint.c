#include "runtime/checkpoint/checkpoint.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdio.h>
#include <string.h>

const char *fsdp_checkpoint_part_name(int part) {
  static const char *const names[] = {"master", "moment1", "moment2"};
  return names[part];
}

// ---- From a plan

static void take_units(fsdp_checkpoint *c, const fsdp_plan *plan) {
  const fsdp_units *units = plan->units;
  c->unit_count = units->count;
  c->units = fsdp_alloc_zeroed((size_t)units->count, sizeof *c->units);
  c->params = fsdp_alloc_zeroed((size_t)units->param_count + 1, sizeof *c->params);
  for (int u = 0; u < units->count; u++) {
    const fsdp_unit *unit = &units->units[u];
    memcpy(c->units[u].path, unit->path, sizeof unit->path);
    c->units[u].padded_numel = unit->padded_numel;
    for (int i = 0; i < unit->param_count; i++) {
      const fsdp_unit_param *slot = &units->params[unit->first_param + i];
      const fsdp_param *param = &plan->graph->params[slot->param];
      fsdp_checkpoint_param *p = &c->params[c->param_count++];
      memcpy(p->name, param->name, sizeof param->name);
      memcpy(p->shape, param->shape, sizeof p->shape);
      p->dims = param->dims;
      p->numel = param->numel;
      p->unit = u;
      p->offset = slot->offset;
    }
  }
}

fsdp_checkpoint *fsdp_checkpoint_create(const fsdp_plan *plan, const char *model_name) {
  fsdp_checkpoint *c = fsdp_alloc_zeroed(1, sizeof *c);
  c->model = plan->config.model;
  c->mesh = plan->program->mesh;
  c->dtype[FSDP_CHECKPOINT_MASTER] = plan->config.master_dtype;
  c->dtype[FSDP_CHECKPOINT_MOMENT1] = c->dtype[FSDP_CHECKPOINT_MOMENT2] = plan->config.moment_dtype;
  snprintf(c->model_name, sizeof c->model_name, "%s", model_name);
  snprintf(c->strategy, sizeof c->strategy, "%s", fsdp_strategy_name(plan->config.strategy));
  take_units(c, plan);
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

// The first element of slice `slice` of a shard of `shard` elements; slices are whole aligned groups.
static int64_t slice_begin(int64_t shard, int replicas, int slice) {
  int64_t groups = shard / FSDP_UNIT_ALIGN_ELEMS;
  // groups * slice would overflow for no shard that memory holds, but a manifest may say anything.
  return (groups / replicas * slice + groups % replicas * slice / replicas) * FSDP_UNIT_ALIGN_ELEMS;
}

void fsdp_checkpoint_piece(const fsdp_checkpoint *c, int rank, int unit, int64_t *first, int64_t *elems) {
  int shards = fsdp_mesh_size(&c->mesh, FSDP_AXIS_FSDP), replicas = fsdp_mesh_size(&c->mesh, FSDP_AXIS_DATA);
  int64_t shard = c->units[unit].padded_numel / shards;
  int slice = fsdp_mesh_coordinate(&c->mesh, FSDP_AXIS_DATA, rank);
  int64_t begin = slice_begin(shard, replicas, slice);
  *first = fsdp_mesh_coordinate(&c->mesh, FSDP_AXIS_FSDP, rank) * shard + begin;
  *elems = slice_begin(shard, replicas, slice + 1) - begin;
}

int fsdp_checkpoint_holder(const fsdp_checkpoint *c, int unit, int64_t element) {
  int shards = fsdp_mesh_size(&c->mesh, FSDP_AXIS_FSDP), replicas = fsdp_mesh_size(&c->mesh, FSDP_AXIS_DATA);
  int64_t shard = c->units[unit].padded_numel / shards, within = element % shard;
  int slice = (int)fsdp_min_i64(replicas - 1, within / FSDP_UNIT_ALIGN_ELEMS /
                                                  fsdp_max_i64(1, shard / FSDP_UNIT_ALIGN_ELEMS / replicas));
  while (slice > 0 && slice_begin(shard, replicas, slice) > within) slice--;
  while (slice_begin(shard, replicas, slice + 1) <= within) slice++;
  return slice * shards + (int)(element / shard);
}

int64_t fsdp_checkpoint_part_bytes(const fsdp_checkpoint *c, int rank, int part) {
  int64_t total = 0, first, elems;
  for (int u = 0; u < c->unit_count; u++) {
    fsdp_checkpoint_piece(c, rank, u, &first, &elems);
    total += elems;
  }
  return total * fsdp_dtype_bytes(c->dtype[part]);
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
