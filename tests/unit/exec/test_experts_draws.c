// Routed experts on any mesh: random models of the families that have them, on data, fsdp, expert, tensor and
// context, train as one rank does, with memory as planned; and what other systems got wrong, each by name.
#include "models/family.h"
#include "models/model.h"
#include "runtime/base/check.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/random_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Fails the test with the plan's description unless it trains as one rank does.
static void expect_same(const fsdp_plan_config *config, const int32_t *tokens) {
  fsdp_plan *plan;
  fsdp_error error = {0};
  char run[1024];
  describe_plan_config(config, run, sizeof run);
  if (getenv("FSDP_TEST_CASE")) print_message("%s\n", run);
  if (fsdp_plan_create(config, &plan, &error)) fail_msg("%s: %s", run, error.message);
  harness_result *reference = harness_train_alone(plan, tokens), *mine = harness_train_same(config, tokens);
  const char *difference = harness_same_difference(mine, reference);
  if (difference) {
    print_message("%s E=%lld k=%lld\n", run, (long long)config->model.experts,
                  (long long)config->model.expert_slots);
    fail_msg("%s", difference);
  }
  harness_free(mine);
  harness_free(reference);
  fsdp_plan_destroy(plan);
}

static void test_random_meshes(void **state) {
  (void)state;
  const int count = test_draws(150, 10);
  for (int n = cases_begin(count); cases_run(__func__, n); n++) {
    random_source random = {.seed = 40000000 + (uint64_t)n};
    const fsdp_plan_config plan = random_routed_config(&random);
    expect_same(&plan, NULL);
  }
}

// ---- What other systems got wrong

static fsdp_plan_config small_plan(const char *mesh) {
  fsdp_plan_config plan = harness_small_plan(1);
  plan.model.family = family_of_preset("tiny-qwen3-moe");
  plan.model.experts = 5, plan.model.expert_slots = 2, plan.model.expert_size = 11;
  plan.batch = 2;
  plan.evaluation = true;
  plan.grad_clip = 1e-2f; // always clips: parameters depend on the norm
  plan.mesh = (fsdp_mesh){0};
  for (const char *at = mesh; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] != 0)) {
    char name[FSDP_AXIS_NAME_BYTES];
    const size_t length = strcspn(at, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    fsdp_mesh_add(&plan.mesh, name, atoi(at + length + 1));
  }
  fsdp_mesh_complete(&plan.mesh);
  return plan;
}

// The router's gradient under an expert axis lacked the slots that other ranks' experts have.
static void test_router_has_all_slots(void **state) {
  (void)state;
  const char *const meshes[] = {"expert=2", "expert=3", "fsdp=2,expert=2", "expert=2,tensor=2"};
  for (int m = 0; m < 4; m++) {
    const fsdp_plan_config plan = small_plan(meshes[m]);
    expect_same(&plan, NULL);
  }
}

// Of all parameters after two steps, which are clipped: the experts' gradients are sums over all rows, not
// divided by the ranks that share experts, and each counts once in the norm, also with tensor.
static void test_experts_count_once(void **state) {
  (void)state;
  const char *const meshes[] = {"expert=4", "data=2,expert=2", "fsdp=2,expert=2,tensor=2"};
  for (int m = 0; m < 3; m++) {
    fsdp_plan_config plan = small_plan(meshes[m]), alone = small_plan("fsdp=1");
    if (m == 1) plan.strategy = FSDP_HYBRID;
    alone.batch *= 4;
    harness_result *mine = harness_train_same(&plan, NULL), *reference = harness_train_same(&alone, NULL);
    assert_string_equal(mine->failure, "");
    for (int p = 0; p < mine->param_count; p++)
      assert_true(harness_difference(&mine->parameters[p], &reference->parameters[p]) < 1e-5);
    harness_free(mine);
    harness_free(reference);
  }
}

// Every row is of one token, so all are sent to the same experts: others get no row, on some ranks none does,
// and one rank has all that it can be sent. Nothing waits for a rank without rows, and experts without rows
// decay as any parameter does.
static void test_ranks_without_rows(void **state) {
  (void)state;
  enum { SEQUENCES = 64, TOKENS = SEQUENCES * 12 };
  int32_t *tokens = calloc(TOKENS, sizeof *tokens);
  for (int i = 0; i < TOKENS; i++) tokens[i] = 3;
  for (int slots = 1; slots <= 5; slots += 2) {
    fsdp_plan_config plan = small_plan("fsdp=2,expert=3");
    plan.model.expert_slots = slots;
    plan.expert_capacity = 0.5; // so that every wave has rows on that rank
    plan.evaluation = false;
    expect_same(&plan, tokens);
  }
  free(tokens);
}

// What is dropped goes by the row's position and the column, whichever rank has the row and whichever wave
// its experts are in.
static void test_dropout(void **state) {
  (void)state;
  const char *const meshes[] = {"expert=2", "fsdp=2,expert=3", "context=2", "expert=2,tensor=2"};
  for (int m = 0; m < 4; m++) {
    fsdp_plan_config plan = small_plan(meshes[m]);
    plan.dropout = (fsdp_dropout){.embedding = 0.1f, .attention = 0.3f, .residual = 0.2f};
    if (m == 1) plan.expert_capacity = 0.5;
    if (m == 2) plan.saving = fsdp_saving_of_blocks();
    expect_same(&plan, NULL);
    fsdp_plan_config without = plan;
    without.dropout = (fsdp_dropout){0};
    harness_result *dropped = harness_train_same(&plan, NULL), *whole = harness_train_same(&without, NULL);
    assert_true(dropped->loss[0] != whole->loss[0]);
    harness_free(dropped);
    harness_free(whole);
  }
}

