// Random sharding rules for weights and outputs of a Llama, over tensor, fsdp and context: what a plan
// accepts trains as one rank does, with memory as planned.
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/random_program.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 2, GLOBAL_BATCH = 4, RULES_MAX = 32 };

static const char *const weights[] = {"model.layers.*.self_attn.q_proj.weight",
                                      "model.layers.*.self_attn.k_proj.weight",
                                      "model.layers.*.self_attn.v_proj.weight",
                                      "model.layers.*.self_attn.o_proj.weight",
                                      "model.layers.*.mlp.gate_proj.weight",
                                      "model.layers.*.mlp.up_proj.weight",
                                      "model.layers.*.mlp.down_proj.weight",
                                      "model.embed_tokens.weight",
                                      "lm_head.weight"};
static const char *const outputs[] = {"model.layers.*.self_attn",
                                      "model.layers.*.mlp",
                                      "model.layers.*.input_layernorm",
                                      "model.layers.*.post_attention_layernorm",
                                      "model.layers.*",
                                      "model.embed_tokens",
                                      "model.norm",
                                      "model.layers.*.self_attn.q_proj",
                                      "model.layers.*.self_attn.k_proj",
                                      "model.layers.*.self_attn.v_proj",
                                      "model.layers.*.self_attn.o_proj",
                                      "model.layers.*.mlp.gate_proj",
                                      "model.layers.*.mlp.up_proj",
                                      "model.layers.*.mlp.down_proj"};
enum { WEIGHTS = sizeof weights / sizeof *weights, OUTPUTS = sizeof outputs / sizeof *outputs };

static void put(fsdp_shard_rule *rule, int dim, const char *axis) {
  fsdp_rule_dim *d = &rule->dim[dim];
  snprintf(d->axes[d->count++], sizeof d->axes[0], "%s", axis);
}

static fsdp_shard_rule rule_of(const char *name, int dims) {
  fsdp_shard_rule rule = {.output = -1, .dims = dims, .place = "drawn"};
  snprintf(rule.name, sizeof rule.name, "%s", name);
  return rule;
}

// What several weights of one product have in common, by the weight's index.
static const int products[WEIGHTS] = {0, 0, 0, 1, 2, 2, 3, 4, 5};

// Mostly as products alternate between columns and rows, sometimes anything.
static fsdp_shard_rule draw_weight(random_source *random, int index, const int *cuts) {
  fsdp_shard_rule rule = rule_of(weights[index], 2);
  int usual = index == 3 || index == 6, cut = cuts[products[index]];
  int dim = cut < 4 ? usual : cut == 4 ? !usual : -1;
  if (dim >= 0) put(&rule, dim, FSDP_AXIS_TENSOR);
  if (random_int(random, 0, 1)) put(&rule, dim >= 0 ? !dim : 0, FSDP_AXIS_FSDP);
  return rule;
}

static fsdp_shard_rule draw_output(random_source *random, int index) {
  fsdp_shard_rule rule = rule_of(outputs[index], 3);
  put(&rule, 0, FSDP_AXIS_FSDP);
  put(&rule, 1, FSDP_AXIS_CONTEXT);
  int cut = random_int(random, 0, 2);
  if (cut > 0) put(&rule, cut, FSDP_AXIS_TENSOR);
  return rule;
}

// Each weight has a rule, or, of `partial` draws, about every second one.
static int draw_rules(random_source *random, bool partial, fsdp_shard_rule *rules) {
  int count = 0;
  rules[count] = rule_of("input", 2);
  put(&rules[count], 0, FSDP_AXIS_FSDP);
  put(&rules[count++], 1, FSDP_AXIS_CONTEXT);
  int cuts[6];
  for (int i = 0; i < 6; i++) cuts[i] = random_int(random, 0, 6);
  for (int w = 0; w < WEIGHTS; w++)
    if (!partial || random_int(random, 0, 1)) rules[count++] = draw_weight(random, w, cuts);
  for (int o = 0; o < OUTPUTS; o++)
    if (random_int(random, 0, 3) == 0) rules[count++] = draw_output(random, o);
  return count;
}

