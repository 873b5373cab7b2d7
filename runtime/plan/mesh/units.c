#include "runtime/plan/mesh/units.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/mesh/cut.h"

#include <stdlib.h>
#include <string.h>

// Elements of the parameters that `module` itself owns.
static int64_t own_numel(const fsdp_graph *graph, int module) {
  const fsdp_module *m = &graph->modules[module];
  int64_t numel = 0;
  for (int p = m->first_param; p < m->first_param + m->param_count; p++) numel += graph->params[p].numel;
  return numel;
}

// Post-order size rule (PyTorch's size_based_auto_wrap_policy): returns what `module` leaves unwrapped for
// its parent.
static int64_t wrap_by_size(const fsdp_graph *graph, int module, int64_t threshold, bool *wrapped) {
  int64_t left = own_numel(graph, module);
  for (int c = graph->modules[module].first_child; c >= 0; c = graph->modules[c].next_sibling)
    left += wrap_by_size(graph, c, threshold, wrapped);
  if (left < threshold || !strcmp(graph->modules[module].class_name, "ModuleList")) return left;
  wrapped[module] = true;
  return 0;
}

// Marks every module of class `name[0..length)`; returns how many there are.
static int wrap_by_class(const fsdp_graph *graph, const char *name, size_t length, bool *wrapped) {
  int found = 0;
  for (int m = 0; m < graph->module_count; m++) {
    const char *class_name = graph->modules[m].class_name;
    if (strlen(class_name) != length || memcmp(class_name, name, length)) continue;
    wrapped[m] = true;
    found++;
  }
  return found;
}

// Whether `module` or one below it owns a parameter.
static bool holds_params(const fsdp_graph *graph, int module) {
  for (int p = 0; p < graph->param_count; p++)
    if (fsdp_graph_module_within(graph, graph->params[p].module, module)) return true;
  return false;
}

// The classes of modules below the root that hold parameters, each once, in the order of the tree.
static void list_classes(const fsdp_graph *graph, char *out, size_t out_bytes) {
  size_t used = 0;
  for (int m = 1; m < graph->module_count && used < out_bytes; m++) {
    const char *name = graph->modules[m].class_name;
    int first = 1;
    while (first < m && strcmp(graph->modules[first].class_name, name)) first++;
    if (first < m || !strcmp(name, "ModuleList") || !holds_params(graph, m)) continue;
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used ? ", " : "", name);
  }
}

// Whether the list `classes` has the class at `name` before that place.
static bool is_listed(const char *classes, const char *name, size_t length) {
  const char *at = classes;
  for (; at < name; at += strcspn(at, ",") + 1)
    if (strcspn(at, ",") == length && memcmp(at, name, length) == 0) return true;
  return false;
}

static fsdp_status wrap_by_classes(const fsdp_graph *graph, const char *classes, bool *wrapped,
                                   fsdp_error *error) {
  for (const char *name = classes; name; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL) {
    size_t length = strcspn(name, ",");
    if (is_listed(classes, name, length))
      return fsdp_fail(error, FSDP_ERR_OPTION,
                       "--wrap module:%s names class '%.*s' twice: a module is wrapped once; name it once",
                       classes, (int)length, name);
    if (length && wrap_by_class(graph, name, length, wrapped)) continue;
    char known[256] = "";
    list_classes(graph, known, sizeof known);
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "--wrap module:%s names class '%.*s', which the model does not have: its classes with "
                     "parameters are %s",
                     classes, (int)length, name, known);
  }
  return FSDP_OK;
}

// `block`: each decoder layer, the embedding, and the head (a direct child of the root).
static void wrap_blocks(const fsdp_graph *graph, bool *wrapped) {
  wrap_by_class(graph, graph->block_class, strlen(graph->block_class), wrapped);
  wrap_by_class(graph, "Embedding", strlen("Embedding"), wrapped);
  for (int c = graph->modules[0].first_child; c >= 0; c = graph->modules[c].next_sibling)
    if (graph->modules[c].param_count) wrapped[c] = true;
}