// Recomputing a block routed otherwise than its forward had: choices are saved whatever is recomputed.
static void check_routes_once(const char *mesh) {
  fsdp_plan_config config = small_plan(mesh);
  config.sequence_parallel = true; // where tensor cuts rows, choices are gathered twice
  config.saving = fsdp_saving_of_blocks();
  fsdp_plan *plan = plan_of_config(&config);
  int routes = 0;
  for (int i = 0; i < plan->program->instr_count; i++) {
    const fsdp_instr *instr = &plan->program->instrs[i];
    if (instr->kind != FSDP_INSTR_OP) continue;
    const char *name = fsdp_op_name(instr->op);
    routes += !strcmp(name, "route");
  }
  const int layers = (int)config.model.num_layers;
  // Of each section that has a forward: one a layer.
  int sections = 0;
  for (int i = 0; i < plan->program->instr_count; i++)
    sections += plan->program->instrs[i].kind == FSDP_INSTR_OP &&
                !strcmp(fsdp_op_name(plan->program->instrs[i].op), "embedding");
  assert_int_equal(routes, layers * sections);
  fsdp_plan_destroy(plan);
  expect_same(&config, NULL);
}

static void test_routing_is_never_recomputed(void **state) {
  (void)state;
  check_routes_once("expert=2");
  check_routes_once("expert=2,tensor=2");
}

// Two runs are equal to the bit, on a mesh with every axis.
static void test_runs_repeat(void **state) {
  (void)state;
  const fsdp_plan_config plan = small_plan("fsdp=2,context=2,expert=2,tensor=2");
  harness_result *first = harness_train_same(&plan, NULL), *second = harness_train_same(&plan, NULL);
  assert_string_equal(first->failure, "");
  for (int p = 0; p < first->param_count; p++)
    assert_memory_equal(first->parameters[p].values, second->parameters[p].values,
                        (size_t)first->parameters[p].numel * sizeof(float));
  harness_free(first);
  harness_free(second);
}

// Rows beyond the planned capacity take waves of their own, at most three, which make room for all there may
// be; what they make is recomputed, so that another layer needs no more memory for them.
static void test_waves_hold_all(void **state) {
  (void)state;
  for (int c = 1; c <= 8; c++) {
    fsdp_plan_config config = small_plan("expert=4");
    config.model.experts = 8;
    config.expert_capacity = 0.5 * c;
    fsdp_plan *plan = plan_of_config(&config);
    int64_t next = 0, waves = 0;
    for (int n = 0; n < plan->graph->forward_count; n++) {
      const fsdp_node *node = &plan->graph->forward[n];
      if (node->block != 0 || strcmp(fsdp_op_name(node->kind), "expert_up") != 0) continue;
      assert_int_equal(node->attrs.first_routed, next);
      next += fsdp_op_letter_size(&node->attrs, 'u', 0);
      if (waves++ == 0) assert_int_equal(next, c * config.batch * config.seq); // of 2 slots a row
    }
    // Twice the experts of a row are as many as a rank has: of all ranks' rows each may send two.
    assert_int_equal(next, 4 * config.batch * config.seq * 2);
    assert_true(waves <= 4 && (c < 8) == (waves > 1));
    fsdp_plan_destroy(plan);
  }
}

// The hash of a program, and what it needs, do not depend on the data: there is one plan. Rows of a rank's
// experts are the most that they can be sent, and what is moved is in the closed form.
static void test_closed_forms(void **state) {
  (void)state;
  for (int W = 1; W <= 4; W++) {
    char mesh[32];
    snprintf(mesh, sizeof mesh, "expert=%d", W);
    fsdp_plan_config config = small_plan(mesh);
    config.evaluation = false;
    fsdp_plan *plan = plan_of_config(&config);
    const fsdp_op_attrs *attrs = NULL;
    for (int n = 0; n < plan->graph->forward_count; n++)
      if (!strcmp(fsdp_op_name(plan->graph->forward[n].kind), "expert_up"))
        attrs = &plan->graph->forward[n].attrs;
    assert_non_null(attrs);
    const int64_t T = config.batch * config.seq, E = config.model.experts, k = config.model.expert_slots;
    const int64_t held = (E + W - 1) / W;
    assert_int_equal(fsdp_op_letter_size(attrs, 'u', 0), W * T * (k < held ? k : held));
    fsdp_plan_destroy(plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_meshes),
      cmocka_unit_test(test_router_has_all_slots),
      cmocka_unit_test(test_experts_count_once),
      cmocka_unit_test(test_ranks_without_rows),
      cmocka_unit_test(test_dropout),
      cmocka_unit_test(test_routing_is_never_recomputed),
      cmocka_unit_test(test_runs_repeat),
      cmocka_unit_test(test_waves_hold_all),
      cmocka_unit_test(test_closed_forms),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
