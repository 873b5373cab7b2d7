#include "runtime/plan/search/remedies.h"

#include "runtime/base/check.h"
#include "runtime/plan/search/saving_choice.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SAID_BYTES (FSDP_REMEDY_BYTES / 2) // of each of two changes

// A change of the configuration that may need less memory. `apply` changes `config` and says how a user asks
// for it, or returns false if the configuration has it already. Without it, ranks move to `axis`; without
// either, rules of `fate` are chosen.
typedef struct remedy {
  bool (*apply)(fsdp_plan_config *config, char *text, size_t bytes);
  const char *axis;
  fsdp_fate fate;
  bool changes_results;
} remedy;

static bool say(char *text, size_t bytes, const char *option) {
  snprintf(text, bytes, "%s", option);
  return true;
}

static bool wrap_block(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->wrap.kind == FSDP_WRAP_BLOCK) return false;
  config->wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  return say(text, bytes, "--wrap block");
}

// The cheapest rules of one fate with which the plan fits; if it does not with any, those that save most.
static bool choose(fsdp_plan_config *config, fsdp_evaluator *evaluator, fsdp_fate fate, char *text,
                   size_t bytes) {
  const fsdp_saving_choice choice = {.recompute = fate == FSDP_FATE_RECOMPUTE,
                                     .offload = fate == FSDP_FATE_OFFLOAD,
                                     .allowed = &evaluator->allowed};
  fsdp_saving before = config->saving;
  char rules[FSDP_SAVING_TEXT_BYTES];
  bool found;
  for (int i = 0; i < before.count; i++)
    if (before.rules[i].fate == fate) return false;
  if (fsdp_saving_choose(&choice, config, &found, NULL) != FSDP_OK) return false;
  if (!found && fate == FSDP_FATE_RECOMPUTE && !before.count) config->saving = fsdp_saving_of_blocks();
  fsdp_saving_print(&config->saving, fate, rules);
  snprintf(text, bytes, "--%s %s", fate == FSDP_FATE_RECOMPUTE ? "recompute" : "offload-activations", rules);
  return config->saving.count > before.count;
}

static bool reduce_each(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->accumulate == FSDP_ACCUMULATE_REDUCE || config->micro_batches == 1) return false;
  config->accumulate = FSDP_ACCUMULATE_REDUCE;
  return say(text, bytes, "--accumulate reduce");
}

static bool shard(fsdp_plan_config *config, char *text, size_t bytes) {
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
  snprintf(text, bytes, "--strategy full%s", also);
  // Rules say themselves what lies over data.
  if (config->sharding || config->op_strategies || data == 1) return true;
  char sizes[FSDP_MESH_TEXT_BYTES];
  fsdp_mesh_resize(mesh, FSDP_AXIS_DATA, 1);
  fsdp_mesh_resize(mesh, FSDP_AXIS_FSDP, data * fsdp);
  snprintf(text, bytes, "--strategy full%s --mesh %s", also, fsdp_mesh_print(mesh, ",", sizes));
  return true;
}

static bool offload(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->cpu_offload) return false;
  config->cpu_offload = true;
  return say(text, bytes, "--cpu-offload on");
}

static bool no_prefetch(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->prefetch == 0) return false;
  config->prefetch = 0;
  return say(text, bytes, "--prefetch 0");
}

// Half the sequences of a micro-batch and twice as many of them, so that the step stays the same.
static bool halve_batch(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->batch % 2 || config->micro_batches > 1 << 20) return false;
  config->batch /= 2;
  config->micro_batches *= 2;
  snprintf(text, bytes, "--batch-size %" PRId64 " --grad-accum %d", config->batch, config->micro_batches);
  return true;
}

static bool halve_sequence(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->seq < 128) return false;
  config->seq /= 2;
  snprintf(text, bytes, "--seq-length %" PRId64, config->seq);
  return true;
}

// Twice the ranks on tensor or context and half of those that have sequences of their own, which take twice
// as many micro-batches, so that the step stays the same. Tensor parallelism stays inside a machine.
static bool divide_layers(fsdp_plan_config *config, fsdp_evaluator *evaluator, const char *axis, char *text,
                          size_t bytes) {
  fsdp_mesh *mesh = &config->mesh;
  char sizes[FSDP_MESH_TEXT_BYTES];
  const int size = 2 * fsdp_mesh_size(mesh, axis);
  const int data = fsdp_mesh_size(mesh, FSDP_AXIS_DATA), shards = fsdp_mesh_size(mesh, FSDP_AXIS_FSDP);
  const bool tensor = strcmp(axis, FSDP_AXIS_TENSOR) == 0;
  if (config->sharding || config->op_strategies || config->micro_batches > 1 << 20) return false;
  if ((shards % 2 && data % 2) || (tensor && evaluator->ranks_per_node % size)) return false;
  if (tensor && size > config->model.num_heads) return false;
  if (shards % 2)
    fsdp_mesh_resize(mesh, FSDP_AXIS_DATA, data / 2);
  else
    fsdp_mesh_resize(mesh, FSDP_AXIS_FSDP, shards / 2);
  fsdp_mesh_resize(mesh, axis, size);
  config->micro_batches = 2 * config->micro_batches;
  fsdp_mesh_print(mesh, ",", sizes);
  snprintf(text, bytes, "--mesh %s --grad-accum %d", sizes, config->micro_batches);
  return true;
}