static void describe(const harness_config *config, char *out, size_t bytes) {
  const fsdp_sharding *sharding = config->plan.sharding;
  char mesh[FSDP_MESH_TEXT_BYTES];
  size_t used = (size_t)snprintf(out, bytes, "%s", fsdp_mesh_print(&config->plan.mesh, ",", mesh));
  for (int r = 0; r < sharding->rule_count && used < bytes; r++) {
    const fsdp_shard_rule *rule = &sharding->rules[r];
    used += (size_t)snprintf(out + used, bytes - used, "; %s", rule->name);
    for (int d = 0; d < rule->dims && used < bytes; d++) {
      used += (size_t)snprintf(out + used, bytes - used, d ? ", " : ": ");
      for (int a = 0; a < rule->dim[d].count && used < bytes; a++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%s", a ? "+" : "", rule->dim[d].axes[a]);
    }
  }
}

static bool near(double found, double expected) {
  return fabs(found - expected) <= 1e-5 * fabs(expected);
}

static void compare(const char *run, const harness_result *mine, const harness_result *reference) {
  char message[256];
  if (mine->failure[0]) fail_msg("%s: %s", run, mine->failure);
  for (int s = 0; s < STEPS; s++)
    if (!near((double)mine->loss[s], (double)reference->loss[s]) ||
        !near((double)mine->grad_norm[s], (double)reference->grad_norm[s]))
      fail_msg("%s: step %d: loss %.8g for %.8g, norm %.8g for %.8g", run, s, (double)mine->loss[s],
               (double)reference->loss[s], (double)mine->grad_norm[s], (double)reference->grad_norm[s]);
  for (int p = 0; p < mine->param_count; p++) {
    double gradient = harness_difference(&mine->gradients[p], &reference->gradients[p]);
    double value = harness_difference(&mine->parameters[p], &reference->parameters[p]);
    if (!(gradient <= 1e-5 && value <= 1e-4))
      fail_msg("%s: %s: gradient differs by %.2g, value by %.2g", run, mine->parameters[p].name, gradient,
               value);
  }
  if (!harness_memory_as_planned(mine, message, sizeof message)) fail_msg("%s: %s", run, message);
}

static harness_config base(int fsdp, int tensor, int context) {
  harness_config config = {
      .plan = harness_small_plan(fsdp), .steps = STEPS, .lr = 3e-4f, .seed = 7, .spread = 0.05f};
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, tensor);
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_CONTEXT, context);
  config.plan.batch = GLOBAL_BATCH / fsdp;
  config.plan.seq = 9;
  config.plan.adam_eps = 1e-5f;
  return config;
}

// What comes of the draws. A weight without a rule is placed by propagation.
static void try_rules(const char *test, bool partial) {
  harness_config plain = base(1, 1, 1);
  harness_result *reference = harness_train(&plain);
  assert_string_equal(reference->failure, "");
  int count = test_draws(120, 12), trained = 0, refused = 0, completed = 0;
  for (int n = cases_begin(count); cases_run(test, n); n++) {
    random_source random = {.seed = (partial ? 9000000 : 8000000) + (uint64_t)n};
    fsdp_shard_rule rules[RULES_MAX];
    fsdp_sharding sharding = {.rules = rules, .rule_count = draw_rules(&random, partial, rules)};
    int context = random_int(&random, 0, 2) == 0 ? 2 : 1;
    harness_config config = base(random_int(&random, 1, 2), random_int(&random, 2, 3), context);
    config.plan.sharding = &sharding;
    config.plan.poison = random_int(&random, 0, 1);
    if (random_int(&random, 0, 2) == 0) config.plan.saving = fsdp_saving_of_blocks();
    char run[4096];
    describe(&config, run, sizeof run);
    fsdp_plan *plan;
    fsdp_error error;
    fsdp_status status = fsdp_plan_create(&config.plan, &plan, &error);
    if (status) {
      assert_true(status == FSDP_ERR_INPUT || (partial && status == FSDP_ERR_OPTION));
      assert_true(strlen(error.message) > 20);
      if (partial && getenv("FSDP_TEST_DRAWS")) print_message("%s: %s\n", run, error.message);
      refused++;
      continue;
    }
    completed += plan->propagation != NULL;
    fsdp_plan_destroy(plan);
    harness_result *result = harness_train(&config);
    compare(run, result, reference);
    harness_free(result);
    trained++;
  }
  print_message("%d draws train as one rank does, %d of them completed; %d are refused\n", trained, completed,
                refused);
  harness_free(reference);
}

static void test_random_rules(void **state) {
  (void)state;
  try_rules(__func__, false);
}

static void test_partial_rules(void **state) {
  (void)state;
  try_rules(__func__, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_rules),
                                     cmocka_unit_test(test_partial_rules)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
