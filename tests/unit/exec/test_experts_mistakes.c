// What other systems got wrong in training models with routed experts, each by name: Transformers, Megatron,
// Automodel, DeepSpeed, verl, torchtitan. tests/unit/kernels/test_kernels_experts.c and
// test_kernels_router_losses.c have two more, of single kernels.
#include "models/model.h"
#include "runtime/base/check.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_of(const harness_tensor *tensor, const char *end) {
  const size_t length = strlen(tensor->name), tail = strlen(end);
  return length >= tail && !strcmp(tensor->name + length - tail, end);
}

// Two sequences, over and over: every rank and every micro-batch of two sequences has the same rows.
static int32_t *repeated_sequences(void) {
  enum { SEQUENCES = 64, T = 12 };
  int32_t *tokens = calloc((size_t)SEQUENCES * T, sizeof *tokens);
  for (int i = 0; i < SEQUENCES * T; i++) tokens[i] = i % (2 * T) * 37 % 101;
  return tokens;
}

// The auxiliary loss was multiplied by the ranks and not divided by the micro-batches, or had no gradient.
// Where all ranks and micro-batches have the same rows, each of its definitions is what one rank has of one
// micro-batch.
TEST(test_auxiliary_loss_counts_once) {
  static const struct {
    const char *mesh;
    int micro_batches;
    fsdp_router_aux kind;
    fsdp_accumulate accumulate;
  } runs[] = {
      {"fsdp=3", 1, FSDP_ROUTER_AUX_MICRO, FSDP_ACCUMULATE_REDUCE},
      {"fsdp=3", 1, FSDP_ROUTER_AUX_RANK, FSDP_ACCUMULATE_REDUCE},
      {"expert=2", 2, FSDP_ROUTER_AUX_RANK, FSDP_ACCUMULATE_LOCAL},
      {"fsdp=2,expert=2", 3, FSDP_ROUTER_AUX_MICRO, FSDP_ACCUMULATE_REDUCE},
      {"fsdp=2", 3, FSDP_ROUTER_AUX_MICRO, FSDP_ACCUMULATE_LOCAL},
      {"expert=2,tensor=2", 1, FSDP_ROUTER_AUX_MICRO, FSDP_ACCUMULATE_REDUCE},
      {"context=2,expert=2", 2, FSDP_ROUTER_AUX_MICRO, FSDP_ACCUMULATE_REDUCE},
  };
  int32_t *tokens = repeated_sequences();
  fsdp_plan_config plan = harness_routed_plan("fsdp=1");
  plan.evaluation = false;
  harness_result *without = harness_train_same(&plan, tokens);
  plan.model.router_aux_coef = 0.5;
  harness_result *alone = harness_train_same(&plan, tokens);
  // Half of e * sum(f * P), which is k where experts have alike.
  assert_true(alone->loss[0] - without->loss[0] > 0.9f && alone->loss[0] - without->loss[0] < 2.5f);
  for (int p = 0; p < alone->param_count; p++)
    if (is_of(&alone->gradients[p], "mlp.gate.weight"))
      assert_true(harness_difference(&alone->gradients[p], &without->gradients[p]) > 1e-2);
  for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
    fsdp_plan_config config = harness_routed_plan(runs[r].mesh);
    config.evaluation = false;
    config.model.router_aux_coef = 0.5, config.model.router_aux = runs[r].kind;
    config.micro_batches = runs[r].micro_batches, config.accumulate = runs[r].accumulate;
    harness_result *mine = harness_train_same(&config, tokens);
    assert_string_equal(mine->failure, "");
    assert_true(harness_near((double)mine->loss[0], (double)alone->loss[0], 1e-5));
    assert_true(harness_near((double)mine->grad_norm[0], (double)alone->grad_norm[0], 1e-5));
    for (int p = 0; p < mine->param_count; p++)
      if (harness_norm(&alone->gradients[p]) > 1e-3 * (double)alone->grad_norm[0])
        assert_true(harness_difference(&mine->gradients[p], &alone->gradients[p]) < 2e-5);
    harness_free(mine);
  }
  harness_free(alone);
  harness_free(without);
  free(tokens);
}

// The router's gradient under an expert axis lacked the slots that other ranks' experts have, was NaN from
// the slots that were masked, or was missing, as what it weighs by was gathered without a gradient.
TEST(test_router_has_all_slots) {
  const char *const meshes[] = {"expert=2", "expert=3", "fsdp=2,expert=2", "expert=2,tensor=2"};
  for (int m = 0; m < 4; m++) {
    const fsdp_plan_config plan = harness_routed_plan(meshes[m]);
    harness_expect_same(&plan, NULL);
    harness_result *mine = harness_train_same(&plan, NULL);
    int routers = 0;
    for (int p = 0; p < mine->param_count; p++) {
      if (!is_of(&mine->gradients[p], "mlp.gate.weight")) continue;
      assert_true(harness_norm(&mine->gradients[p]) > 1e-3 * (double)mine->grad_norm[0]); // NaN is not
      routers++;
    }
    assert_int_equal(routers, plan.model.num_layers);
    harness_free(mine);
  }
}