static fsdp_status apply_policy(const fsdp_graph *graph, const fsdp_wrap_policy *policy, bool *wrapped,
                                fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  switch (policy->kind) {
  case FSDP_WRAP_SIZE:
    wrap_by_size(graph, 0, policy->numel, wrapped);
    break;
  case FSDP_WRAP_BLOCK:
    wrap_blocks(graph, wrapped);
    break;
  case FSDP_WRAP_NONE:
    break;
  case FSDP_WRAP_CHOSEN:
    for (int m = 0; m < graph->module_count; m++) wrapped[m] = policy->classes[m] == '1';
    break;
  case FSDP_WRAP_MODULE:
    status = wrap_by_classes(graph, policy->classes, wrapped, error);
    break;
  }
  wrapped[0] = true;
  return status;
}

static void count_ranks(fsdp_units *units, int unit) {
  fsdp_unit *u = &units->units[unit];
  u->shard_count = fsdp_mesh_group_size(&units->mesh, u->shard_axes);
  u->replica_count = fsdp_mesh_group_size(&units->mesh, u->replica_axes);
  u->sum_count = fsdp_mesh_group_size(&units->mesh, u->sum_axes);
  u->norm_weight = u->balances ? 0 : 1.0f / (float)u->replica_count;
}

int64_t fsdp_units_local_numel(const fsdp_graph *graph, int param) {
  return graph->values[graph->params[param].value].local_numel;
}

// What a rank holds of a parameter is what its cut says.
static void check_piece(const fsdp_units *units, const fsdp_graph *graph, int param) {
  const fsdp_param *p = &graph->params[param];
  int64_t local[FSDP_MAX_DIMS];
  int64_t numel = fsdp_cut_local_shape(&p->cut, &units->mesh, p->dims, p->shape, local);
  FSDP_CHECK(numel == fsdp_units_local_numel(graph, param),
             "a rank holds %lld elements of %s, but its cut leaves %lld",
             (long long)fsdp_units_local_numel(graph, param), p->name, (long long)numel);
}

// Of all ranks together; of a block of experts its own.
static int64_t part_numel(const fsdp_units *units, const fsdp_param *p) {
  return p->numel / p->shape[0] * fsdp_cut_part_indices(&p->cut, &units->mesh, p->shape[0]);
}

// Lays the parameters of `unit` out in its flat buffer.
static void lay_out(fsdp_units *units, const fsdp_graph *graph, int unit) {
  fsdp_unit *u = &units->units[unit];
  u->first_param = units->param_count;
  int64_t offset = 0;
  for (int p = 0; p < graph->part_count; p++) {
    if (units->unit_of_param[p] != unit) continue;
    units->slot_of_param[p] = units->param_count;
    units->params[units->param_count++] = (fsdp_unit_param){p, offset};
    u->param_count++;
    u->numel += part_numel(units, &graph->params[p]);
    check_piece(units, graph, p);
    offset = fsdp_round_up(offset + fsdp_units_local_numel(graph, p), FSDP_UNIT_ALIGN_ELEMS);
  }
  u->padded_numel = fsdp_round_up(offset, (int64_t)FSDP_UNIT_ALIGN_ELEMS * u->shard_count);
  u->shard_numel = u->padded_numel / u->shard_count;
}

// A unit of the module that has the parameter. The axes of the mesh that do not cut it hold replicas of it.
// The ranks' gradients are summands over the axes that cut the batch's tokens, and over those that cut the
// ops which read it.
static fsdp_unit unit_of(const fsdp_units *units, const fsdp_graph *graph, int module,
                         const fsdp_param *param) {
  const fsdp_value *value = &graph->values[param->value];
  const fsdp_axis_set cut = fsdp_cut_axes(&param->cut);
  FSDP_CHECK(!(cut & value->flat), "an axis cuts %s twice", param->name);
  fsdp_unit unit = {.module = module,
                    .shard_axes = value->flat,
                    .replica_axes = fsdp_mesh_all_axes(&units->mesh) & ~(cut | value->flat),
                    .trainable = param->trainable,
                    .balances = param->balances,
                    .expert_block = param->expert_block};
  unit.sum_axes = unit.replica_axes & (graph->token_axes | value->partial);
  return unit;
}

