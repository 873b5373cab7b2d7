#include "runtime/plan/search/variations.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/evaluate.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct variations {
  const fsdp_plan *plan;
  fsdp_evaluator evaluator;
  int count;
  fsdp_variation *out;
} variations;

// Evaluates `config`, of which a single setting differs from the plan's.
__attribute__((format(printf, 3, 4))) static void vary(variations *v, const fsdp_plan_config *config,
                                                       const char *format, ...) {
  FSDP_CHECK(v->count < FSDP_VARIATIONS_MAX, "more than %d variations", FSDP_VARIATIONS_MAX);
  fsdp_variation *out = &v->out[v->count];
  fsdp_evaluation e;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(out->change, sizeof out->change, format, arguments);
  va_end(arguments);
  if (!fsdp_evaluate(&v->evaluator, config, FSDP_EVALUATE_PLAN, &e)) return;
  out->step_s = e.step_s;
  out->tokens_per_s = e.tokens_per_s;
  out->peak_bytes = e.peak_bytes[FSDP_SPACE_DEVICE];
  out->host_peak_bytes = e.peak_bytes[FSDP_SPACE_HOST];
  out->fits = fsdp_excess_of(&v->plan->config.limits, e.bytes, NULL) == 0;
  v->count++;
}

static void vary_sizes(variations *v) {
  const fsdp_plan_config *config = &v->plan->config;
  fsdp_plan_config c = *config;
  for (int by = -1; by <= 1; by += 2) {
    c.batch = config->batch + by;
    if (c.batch > 0) vary(v, &c, "--batch-size %lld", (long long)c.batch);
  }
  c = *config;
  for (int by = -1; by <= 1; by += 2) {
    c.micro_batches = config->micro_batches + by;
    if (c.micro_batches > 0) vary(v, &c, "--grad-accum %d", c.micro_batches);
  }
  c = *config;
  for (int by = -1; by <= 1; by += 2) {
    c.prefetch = config->prefetch + by;
    if (c.prefetch >= 0) vary(v, &c, "--prefetch %d", c.prefetch);
  }
}

// The number of layers that are recomputed whole, or -1 if other rules say what is saved.
static int recomputed_layers(const fsdp_plan *plan) {
  const fsdp_saving *saving = &plan->config.saving;
  if (saving->count == 0) return 0;
  const fsdp_saving_rule *rule = &saving->rules[0];
  if (saving->count > 1 || strcmp(rule->name, "block") != 0 || rule->fate != FSDP_FATE_RECOMPUTE) return -1;
  return rule->layers ? rule->layers : plan->graph->block_count;
}

static void vary_recomputation(variations *v) {
  const int layers = recomputed_layers(v->plan);
  for (int by = -1; layers >= 0 && by <= 1; by += 2) {
    fsdp_plan_config c = v->plan->config;
    const int count = layers + by;
    if (count < 0 || count > v->plan->graph->block_count) continue;
    c.saving.count = 0;
    if (count > 0) c.saving = fsdp_saving_of_blocks();
    if (count > 0) c.saving.rules[0].layers = count;
    if (count > 0)
      vary(v, &c, "--recompute block:%d", count);
    else
      vary(v, &c, "--recompute none");
  }
}

static void vary_wrap(variations *v) {
  for (int twice = 0; twice <= 1 && v->plan->config.wrap.kind == FSDP_WRAP_SIZE; twice++) {
    fsdp_plan_config c = v->plan->config;
    c.wrap.numel = twice ? 2 * c.wrap.numel : fsdp_max_i64(1, c.wrap.numel / 2);
    vary(v, &c, "--numel-to-wrap %lld", (long long)c.wrap.numel);
  }
}

// Twice and half of an axis, at the cost of the one that divides the batch: the ranks stay as many.
static void vary_axis(variations *v, const char *axis) {
  const fsdp_plan_config *config = &v->plan->config;
  const char *from = fsdp_mesh_size(&config->mesh, FSDP_AXIS_FSDP) > 1 ? FSDP_AXIS_FSDP : FSDP_AXIS_DATA;
  const int size = fsdp_mesh_size(&config->mesh, axis), other = fsdp_mesh_size(&config->mesh, from);
  for (int twice = 0; twice <= 1; twice++) {
    fsdp_plan_config c = *config;
    char mesh[FSDP_MESH_TEXT_BYTES];
    if (twice ? other % 2 : size % 2) continue;
    if (fsdp_mesh_find(&c.mesh, axis) < 0 && !fsdp_mesh_add(&c.mesh, axis, 1)) continue;
    fsdp_mesh_resize(&c.mesh, axis, twice ? 2 * size : size / 2);
    fsdp_mesh_resize(&c.mesh, from, twice ? other / 2 : 2 * other);
    vary(v, &c, "--mesh %s", fsdp_mesh_print(&c.mesh, ",", mesh));
  }
}

int fsdp_variations_of(const fsdp_plan *plan, const fsdp_device_profile *profile, int ranks_per_node,
                       fsdp_variation out[FSDP_VARIATIONS_MAX]) {
  variations v = {
      .plan = plan, .evaluator = {.profile = profile, .ranks_per_node = ranks_per_node}, .out = out};
  vary_sizes(&v);
  vary_recomputation(&v);
  vary_wrap(&v);
  if (!plan->config.sharding && !plan->config.op_strategies) {
    vary_axis(&v, FSDP_AXIS_TENSOR);
    vary_axis(&v, FSDP_AXIS_CONTEXT);
  }
  fsdp_evaluator_release(&v.evaluator);
  return v.count;
}
