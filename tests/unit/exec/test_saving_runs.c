// Runs that recompute and offload what layers save, beside runs that keep all of it: random rules of what is
// saved, strategies, wraps, accumulation, offload, precisions and families. What is recomputed or fetched has
// the bits of what was dropped, so losses, norms, gradients and parameters have too; memory is as planned.
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <string.h>

enum { STEPS = 2, RANKS_MAX = 6 };

// A configuration that has rules, for few enough ranks.
static fsdp_plan_config draw(int number) {
  random_source random = {.seed = 5000000 + (uint64_t)number};
  fsdp_plan_config config;
  do {
    random.seed += 1000000;
    random.next = 0;
    config = random_plan_config(&random);
  } while (fsdp_mesh_ranks(&config.mesh) > RANKS_MAX || !config.saving.count);
  config.backend = fsdp_plan_backend_cpu();
  config.check = config.snapshot = config.exchange = config.evaluation = false;
  return config;
}

static void expect_equal(const char *what, const char *name, const void *a, const void *b, size_t bytes,
                         const fsdp_plan_config *config) {
  char text[1024];
  if (memcmp(a, b, bytes) == 0) return;
  describe_plan_config(config, text, sizeof text);
  fail_msg("%s %s differs from the run that keeps everything: %s", what, name, text);
}

static void compare(const harness_result *mine, const harness_result *kept, const fsdp_plan_config *config) {
  char message[512];
  if (mine->failure[0] || kept->failure[0]) fail_msg("%s%s", mine->failure, kept->failure);
  expect_equal("the loss", "", mine->loss, kept->loss, STEPS * sizeof(float), config);
  expect_equal("the norm", "", mine->grad_norm, kept->grad_norm, STEPS * sizeof(float), config);
  for (int p = 0; p < kept->param_count; p++) {
    const harness_tensor *a = &mine->gradients[p], *b = &kept->gradients[p];
    expect_equal("the gradient of", b->name, a->values, b->values, (size_t)b->numel * 4, config);
    a = &mine->parameters[p], b = &kept->parameters[p];
    expect_equal("parameter", b->name, a->values, b->values, (size_t)b->numel * 4, config);
  }
  if (!harness_memory_as_planned(mine, message, sizeof message)) fail_msg("%s", message);
}

TEST(test_same_bits) {
  int fates[FSDP_FATE_OFFLOAD + 1] = {0}, bf16 = 0, several = 0;
  for (int n = cases_begin(test_draws(120, 16)); cases_run(__func__, n); n++) {
    harness_config config = {.plan = draw(n), .steps = STEPS, .lr = 1e-2f, .gradient_step = STEPS - 1};
    config.seed = (uint64_t)n;
    harness_config plain = config;
    plain.plan.saving = (fsdp_saving){0};
    harness_result *mine = harness_train(&config), *kept = harness_train(&plain);
    compare(mine, kept, &config.plan);
    for (int v = 0; v < mine->plan->graph->value_count; v++) fates[mine->plan->fates[v]]++;
    bf16 += config.plan.param_dtype == FSDP_BF16;
    several += fsdp_mesh_ranks(&config.plan.mesh) > 1;
    harness_free(mine);
    harness_free(kept);
  }
  print_message(
      "values of layers: %d kept, %d recomputed, %d offloaded; %d runs in bf16, %d on several ranks\n",
      fates[FSDP_FATE_KEEP], fates[FSDP_FATE_RECOMPUTE], fates[FSDP_FATE_OFFLOAD], bf16, several);
}
