#include "runtime/plan/search/neighbours.h"

#include "runtime/base/size.h"
#include "runtime/plan/search/saving_choice.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MICRO_BATCHES_MAX (1 << 20) // of those that are doubled

typedef fsdp_neighbour neighbour;

static bool say(char *options, const char *text) {
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "%s", text);
  return true;
}

// ---- Sizes

static bool vary_batch(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                       char *options) {
  (void)evaluator;
  config->batch += self->by;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--batch-size %" PRId64, config->batch);
  return config->batch > 0;
}

static bool vary_micro_batches(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                               char *options) {
  (void)evaluator;
  config->micro_batches += self->by;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--grad-accum %d", config->micro_batches);
  return config->micro_batches > 0;
}

// Twice as many micro-batches, so that the step stays the same: " --grad-accum 4". An evaluation has one.
static const char *double_micro_batches(fsdp_plan_config *config, char option[32]) {
  option[0] = 0;
  if (config->evaluation_only) return option;
  config->micro_batches *= 2;
  snprintf(option, 32, " --grad-accum %d", config->micro_batches);
  return option;
}

// Half the sequences of a micro-batch, and twice as many of them.
static bool halve_batch(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                        char *options) {
  (void)self, (void)evaluator;
  if (config->batch % 2 || config->micro_batches > MICRO_BATCHES_MAX) return false;
  char more[32];
  config->batch /= 2;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--batch-size %" PRId64 "%s", config->batch,
           double_micro_batches(config, more));
  return true;
}

static bool halve_sequence(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                           char *options) {
  (void)self, (void)evaluator;
  if (config->seq < 128) return false;
  config->seq /= 2;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--seq-length %" PRId64, config->seq);
  return true;
}

// ---- Units and prefetch

bool fsdp_neighbour_wraps_blocks(fsdp_plan_config *config) {
  if (config->wrap.kind == FSDP_WRAP_BLOCK) return false;
  config->wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  return true;
}

static bool wrap_blocks(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                        char *options) {
  (void)self, (void)evaluator;
  return fsdp_neighbour_wraps_blocks(config) && say(options, "--wrap block");
}

static bool vary_wrap(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                      char *options) {
  (void)evaluator;
  fsdp_wrap_policy *wrap = &config->wrap;
  if (wrap->kind != FSDP_WRAP_SIZE) return false;
  wrap->numel = self->by > 0 ? 2 * wrap->numel : fsdp_max_i64(1, wrap->numel / 2);
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--numel-to-wrap %" PRId64, wrap->numel);
  return true;
}

static bool vary_prefetch(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                          char *options) {
  (void)evaluator;
  config->prefetch += self->by;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--prefetch %d", config->prefetch);
  return config->prefetch >= 0;
}

static bool no_prefetch(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                        char *options) {
  (void)self, (void)evaluator;
  if (config->prefetch == 0) return false;
  config->prefetch = 0;
  return say(options, "--prefetch 0");
}

// ---- What is saved

// The number of layers that are recomputed whole, or -1 if other rules say what is saved.
static int recomputed_layers(const fsdp_plan_config *config) {
  const fsdp_saving *saving = &config->saving;
  if (saving->count == 0) return 0;
  const fsdp_saving_rule *rule = &saving->rules[0];
  if (saving->count > 1 || strcmp(rule->name, "block") != 0 || rule->fate != FSDP_FATE_RECOMPUTE) return -1;
  return rule->layers ? rule->layers : (int)config->model.num_layers;
}

static bool vary_recomputation(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                               char *options) {
  (void)evaluator;
  const int layers = recomputed_layers(config), count = layers + self->by;
  if (layers < 0 || count < 0 || count > config->model.num_layers) return false;
  config->saving.count = 0;
  if (count == 0) return say(options, "--recompute none");
  config->saving = fsdp_saving_of_blocks();
  config->saving.rules[0].layers = count;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--recompute block:%d", count);
  return true;
}

