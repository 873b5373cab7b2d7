// Weights of one module over different axes: losses, norms, gradients and parameters as on one rank, and
// memory as planned, whatever is freed, offloaded, accumulated or wrapped together.
#include "tests/support/draws.h"
#include "tests/support/harness.h"

#include "runtime/base/size.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 3, GLOBAL_BATCH = 48 };

#define WHOLE                                                                                                \
  { 0 }
#define ON(axis)                                                                                             \
  {                                                                                                          \
    .count = 1, .axes = { axis }                                                                             \
  }
#define ON_BOTH(outer, inner)                                                                                \
  {                                                                                                          \
    .count = 2, .axes = { outer, inner }                                                                     \
  }

// Over data and fsdp, over one of them, and over none; what is not named is replicated.
static fsdp_shard_rule rules[] = {
    {.name = "input", .output = -1, .dims = 2, .dim = {ON_BOTH("fsdp", "data")}},
    {.name = "model.embed_tokens.weight", .output = -1, .dims = 2, .dim = {ON("fsdp")}},
    {.name = "model.layers.*.self_attn.q_proj.weight", .output = -1, .dims = 2, .dim = {WHOLE, ON("data")}},
    {.name = "model.layers.*.self_attn.k_proj.weight", .output = -1, .dims = 2, .dim = {ON("fsdp")}},
    {.name = "model.layers.*.mlp.up_proj.weight", .output = -1, .dims = 2, .dim = {ON("fsdp"), ON("data")}},
    {.name = "model.layers.1.mlp.down_proj.weight", .output = -1, .dims = 2, .dim = {ON("1")}},
    {.name = "lm_head.weight", .output = -1, .dims = 2, .dim = {ON("tensor"), ON("data")}},
};

static harness_config config_of(int data, int fsdp) {
  harness_config config = {.plan = harness_small_plan(1), .steps = STEPS, .lr = 1e-4f, .seed = 7};
  config.plan.mesh = fsdp_mesh_of(data, fsdp);
  config.plan.seq = 5;
  config.plan.batch = GLOBAL_BATCH / (data * fsdp);
  return config;
}

TEST(test_mixed_units) {
  const fsdp_wrap_policy wraps[] = {
      {.kind = FSDP_WRAP_BLOCK}, {.kind = FSDP_WRAP_NONE}, {FSDP_WRAP_SIZE, 6000, NULL}};
  const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_GRAD_OP, FSDP_NO, FSDP_HYBRID, FSDP_ZERO1};
  const int places[][2] = {{2, 2}, {2, 3}, {1, 4}, {4, 1}};
  harness_config plain = config_of(1, 1);
  harness_result *reference = harness_train(&plain);
  for (int i = 0; i < 30; i += test_stride(7)) {
    const int *place = places[i % 4];
    harness_config config = config_of(place[0], place[1]);
    fsdp_plan_config *plan = &config.plan;
    fsdp_sharding sharding = {.rules = rules, .rule_count = sizeof rules / sizeof *rules};
    plan->sharding = &sharding;
    plan->strategy = strategies[i / 2 % 5];
    plan->wrap = wraps[i % 3];
    plan->cpu_offload = i / 3 % 2;
    plan->prefetch = i % 3;
    plan->micro_batches = i / 4 % 2 ? 4 : 1;
    plan->accumulate = i / 8 % 2 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
    plan->batch /= plan->micro_batches;
    plan->exchange = i % 5 != 0;
    plan->poison = i % 2;
    char run[64];
    snprintf(run, sizeof run, "run %d on data=%d,fsdp=%d", i, place[0], place[1]);
    harness_result *result = harness_train(&config);
    const char *difference = harness_compare(
        result, reference, &(harness_tolerance){.loss = 1e-5, .gradient = 1e-5, .value = 1e-4});
    if (difference) fail_msg("%s: %s", run, difference);
    harness_free(result);
  }
  harness_free(reference);
}

// In bf16 there are low-precision copies of some units and casts of others: the same training within its
// precision.
TEST(test_mixed_units_in_bf16) {
  harness_config plain = config_of(1, 1);
  harness_result *reference = harness_train(&plain);
  for (int i = 0; i < 12; i += test_stride(5)) {
    harness_config config = config_of(2, i % 2 + 1);
    fsdp_plan_config *plan = &config.plan;
    fsdp_sharding sharding = {.rules = rules, .rule_count = sizeof rules / sizeof *rules};
    plan->sharding = &sharding;
    plan->strategy = i / 2 % 3 == 0 ? FSDP_FULL : i / 2 % 3 == 1 ? FSDP_NO : FSDP_ZERO1;
    plan->cpu_offload = i / 6;
    plan->param_dtype = FSDP_BF16;
    plan->reduce_dtype = i % 3 ? FSDP_BF16 : FSDP_F32;
    plan->master_dtype = plan->moment_dtype = i % 4 ? FSDP_F32 : FSDP_BF16;
    plan->micro_batches = i % 3 + 1;
    plan->batch /= plan->micro_batches;
    plan->exchange = plan->poison = true;
    harness_result *result = harness_train(&config);
    if (result->failure[0]) fail_msg("run %d in bf16: %s", i, result->failure);
    for (int s = 0; s < STEPS; s++) {
      double expected = (double)reference->loss[s];
      if (!(fabs((double)result->loss[s] - expected) <= 1e-2 * expected))
        fail_msg("run %d in bf16: loss %.8g for %.8g", i, (double)result->loss[s], expected);
    }
    for (int t = 0; t < result->param_count; t++)
      if (!(harness_difference(&result->gradients[t], &reference->gradients[t]) <= 3e-2))
        fail_msg("run %d in bf16: gradient of %s", i, result->gradients[t].name);
    harness_free(result);
  }
  harness_free(reference);
}

// A replicated unit beside sharded ones is read where its state is, as if none were sharded.
TEST(test_replicated_units_are_not_gathered) {
  harness_config config = config_of(2, 2);
  fsdp_sharding sharding = {.rules = rules, .rule_count = sizeof rules / sizeof *rules};
  config.plan.sharding = &sharding;
  fsdp_plan *plan;
  fsdp_error error;
  assert_int_equal(fsdp_plan_create(&config.plan, &plan, &error), FSDP_OK);
  int gathered = 0;
  for (int t = 0; t < plan->program->tensor_count; t++) {
    const fsdp_tensor *tensor = &plan->program->tensors[t];
    if (tensor->category != FSDP_CATEGORY_GATHERED) continue;
    assert_true(plan->units->units[tensor->unit].shard_count > 1);
    gathered++;
  }
  assert_true(gathered > 0);
  fsdp_plan_destroy(plan);
}