// Gradients of experts were divided by the ranks that share experts, or clipping's norm left them out: the
// norm is that of all gradients, each element once.
TEST(test_experts_count_once) {
  const char *const meshes[] = {"expert=4", "data=2,expert=2", "fsdp=2,expert=2,tensor=2"};
  for (int m = 0; m < 3; m++) {
    fsdp_plan_config plan = harness_routed_plan(meshes[m]);
    if (m == 1) plan.strategy = FSDP_HYBRID;
    harness_expect_same(&plan, NULL);
    harness_result *mine = harness_train_same(&plan, NULL);
    double squares = 0;
    for (int p = 0; p < mine->param_count; p++) squares += pow(harness_norm(&mine->gradients[p]), 2);
    assert_true(harness_near((double)mine->grad_norm[0], sqrt(squares), 1e-5));
    harness_free(mine);
  }
}

// One token everywhere, so that all rows are sent to the same experts.
static int32_t *equal_tokens(int32_t first, int32_t second, int64_t step_tokens) {
  int32_t *tokens = calloc((size_t)(HARNESS_SAME_STEPS * step_tokens), sizeof *tokens);
  for (int64_t i = 0; i < HARNESS_SAME_STEPS * step_tokens; i++) tokens[i] = i < step_tokens ? first : second;
  return tokens;
}

// A run hung where a rank had no row for an expert: here experts have no row, on some ranks none does, and
// one rank has all that it can be sent.
TEST(test_ranks_without_rows) {
  int32_t *tokens = equal_tokens(3, 3, 384);
  for (int slots = 1; slots <= 5; slots += 2) {
    fsdp_plan_config plan = harness_routed_plan("fsdp=2,expert=3");
    plan.model.expert_slots = slots;
    plan.expert_capacity = 0.5; // so that every wave has rows on that rank
    plan.evaluation = false;
    harness_expect_same(&plan, tokens);
  }
  free(tokens);
}

// All rows choose all experts of one rank, which is sent as much as there can be: whatever room was planned
// for, all of it is computed, in waves that reach exactly there.
TEST(test_all_rows_to_one_rank) {
  static const double capacities[] = {0, 0.25, 0.5, 1, 2, 4};
  int32_t *tokens = equal_tokens(3, 3, 384);
  for (int ranks = 2; ranks <= 4; ranks += 2) {
    char mesh[32];
    snprintf(mesh, sizeof mesh, "expert=%d", ranks);
    for (int c = 0; c < 6; c++) {
      fsdp_plan_config plan = harness_grouped_plan(mesh, ranks, 3 - ranks / 4);
      plan.expert_capacity = capacities[c];
      plan.evaluation = false;
      harness_expect_same(&plan, tokens);
    }
    const fsdp_plan_config plan = harness_grouped_plan(mesh, ranks, 3 - ranks / 4);
    const int64_t each = plan.model.expert_slots, all = ranks * plan.batch * plan.seq;
    harness_result *mine = harness_train_same(&plan, tokens);
    for (int layer = 0; layer < 2; layer++) {
      int64_t rows[8];
      int chosen = 0;
      harness_rows_of_experts(mine, layer, rows);
      for (int e = 0; e < ranks * each; e++) {
        assert_true(rows[e] == 0 || rows[e] == all);
        assert_int_equal(rows[e], rows[e / each * each]); // of one rank
        chosen += rows[e] == all;
      }
      assert_int_equal(chosen, each);
    }
    harness_free(mine);
  }
  free(tokens);
}

static harness_result *train_steps(const fsdp_plan_config *plan, const int32_t *tokens, int steps, float lr) {
  const harness_config config = {.plan = *plan,
                                 .steps = steps,
                                 .lr = lr,
                                 .seed = 7,
                                 .spread = 0.05f,
                                 .tokens = tokens,
                                 .targets = tokens,
                                 .gradient_step = steps - 1};
  harness_result *result = harness_train(&config);
  assert_string_equal(result->failure, "");
  return result;
}