// The cheapest rules of one fate with which the plan fits; if it does not with any, those that save most.
static bool choose_saved(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                         char *options) {
  const bool recompute = self->fate == FSDP_FATE_RECOMPUTE;
  const fsdp_saving_choice choice = {.recompute = recompute,
                                     .offload = !recompute,
                                     .allowed = &evaluator->allowed,
                                     .profile = evaluator->profile,
                                     .ranks_per_node = evaluator->ranks_per_node};
  const fsdp_saving before = config->saving;
  char rules[FSDP_SAVING_TEXT_BYTES];
  bool found;
  for (int i = 0; i < before.count; i++)
    if (before.rules[i].fate == self->fate) return false;
  if (fsdp_saving_choose(&choice, config, &found, NULL) != FSDP_OK) return false;
  if (!found && recompute && !before.count) config->saving = fsdp_saving_of_blocks();
  fsdp_saving_print(&config->saving, self->fate, rules);
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--%s %s", recompute ? "recompute" : "offload-activations", rules);
  return config->saving.count > before.count;
}

// ---- The mesh and what lies on it

// Doubles or halves an axis at the cost of one that divides the batch: the ranks stay as many. False if
// that does not divide, or rules say what lies on the axes.
static bool move_ranks(const fsdp_plan_config *config, fsdp_mesh *mesh, const char *axis, int by) {
  const int size = fsdp_mesh_size(mesh, axis), shards = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  const bool of_data = by > 0 ? shards % 2 : shards == 1;
  const char *from = of_data ? FSDP_AXIS_DATA : FSDP_AXIS_FSDP;
  const int other = fsdp_mesh_size(mesh, from);
  if (config->sharding || config->op_strategies || (by > 0 ? other % 2 : size % 2)) return false;
  if (fsdp_mesh_find(mesh, axis) < 0 && !fsdp_mesh_add(mesh, axis, 1)) return false;
  fsdp_mesh_resize(mesh, axis, by > 0 ? 2 * size : size / 2);
  fsdp_mesh_resize(mesh, from, by > 0 ? other / 2 : 2 * other);
  return true;
}

static bool vary_axis(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                      char *options) {
  (void)evaluator;
  char sizes[FSDP_MESH_TEXT_BYTES];
  if (!move_ranks(config, &config->mesh, self->axis, self->by)) return false;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--mesh %s", fsdp_mesh_print(&config->mesh, ",", sizes));
  return true;
}

// The ranks that no longer have sequences of their own make up for it: the step stays the same. Tensor
// parallelism stays inside a machine.
static bool divide_layers(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                          char *options) {
  char sizes[FSDP_MESH_TEXT_BYTES], more[32];
  const int size = 2 * fsdp_mesh_size(&config->mesh, self->axis);
  const bool tensor = strcmp(self->axis, FSDP_AXIS_TENSOR) == 0;
  if (tensor && (evaluator->ranks_per_node % size || size > config->model.num_heads)) return false;
  if (config->micro_batches > MICRO_BATCHES_MAX || !move_ranks(config, &config->mesh, self->axis, 1))
    return false;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--mesh %s%s", fsdp_mesh_print(&config->mesh, ",", sizes),
           double_micro_batches(config, more));
  return true;
}

static bool reduce_each(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                        char *options) {
  (void)self, (void)evaluator;
  if (config->accumulate == FSDP_ACCUMULATE_REDUCE || config->micro_batches == 1) return false;
  config->accumulate = FSDP_ACCUMULATE_REDUCE;
  return say(options, "--accumulate reduce");
}

static bool shard(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config, char *options) {
  (void)self, (void)evaluator;
  fsdp_mesh *mesh = &config->mesh;
  int data = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), fsdp = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  if (config->strategy == FSDP_FULL || fsdp_mesh_ranks(mesh) == 1) return false;
  // What is local by zero1's default is not under full.
  const char *also = "";
  if (config->strategy == FSDP_ZERO1 && config->accumulate == FSDP_ACCUMULATE_LOCAL) {
    config->accumulate = FSDP_ACCUMULATE_REDUCE;
    if (config->micro_batches > 1) also = " --accumulate reduce";
  }
  config->strategy = FSDP_FULL;
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--strategy full%s", also);
  // Rules say themselves what lies over data.
  if (config->sharding || config->op_strategies || data == 1) return true;
  char sizes[FSDP_MESH_TEXT_BYTES];
  fsdp_mesh_resize(mesh, FSDP_AXIS_DATA, 1);
  fsdp_mesh_resize(mesh, FSDP_AXIS_FSDP, data * fsdp);
  snprintf(options, FSDP_NEIGHBOUR_BYTES, "--strategy full%s --mesh %s", also,
           fsdp_mesh_print(mesh, ",", sizes));
  return true;
}

