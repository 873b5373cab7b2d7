#include "runtime/plan/search/hints.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/neighbours.h"

// Whether the unit holds matrices of two or more decoder layers, so that it stays gathered through all layers
// between them.
static bool spans_layers(const fsdp_plan *plan, const fsdp_unit *unit) {
  int first_layer = -1;
  for (int i = 0; i < unit->param_count; i++) {
    int param = plan->units->params[unit->first_param + i].param;
    int layer = fsdp_graph_layer_of(plan->graph, plan->graph->params[param].module);
    if (layer < 0 || plan->graph->params[param].dims < 2) continue;
    if (first_layer < 0) first_layer = layer;
    if (layer != first_layer) return true;
  }
  return false;
}

static int largest_unit_across_layers(const fsdp_plan *plan) {
  int largest = -1;
  for (int u = 0; u < plan->units->count; u++) {
    const fsdp_unit *unit = &plan->units->units[u];
    const bool larger = largest < 0 || unit->numel > plan->units->units[largest].numel;
    if (larger && spans_layers(plan, unit)) largest = u;
  }
  return largest;
}

static void find_unit(const fsdp_plan *plan, fsdp_evaluator *evaluator, fsdp_hints *out) {
  const fsdp_memory_space_report *device = &plan->memory.space[FSDP_SPACE_DEVICE];
  fsdp_plan_config config = plan->config;
  fsdp_evaluation block;
  if (!fsdp_neighbour_wraps_blocks(&config) || !device->peak_by_category[FSDP_CATEGORY_GATHERED]) return;
  const int unit = largest_unit_across_layers(plan);
  if (unit < 0) return;
  FSDP_CHECK(fsdp_evaluate(evaluator, &config, FSDP_EVALUATE_PEAKS, &block), "block fits every model");
  out->saved_bytes = device->peak_bytes - block.peak_bytes[FSDP_SPACE_DEVICE];
  if (out->saved_bytes > 0) out->unit = unit;
}

// Only of rules that move activations.
static void find_preset(const fsdp_plan *plan, fsdp_evaluator *evaluator, fsdp_hints *out) {
  const fsdp_sharding *rules = plan->config.sharding;
  bool moves = false;
  for (int c = 0; c < plan->program->comm_count; c++)
    moves |= plan->program->comms[c].stream == FSDP_STREAM_TENSOR;
  if (!rules || rules->preset != FSDP_SHARDING_FILE || !moves) return;
  const fsdp_sharding preset = {
      .preset = FSDP_SHARDING_FSDP_TP, .given = rules->given, .sequence_parallel = true};
  fsdp_plan_config config = plan->config;
  fsdp_evaluation other;
  config.sharding = &preset;
  if (!fsdp_evaluate(evaluator, &config, FSDP_EVALUATE_PEAKS, &other)) return;
  const int64_t now = fsdp_traffic_sent_bytes(&plan->traffic);
  out->preset_bytes = fsdp_max_i64(now - other.sent_bytes, 0);
}

fsdp_hints fsdp_hints_of(const fsdp_plan *plan) {
  fsdp_evaluator evaluator = {.profile = NULL};
  fsdp_hints hints = {.unit = -1};
  find_unit(plan, &evaluator, &hints);
  find_preset(plan, &evaluator, &hints);
  fsdp_evaluator_release(&evaluator);
  return hints;
}
