// Blocks of experts (runtime/plan/mesh/expert_blocks.h): the numbers are those without blocks, to the bit; a
// unit has a block's weights in the closed form; and no more than one block and those prefetched are gathered
// at a time, whatever is recomputed.
#include "models/model.h"
#include "runtime/base/size.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

enum { E = 5 }; // of harness_routed_plan: neither 2 nor 3 nor 4 blocks have as many each

static void expect_equal(const char *what, const harness_tensor *a, const harness_tensor *b, int count) {
  for (int p = 0; p < count; p++)
    if (memcmp(a[p].values, b[p].values, (size_t)a[p].numel * sizeof(float)) != 0)
      fail_msg("%s of %s differs", what, a[p].name);
}

// Experts are summed in the same order whatever the blocks, so one rank's losses, gradients and weights are
// the same. On several ranks shards of other sizes are reduced in the same order of ranks.
TEST(test_numbers_are_the_same) {
  static const char *const meshes[] = {"fsdp=1", "fsdp=2", "fsdp=2,expert=2", "expert=2,tensor=2"};
  for (int m = 0; m < 4; m++) {
    fsdp_plan_config plan = harness_routed_plan(meshes[m]);
    plan.grad_clip = 0; // a norm is a sum over units
    if (m == 2) plan.expert_capacity = 0.5;
    harness_result *whole = harness_train_same(&plan, NULL);
    assert_string_equal(whole->failure, "");
    const int held = m < 2 ? E : (E + 1) / 2;
    for (plan.expert_blocks = 2; plan.expert_blocks <= held; plan.expert_blocks++)
      for (int recomputes = 0; recomputes < 2; recomputes++) {
        fsdp_plan_config own = plan;
        if (recomputes) own.saving = fsdp_saving_of_blocks();
        harness_result *blocks = harness_train_same(&own, NULL);
        assert_string_equal(blocks->failure, "");
        assert_int_equal(blocks->param_count, whole->param_count);
        assert_memory_equal(blocks->loss, whole->loss, (size_t)whole->steps * sizeof *whole->loss);
        expect_equal("the gradient", blocks->gradients, whole->gradients, whole->param_count);
        expect_equal("the value", blocks->parameters, whole->parameters, whole->param_count);
        harness_free(blocks);
      }
    harness_free(whole);
  }
}

// Of layer 0 in order: what its unit has beside experts, and each block of E / N experts, rounded down or up:
// 3 C I weights an expert, each of two parameters at a multiple of 16, and in all of 16 for each shard.
TEST(test_units) {
  for (int W = 1; W <= 2; W++)
    for (int N = 2; N <= 5 / W; N++) {
      fsdp_plan_config config = harness_routed_plan(W == 1 ? "fsdp=3" : "fsdp=3,expert=2");
      config.expert_blocks = N;
      fsdp_plan *plan = plan_of_config(&config);
      const int64_t C = config.model.hidden_size, I = config.model.expert_size, held = (E + W - 1) / W;
      int blocks = 0;
      int64_t experts = 0, numel = 0;
      for (int u = 0; u < plan->units->count; u++) {
        const fsdp_unit *unit = &plan->units->units[u];
        numel += unit->numel;
        if (!unit->expert_block || !strstr(unit->path, "layers.0 ")) continue;
        const int64_t first = held * blocks / N, count = held * (blocks + 1) / N - first;
        assert_int_equal(unit->expert_block, ++blocks);
        const int64_t flat = fsdp_round_up(count * 2 * I * C, FSDP_UNIT_ALIGN_ELEMS) + count * I * C;
        assert_int_equal(unit->padded_numel, fsdp_round_up(flat, FSDP_UNIT_ALIGN_ELEMS * 3));
        // The last rank of two has one expert less than places.
        const int64_t real = W * count - (W == 2 && blocks == N);
        assert_int_equal(unit->numel, real * 3 * I * C);
        experts += real;
      }
      assert_int_equal(blocks, N);
      assert_int_equal(experts, E);
      int64_t all = 0;
      for (int p = 0; p < plan->graph->param_count; p++) all += plan->graph->params[p].numel;
      assert_int_equal(numel, all);
      fsdp_plan_destroy(plan);
    }
}

// The most blocks that are gathered at one place of the program.
static int most_gathered(const fsdp_plan *plan) {
  const fsdp_program *program = plan->program;
  int most = 0;
  for (int i = 0; i < program->instr_count; i++) {
    int now = 0;
    for (int t = 0; t < program->tensor_count; t++) {
      const fsdp_tensor *tensor = &program->tensors[t];
      now += tensor->category == FSDP_CATEGORY_GATHERED && tensor->unit >= 0 && tensor->begin <= i &&
             i <= tensor->end && plan->units->units[tensor->unit].expert_block > 0;
    }
    if (now > most) most = now;
  }
  return most;
}

TEST(test_few_are_gathered) {
  static const fsdp_saving savings[] = {
      {.count = 0},
      {.rules = {{.name = "block", .fate = FSDP_FATE_RECOMPUTE}}, .count = 1},
      {.rules = {{.name = "expert_up", .fate = FSDP_FATE_RECOMPUTE}}, .count = 1},
      {.rules = {{.name = "expert_swiglu", .fate = FSDP_FATE_RECOMPUTE}}, .count = 1},
      {.rules = {{.name = "block", .fate = FSDP_FATE_OFFLOAD}}, .count = 1},
  };
  for (int s = 0; s < 5; s++)
    for (int prefetch = 0; prefetch < 3; prefetch++) {
      fsdp_plan_config config = harness_routed_plan("fsdp=2");
      config.saving = savings[s];
      config.prefetch = prefetch;
      config.expert_blocks = E;
      fsdp_plan *plan = plan_of_config(&config);
      assert_true(plan->verified);
      const int most = most_gathered(plan);
      if (most < 1 || most > prefetch + 1)
        fail_msg("%d blocks are gathered with prefetch %d, saving %d", most, prefetch, s);
      fsdp_plan_destroy(plan);
    }
}

static void expect_refused(fsdp_plan_config config, const char *message) {
  fsdp_plan *plan = NULL;
  fsdp_error error = {0};
  assert_int_equal(fsdp_plan_create(&config, &plan, &error), FSDP_ERR_OPTION);
  if (!strstr(error.message, message)) fail_msg("'%s' lacks '%s'", error.message, message);
  fsdp_plan_destroy(plan);
}

TEST(test_contradictions) {
  fsdp_plan_config config = harness_routed_plan("fsdp=2");
  config.expert_blocks = E + 1;
  expect_refused(config,
                 "--expert-blocks 6: a rank has 5 of a layer's 5 experts, and a block has at least one");
  config = harness_routed_plan("expert=2");
  config.expert_blocks = 4;
  expect_refused(config, "--expert-blocks 4: a rank has 3 of a layer's 5 experts");
  config = harness_routed_plan("fsdp=2");
  config.expert_blocks = 2;
  config.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  expect_refused(config,
                 "--expert-blocks 2: by --wrap the unit of the whole model has the experts of several");
  config = harness_small_plan(2);
  config.expert_blocks = 2;
  expect_refused(config, "--expert-blocks 2: the model has no routed experts");
}