static bool offload(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                    char *options) {
  (void)self, (void)evaluator;
  if (config->cpu_offload) return false;
  config->cpu_offload = true;
  return say(options, "--cpu-offload on");
}

// ---- Precision

static bool low_precision_state(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                                char *options) {
  (void)self, (void)evaluator;
  if (config->master_dtype == FSDP_BF16 && config->moment_dtype == FSDP_BF16) return false;
  config->master_dtype = config->moment_dtype = FSDP_BF16;
  return say(options, "--master-dtype bf16 --moment-dtype bf16");
}

static bool low_precision_compute(const neighbour *self, fsdp_evaluator *evaluator, fsdp_plan_config *config,
                                  char *options) {
  (void)self, (void)evaluator;
  if (config->param_dtype == FSDP_BF16) return false;
  config->param_dtype = FSDP_BF16;
  return say(options, "--param-dtype bf16");
}

static bool low_precision_gradients(const neighbour *self, fsdp_evaluator *evaluator,
                                    fsdp_plan_config *config, char *options) {
  (void)self, (void)evaluator;
  if (config->param_dtype != FSDP_BF16 || config->reduce_dtype == FSDP_BF16) return false;
  config->reduce_dtype = FSDP_BF16;
  return say(options, "--reduce-dtype bf16");
}

// ---- All of them

const fsdp_neighbour *fsdp_neighbours(int *count) {
  static const fsdp_neighbour list[] = {
      {.apply = vary_batch, .by = -1},
      {.apply = vary_batch, .by = 1},
      {.apply = vary_micro_batches, .by = -1},
      {.apply = vary_micro_batches, .by = 1},
      {.apply = vary_prefetch, .by = -1},
      {.apply = vary_prefetch, .by = 1},
      {.apply = vary_recomputation, .by = -1},
      {.apply = vary_recomputation, .by = 1},
      {.apply = vary_wrap, .by = -1},
      {.apply = vary_wrap, .by = 1},
      {.apply = vary_axis, .by = -1, .axis = FSDP_AXIS_TENSOR},
      {.apply = vary_axis, .by = 1, .axis = FSDP_AXIS_TENSOR},
      {.apply = vary_axis, .by = -1, .axis = FSDP_AXIS_CONTEXT},
      {.apply = vary_axis, .by = 1, .axis = FSDP_AXIS_CONTEXT},
      {.apply = wrap_blocks, .is_remedy = true},
      {.apply = no_prefetch, .is_remedy = true},
      {.apply = choose_saved, .fate = FSDP_FATE_RECOMPUTE, .is_remedy = true},
      {.apply = reduce_each, .is_remedy = true},
      {.apply = shard, .is_remedy = true},
      {.apply = choose_saved, .fate = FSDP_FATE_OFFLOAD, .is_remedy = true},
      {.apply = halve_batch, .is_remedy = true, .repeats = true},
      {.apply = offload, .is_remedy = true},
      {.apply = divide_layers, .axis = FSDP_AXIS_CONTEXT, .is_remedy = true, .repeats = true},
      {.apply = divide_layers, .axis = FSDP_AXIS_TENSOR, .is_remedy = true, .repeats = true},
      {.apply = low_precision_compute, .is_remedy = true, .changes_results = true},
      {.apply = low_precision_state, .is_remedy = true, .changes_results = true},
      {.apply = low_precision_gradients, .is_remedy = true, .changes_results = true},
      {.apply = halve_sequence, .is_remedy = true, .changes_results = true, .repeats = true}};
  *count = sizeof list / sizeof *list;
  return list;
}