static void add_unit(fsdp_units *units, const fsdp_graph *graph, const fsdp_unit *unit) {
  fsdp_unit *added = &units->units[units->count++];
  *added = *unit;
  fsdp_graph_module_path(graph, unit->module, added->path);
}

// Whether one unit has the parameters of both.
static bool are_alike(const fsdp_unit *a, const fsdp_unit *b) {
  return a->shard_axes == b->shard_axes && a->replica_axes == b->replica_axes && a->sum_axes == b->sum_axes &&
         a->trainable == b->trainable && a->balances == b->balances && a->expert_block == b->expert_block;
}

// Whether another unit of the module lies over the same axes, so that they differ in their sums alone.
static bool has_twin(const fsdp_units *units, int first, int unit) {
  for (int u = first; u < units->count; u++)
    if (u != unit && units->units[u].shard_axes == units->units[unit].shard_axes &&
        units->units[u].expert_block == units->units[unit].expert_block &&
        units->units[u].replica_axes == units->units[unit].replica_axes)
      return true;
  return false;
}

// Tells the units of one module apart: "model.layers.0 (fsdp)", "model.layers.0 (tensor, replicated)".
static void name_apart(fsdp_units *units, int first) {
  for (int u = first; u < units->count && units->count - first > 1; u++) {
    fsdp_unit *unit = &units->units[u];
    char shards[FSDP_MESH_TEXT_BYTES], cuts[FSDP_MESH_TEXT_BYTES], sums[FSDP_MESH_TEXT_BYTES];
    fsdp_axis_set cut = fsdp_mesh_all_axes(&units->mesh) & ~unit->shard_axes & ~unit->replica_axes;
    size_t length = strlen(unit->path);
    bool summed = unit->sum_axes && has_twin(units, first, u);
    fsdp_mesh_print_axes(&units->mesh, unit->shard_axes, shards);
    fsdp_mesh_print_axes(&units->mesh, cut, cuts);
    fsdp_mesh_print_axes(&units->mesh, unit->sum_axes, sums);
    char block[32] = "";
    if (unit->expert_block) snprintf(block, sizeof block, "expert block %d, ", unit->expert_block);
    int added =
        snprintf(unit->path + length, sizeof unit->path - length, "%s(%s%.30s%s%.20s%s%.30s%s%s)",
                 length ? " " : "(root) ", block, cut ? cuts : "", cut ? ", " : "",
                 unit->shard_axes ? shards : "replicated", summed ? ", summed over " : "", summed ? sums : "",
                 unit->trainable ? "" : ", frozen", unit->balances ? ", balance" : "");
    FSDP_CHECK(length + (size_t)added < sizeof unit->path, "unit name '%s' is cut", unit->path);
  }
}

// The units of a wrapped module: one for each set of axes that its parameters lie over, in their order.
static void add_module_units(fsdp_units *units, const fsdp_graph *graph, int module, const int *wrapper) {
  int first = units->unit_of_module[module] = units->count;
  for (int p = 0; p < graph->part_count; p++) {
    if (wrapper[p] != module) continue;
    const fsdp_unit wanted = unit_of(units, graph, module, &graph->params[p]);
    int unit = first;
    while (unit < units->count && !are_alike(&units->units[unit], &wanted)) unit++;
    if (unit == units->count) add_unit(units, graph, &wanted);
    units->unit_of_param[p] = unit;
  }
  if (units->count == first)
    add_unit(
        units, graph,
        &(fsdp_unit){.module = module, .replica_axes = fsdp_mesh_all_axes(&units->mesh), .trainable = true});
  name_apart(units, first);
}

// The module whose unit has the parameter. One unit has the biases of all layers: a few numbers each.
static int wrapper_of(const fsdp_graph *graph, int param, const bool *wrapped) {
  int module = graph->params[param].balances ? 0 : graph->params[param].module;
  while (!wrapped[module]) module = graph->modules[module].parent;
  return module;
}