// Compares an expert of `numel` elements from `first` on after two steps, in the second of which it had no
// row, with AdamW's formula for a gradient of zero: the moments of the step before, if it had rows there, and
// decay. Whether it had.
static bool check_without_rows(const fsdp_plan_config *plan, harness_result *const runs[3], int param,
                               int64_t first, int64_t numel, double lr) {
  const double b1 = plan->hyper.beta1, b2 = plan->hyper.beta2, decay = lr * (double)plan->hyper.weight_decay;
  const double moved = lr * b1 / (1 + b1) / sqrt(b2 / (1 + b2)); // where the gradient is far above epsilon
  const float *start = runs[0]->parameters[param].values + first;
  const float *one = runs[1]->parameters[param].values + first;
  const float *two = runs[2]->parameters[param].values + first;
  const float *gradient = runs[1]->gradients[param].values + first;
  bool had_rows = false;
  for (int64_t i = 0; i < numel; i++) had_rows |= gradient[i] != 0;
  for (int64_t i = 0; i < numel; i++) {
    const double g = (double)gradient[i], step = g > 0 ? moved : -moved;
    if (!had_rows) assert_true(fabs((double)one[i] - (double)start[i] * (1 - decay)) < 2e-8);
    const double expected = (double)one[i] * (1 - decay) - (had_rows ? step : 0);
    if (!had_rows || fabs(g) > 1e-2) assert_true(fabs((double)two[i] - expected) < 2e-8 + 1e-3 * moved);
  }
  return had_rows;
}

// Experts that had no row had no gradient either, and skipped decay and momentum.
TEST(test_experts_without_rows_are_updated) {
  const float lr = 3e-4f;
  int32_t *tokens = equal_tokens(3, 50, 96);
  fsdp_plan_config plan = harness_routed_plan("fsdp=2,expert=2");
  plan.evaluation = false;
  plan.grad_clip = 0;
  plan.model.experts = 7, plan.model.expert_slots = 1;
  harness_result *runs[3] = {train_steps(&plan, tokens, 1, 0), train_steps(&plan, tokens, 1, lr),
                             train_steps(&plan, tokens, 2, lr)};
  int checked[2] = {0}; // without rows in both steps, in the second alone
  for (int p = 0; p < runs[0]->param_count; p++) {
    const harness_tensor *gradient = &runs[2]->gradients[p];
    if (!is_of(gradient, "experts.down_proj")) continue;
    const int64_t numel = gradient->numel / plan.model.experts;
    for (int64_t e = 0; e < plan.model.experts; e++) {
      bool has_rows = false;
      for (int64_t i = 0; i < numel; i++) has_rows |= gradient->values[e * numel + i] != 0;
      if (!has_rows) checked[check_without_rows(&plan, runs, p, e * numel, numel, (double)lr)]++;
    }
  }
  assert_true(checked[0] >= 5 && checked[1] >= 1);
  for (int r = 0; r < 3; r++) harness_free(runs[r]);
  free(tokens);
}

// Masks of padding were taken from another group of ranks than the rows: sequences that the mesh pads, beside
// those that end early, with and without waves, and with losses where these are not refused.
TEST(test_padded_sequences) {
  const char *const meshes[] = {"context=2", "expert=2,context=3", "expert=2,tensor=2"};
  for (int m = 0; m < 3; m++) {
    fsdp_plan_config plan = harness_routed_plan(meshes[m]);
    plan.seq = 11;
    plan.sequence_parallel = true;
    plan.expert_capacity = m ? 0.5 : 0;
    harness_expect_same(&plan, NULL);
    plan.model.router_aux_coef = 0.3;
    plan.model.router_z_coef = 0.01;
    plan.sequence_parallel = false;
    harness_expect_same(&plan, NULL);
  }
}

// Recomputing a block routed otherwise than its forward had, or saved another number of tensors: choices are
// saved whatever is recomputed.
static void check_routes_once(const char *mesh) {
  fsdp_plan_config config = harness_routed_plan(mesh);
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
  harness_expect_same(&config, NULL);
}

TEST(test_routing_is_never_recomputed) {
  check_routes_once("expert=2");
  check_routes_once("expert=2,tensor=2");
}

// Counts of rows were doubled by recomputation: all slots of all rows count once, in each layer.
TEST(test_rows_count_once_if_recomputed) {
  const char *const meshes[] = {"fsdp=1", "expert=2", "fsdp=2,context=2"};
  for (int m = 0; m < 3; m++) {
    fsdp_plan_config plan = harness_grouped_plan(meshes[m], 3, 2);
    plan.micro_batches = 2;
    plan.saving = fsdp_saving_of_blocks();
    harness_result *mine = harness_train_same(&plan, NULL);
    assert_string_equal(mine->failure, "");
    int part;
    const int64_t parts = fsdp_plan_batch_part(mine->plan, 0, &part);
    for (int layer = 0; layer < 2; layer++) {
      int64_t rows[6], sum = 0;
      harness_rows_of_experts(mine, layer, rows);
      for (int e = 0; e < 6; e++) sum += rows[e];
      assert_int_equal(sum, parts * 2 * plan.batch * plan.seq * plan.model.expert_slots);
      for (int e = 0; e < 6; e += 2) assert_int_equal(rows[e], rows[e + 1]); // of one group
    }
    harness_free(mine);
  }
}
