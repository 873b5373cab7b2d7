// Routed experts on any mesh: random models of the families that have them, on data, fsdp, expert, tensor and
// context, train as one rank does, with memory as planned; dropout, waves, and the most rows there can be.
#include "models/model.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <string.h>

TEST(test_random_meshes) {
  const int count = test_draws(150, 10);
  for (int n = cases_begin(count); cases_run(__func__, n); n++) {
    random_source random = {.seed = 40000000 + (uint64_t)n};
    const fsdp_plan_config plan = random_routed_config(&random);
    harness_expect_same(&plan, NULL);
  }
}

// What is dropped goes by the row's position and the column, whichever rank has the row and whichever wave
// its experts are in.
TEST(test_dropout) {
  const char *const meshes[] = {"expert=2", "fsdp=2,expert=3", "context=2", "expert=2,tensor=2"};
  for (int m = 0; m < 4; m++) {
    fsdp_plan_config plan = harness_routed_plan(meshes[m]);
    plan.dropout = (fsdp_dropout){.embedding = 0.1f, .attention = 0.3f, .residual = 0.2f};
    if (m == 1) plan.expert_capacity = 0.5;
    if (m == 2) plan.saving = fsdp_saving_of_blocks();
    harness_expect_same(&plan, NULL);
    fsdp_plan_config without = plan;
    without.dropout = (fsdp_dropout){0};
    harness_result *dropped = harness_train_same(&plan, NULL), *whole = harness_train_same(&without, NULL);
    assert_true(dropped->loss[0] != whole->loss[0]);
    harness_free(dropped);
    harness_free(whole);
  }
}

// Two runs are equal to the bit, on a mesh with every axis, with further waves and losses of the router.
TEST(test_runs_repeat) {
  fsdp_plan_config plan = harness_routed_plan("fsdp=2,context=2,expert=2,tensor=2");
  plan.expert_capacity = 0.5;
  plan.model.router_aux_coef = 0.1;
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
TEST(test_waves_hold_all) {
  for (int c = 1; c <= 8; c++) {
    fsdp_plan_config config = harness_routed_plan("expert=4");
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
TEST(test_closed_forms) {
  for (int W = 1; W <= 4; W++) {
    char mesh[32];
    snprintf(mesh, sizeof mesh, "expert=%d", W);
    fsdp_plan_config config = harness_routed_plan(mesh);
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