static bool low_precision_state(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->master_dtype == FSDP_BF16 && config->moment_dtype == FSDP_BF16) return false;
  config->master_dtype = config->moment_dtype = FSDP_BF16;
  return say(text, bytes, "--master-dtype bf16 --moment-dtype bf16");
}

static bool low_precision_compute(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->param_dtype == FSDP_BF16) return false;
  config->param_dtype = FSDP_BF16;
  return say(text, bytes, "--param-dtype bf16");
}

static bool low_precision_gradients(fsdp_plan_config *config, char *text, size_t bytes) {
  if (config->param_dtype != FSDP_BF16 || config->reduce_dtype == FSDP_BF16) return false;
  config->reduce_dtype = FSDP_BF16;
  return say(text, bytes, "--reduce-dtype bf16");
}

// In the order of preference: those that change no result come first.
static const remedy remedies[] = {{.apply = wrap_block},
                                  {.apply = no_prefetch},
                                  {.fate = FSDP_FATE_RECOMPUTE},
                                  {.apply = reduce_each},
                                  {.apply = shard},
                                  {.fate = FSDP_FATE_OFFLOAD},
                                  {.apply = halve_batch},
                                  {.apply = offload},
                                  {.axis = FSDP_AXIS_CONTEXT},
                                  {.axis = FSDP_AXIS_TENSOR},
                                  {.apply = low_precision_compute, .changes_results = true},
                                  {.apply = low_precision_state, .changes_results = true},
                                  {.apply = low_precision_gradients, .changes_results = true},
                                  {.apply = halve_sequence, .changes_results = true}};
enum { REMEDY_COUNT = sizeof remedies / sizeof *remedies };

static int64_t excess(const fsdp_evaluator *evaluator, const fsdp_evaluation *e) {
  return fsdp_excess_of(&evaluator->allowed, e->bytes, NULL);
}

// Applies a remedy, halvings repeated until it fits; `text` is what to type. False if it does not apply.
static bool apply(int index, fsdp_evaluator *evaluator, fsdp_plan_config *config, fsdp_evaluation *result,
                  char *text, size_t bytes) {
  const remedy *r = &remedies[index];
  bool repeats = r->apply == halve_batch || r->apply == halve_sequence || r->axis;
  bool applied = false;
  do {
    fsdp_plan_config changed = *config;
    char said[SAID_BYTES];
    fsdp_evaluation least;
    bool changes = r->apply  ? r->apply(&changed, said, sizeof said)
                   : r->axis ? divide_layers(&changed, evaluator, r->axis, said, sizeof said)
                             : choose(&changed, evaluator, r->fate, said, sizeof said);
    if (!changes || !fsdp_evaluate_need(evaluator, &changed, &least)) return applied;
    *config = changed;
    *result = least;
    snprintf(text, bytes, "%s", said);
    applied = true;
  } while (repeats && excess(evaluator, result) > 0);
  return applied;
}

// One change that is enough: the first in order, or of those that change no result the fastest.
static bool find_single(const fsdp_plan_config *given, fsdp_evaluator *evaluator,
                        char text[FSDP_REMEDY_BYTES], fsdp_evaluation *result) {
  bool found = false;
  for (int i = 0; i < REMEDY_COUNT && !(found && remedies[i].changes_results); i++) {
    fsdp_plan_config config = *given;
    char said[FSDP_REMEDY_BYTES];
    fsdp_evaluation after;
    if (!apply(i, evaluator, &config, &after, said, sizeof said) || excess(evaluator, &after) > 0) continue;
    if (found && after.step_s >= result->step_s) continue;
    found = true;
    *result = after;
    memcpy(text, said, sizeof said);
    if (after.step_s == 0) return true;
  }
  return found;
}

// Several changes together, each if it helps, in their order. False if nothing found is enough; `text` and
// `result` are then the least that was found.
static bool find_several(const fsdp_plan_config *given, fsdp_evaluator *evaluator,
                         char text[FSDP_REMEDY_BYTES], fsdp_evaluation *result) {
  fsdp_plan_config config = *given;
  text[0] = 0;
  FSDP_CHECK(fsdp_evaluate_need(evaluator, &config, result), "a plan that was made");
  for (int i = 0; i < REMEDY_COUNT; i++) {
    fsdp_plan_config changed = config;
    char said[SAID_BYTES];
    fsdp_evaluation after;
    if (!apply(i, evaluator, &changed, &after, said, sizeof said) ||
        excess(evaluator, &after) >= excess(evaluator, result))
      continue;
    config = changed;
    *result = after;
    size_t used = strlen(text);
    if (used + SAID_BYTES >= FSDP_REMEDY_BYTES) break;
    snprintf(text + used, FSDP_REMEDY_BYTES - used, "%s%s", used ? " " : "", said);
    if (excess(evaluator, result) == 0) return true;
  }
  FSDP_CHECK(fsdp_evaluate(evaluator, &config, FSDP_EVALUATE_PLAN, result), "a plan that was made");
  return false;
}

fsdp_remedy fsdp_remedy_of(const fsdp_plan_config *config, fsdp_evaluator *evaluator) {
  fsdp_remedy found;
  fsdp_evaluation after;
  found.is_enough = find_single(config, evaluator, found.change, &after) ||
                    find_several(config, evaluator, found.change, &after);
  memcpy(found.bytes, after.bytes, sizeof found.bytes);
  return found;
}
