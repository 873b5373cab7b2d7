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
    FSDP_CHECK(unit->trainable, "unit '%s' is frozen: a checkpoint has every slot of every unit", unit->path);
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
      p->cut = param->cut;
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

const char *fsdp_checkpoint_file_path(const fsdp_checkpoint *c, const char *folder, int rank,
                                      char path[FSDP_CHECKPOINT_FILE_BYTES]) {
  const int first = rank / FSDP_CHECKPOINT_FOLDER_FILES * FSDP_CHECKPOINT_FOLDER_FILES;
  if (c->files)
    snprintf(path, FSDP_CHECKPOINT_FILE_BYTES, "%.4200s/%s", folder, c->files[rank].name);
  else if (c->file_count <= FSDP_CHECKPOINT_FOLDER_FILES)
    snprintf(path, FSDP_CHECKPOINT_FILE_BYTES, "%.4200s/" FSDP_CHECKPOINT_RANK_FILE, folder, rank);
  else
    snprintf(path, FSDP_CHECKPOINT_FILE_BYTES,
             "%.4200s/" FSDP_CHECKPOINT_RANK_FOLDER "/" FSDP_CHECKPOINT_RANK_FILE, folder, first, rank);
  return path;
}

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
      fsdp_checkpoint_param *param = &c->params[p];
      // Of a part a whole tensor's: it bounds what is computed.
      if (param->numel > left) return false;
      left -= param->numel;
      param->offset = offset;
      param->local_numel =
          fsdp_cut_local_shape(&param->cut, &c->mesh, param->dims, param->shape, param->local);
      offset = fsdp_round_up(offset + param->local_numel, FSDP_UNIT_ALIGN_ELEMS);
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

int fsdp_checkpoint_holder(const fsdp_checkpoint *c, int unit, int rank, int64_t element) {
  const fsdp_checkpoint_unit *u = &c->units[unit];
  int replicas = fsdp_mesh_group_size(&c->mesh, u->replica_axes);
  int64_t shard = u->padded_numel / fsdp_mesh_group_size(&c->mesh, u->shard_axes), within = element % shard;
  int64_t equal = fsdp_slice_elems(shard, replicas);
  int slice = equal > 0 ? (int)fsdp_min_i64(replicas - 1, within / equal) : replicas - 1;
  rank = fsdp_mesh_group_member(&c->mesh, u->shard_axes, rank, (int)(element / shard));
  return fsdp_mesh_group_member(&c->mesh, u->replica_axes, rank, slice);
}

static fsdp_piece piece_of(const fsdp_checkpoint *c, const fsdp_checkpoint_param *p, int rank) {
  return (fsdp_piece){
      .param = rank, .dims = p->dims, .shape = p->shape, .cut = &p->cut, .mesh = &c->mesh, .rank = rank};
}

void fsdp_checkpoint_boxes(const fsdp_checkpoint *c, int param, int rank, fsdp_box_list *list) {
  const fsdp_checkpoint_param *p = &c->params[param];
  const fsdp_piece piece = piece_of(c, p, rank);
  fsdp_piece_boxes(&piece, 0, p->local_numel, p->offset, list);
}

int fsdp_checkpoint_element(const fsdp_checkpoint *c, int unit, int rank, int64_t element, int64_t *index) {
  fsdp_box_list list = {0};
  int found = -1;
  for (int p = 0; p < c->param_count && found < 0; p++) {
    const fsdp_checkpoint_param *param = &c->params[p];
    const int64_t at = element - param->offset;
    if (param->unit != unit || at < 0 || at >= param->local_numel) continue;
    const fsdp_piece piece = piece_of(c, param, rank);
    fsdp_piece_boxes(&piece, at, 1, 0, &list);
    if (list.count == 0) break;
    found = p;
    *index = 0;
    for (int d = 0; d < param->dims; d++) *index = *index * param->shape[d] + list.boxes[0].start[d];
  }
  fsdp_box_list_free(&list);
  return found;
}

int64_t fsdp_checkpoint_data_bytes(const fsdp_checkpoint *c, int rank) {
  int64_t elems = 0, first, numel, bytes = 0; // of all units; of an element in all slots
  for (int u = 0; u < c->unit_count; u++) {
    fsdp_checkpoint_piece(c, rank, u, &first, &numel);
    elems += numel;
  }
  for (int slot = 0; slot < c->slot_count; slot++) bytes += fsdp_dtype_bytes(c->slots[slot].dtype);
  return elems * bytes;
}

int fsdp_checkpoint_find_slot(const fsdp_checkpoint *c, const char *name) {
  for (int i = 0; i < c->slot_count; i++) {
    if (strcmp(c->slots[i].name, name) == 0) return i;
  }
  return -1;
}

int64_t fsdp_checkpoint_numel(const fsdp_checkpoint *c) {
  int64_t total = 0;
  for (int p = 0; p < c->param_count; p++) {
    const fsdp_checkpoint_param *param = &c->params[p];
    total += param->numel / param->shape[0] * fsdp_cut_part_indices(&param->cut, &c->mesh, param->shape[0]);
  }
  return total;
}

int fsdp_checkpoint_count_params(const fsdp_checkpoint *c) {
  int count = 0;
  for (int p = 0; p < c->param_count; p++)
    count += !c->params[p].cut.part_count || fsdp_checkpoint_find(c, c->params[p].name) == p;
  return count;
}

int fsdp_checkpoint_find(const fsdp_checkpoint *c, const char *name) {
  for (int p = 0; p < c->param_count; p++) {
    if (strcmp(c->params[p].name, name) == 0) return p;
  }
  return -1;
}