// Blocks of experts are those of one layer.
static fsdp_status check_blocks(const fsdp_graph *graph, const bool *wrapped, fsdp_error *error) {
  int blocks = 0;
  for (int p = 0; p < graph->part_count; p++)
    if (graph->params[p].expert_block > blocks) blocks = graph->params[p].expert_block;
  for (int p = 0, last = -1; p < graph->param_count && blocks; p++) {
    if (!graph->params[p].expert_block) continue;
    const bool other = last >= 0 && graph->params[last].module != graph->params[p].module;
    const int wrapper = wrapper_of(graph, p, wrapped);
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(graph, wrapper, path);
    if (other && wrapper_of(graph, last, wrapped) == wrapper)
      return fsdp_fail(
          error, FSDP_ERR_OPTION,
          "--expert-blocks %d: by --wrap the unit of %s has the experts of several layers, but a "
          "block is of one layer; use --wrap block, or leave --expert-blocks out",
          blocks, *path ? path : "the whole model");
    last = p;
  }
  return FSDP_OK;
}

static void add_units(fsdp_units *units, const fsdp_graph *graph, const bool *wrapped) {
  int *wrapper = fsdp_alloc((size_t)(graph->part_count + 1) * sizeof *wrapper); // modules, by parameter
  for (int p = 0; p < graph->part_count; p++) wrapper[p] = wrapper_of(graph, p, wrapped);
  for (int m = 0; m < graph->module_count; m++) {
    units->unit_of_module[m] = -1;
    if (wrapped[m]) add_module_units(units, graph, m, wrapper);
  }
  for (int u = 0; u < units->count; u++) {
    count_ranks(units, u);
    lay_out(units, graph, u);
  }
  free(wrapper);
}

fsdp_status fsdp_units_create(const fsdp_graph *graph, const fsdp_wrap_policy *policy, const fsdp_mesh *mesh,
                              fsdp_units **out, fsdp_error *error) {
  bool *wrapped = fsdp_alloc_zeroed((size_t)graph->module_count, sizeof *wrapped);
  fsdp_status status = apply_policy(graph, policy, wrapped, error);
  if (!status) status = check_blocks(graph, wrapped, error);
  if (!status) {
    fsdp_units *units = fsdp_alloc_zeroed(1, sizeof *units);
    units->mesh = *mesh;
    size_t most = (size_t)(graph->module_count + graph->part_count);
    units->units = fsdp_alloc_zeroed(most, sizeof *units->units);
    units->params = fsdp_alloc_zeroed((size_t)graph->part_count, sizeof *units->params);
    units->unit_of_param = fsdp_alloc_zeroed((size_t)graph->part_count, sizeof *units->unit_of_param);
    units->slot_of_param = fsdp_alloc_zeroed((size_t)graph->part_count, sizeof *units->slot_of_param);
    units->unit_of_module = fsdp_alloc_zeroed((size_t)graph->module_count, sizeof *units->unit_of_module);
    add_units(units, graph, wrapped);
    *out = units;
  }
  free(wrapped);
  return status;
}

void fsdp_units_destroy(fsdp_units *units) {
  if (!units) return;
  free(units->units);
  free(units->params);
  free(units->unit_of_param);
  free(units->slot_of_param);
  free(units->unit_of_module);
  free(units);
}

int64_t fsdp_slice_elems(int64_t shard, int replicas) {
  return shard / replicas / FSDP_UNIT_ALIGN_ELEMS * FSDP_UNIT_ALIGN_ELEMS;
}

int64_t fsdp_unit_slice(const fsdp_unit *unit) {
  return fsdp_slice_elems(unit->shard_numel, unit->replica_count);
}

int64_t fsdp_unit_last_slice(const fsdp_unit *unit) {
  return unit->shard_numel - (unit->replica_count - 1) * fsdp_unit_slice(unit);
}

bool fsdp_units_have_replicas(const fsdp_units *units) {
  for (int u = 0; u < units->count; u++)
    if (units->units[u].numel > 0 && units->units[u].replica_count > 1) return true;
  return false;
}

int64_t fsdp_units_shard_begin(const fsdp_units *units, int unit, int rank) {
  const fsdp_unit *u = &units->units[unit];
  return fsdp_mesh_group_of(&units->mesh, u->shard_axes, rank).rank * u->shard_numel;
}
