// Dropout in training: one curve on any mesh, split into micro-batches, recomputed or offloaded, in rows of
// documents; none in an evaluation; and what a plan is without it.
#include "models/family.h"
#include "runtime/base/check.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES = 12, STEPS = 3 };

static const struct {
  const char *preset;
  int heads, kv_heads, hidden, intermediate, window;
  bool documents;
} models[] = {{"gpt2", 6, 6, 24, 40, 0, false},
              {"tiny", 4, 2, 32, 40, 0, true},
              {"mistral-7b", 6, 3, 36, 48, 5, false},
              {"qwen3-8b", 4, 2, 24, 40, 0, true}};
enum { MODELS = sizeof models / sizeof *models };

static const struct {
  int fsdp, tensor, context, micro_batches;
  bool sequence_parallel, recompute, offload;
} runs[] = {
    {2, 1, 1, 1, false, false, false}, {4, 1, 1, 1, false, true, false},  {6, 1, 1, 2, false, false, true},
    {1, 2, 1, 1, false, false, false}, {1, 2, 1, 4, true, true, false},   {1, 1, 2, 1, false, false, true},
    {1, 1, 1, 4, false, true, true},   {2, 2, 1, 1, true, false, false},  {1, 4, 1, 3, true, false, true},
    {1, 2, 3, 2, true, true, false},   {1, 3, 2, 1, false, false, false}, {3, 1, 1, 4, false, true, false}};
enum { RUNS = sizeof runs / sizeof *runs };

static harness_config config_of(int m) {
  harness_config config = {
      .plan = harness_small_plan(1), .steps = STEPS, .lr = 1e-3f, .seed = 7, .spread = 0.05f};
  fsdp_plan_config *plan = &config.plan;
  plan->model.family = family_of_preset(models[m].preset);
  plan->model.num_heads = models[m].heads;
  plan->model.num_kv_heads = models[m].kv_heads;
  plan->model.hidden_size = models[m].hidden;
  plan->model.intermediate_size = models[m].intermediate;
  plan->model.head_dim = models[m].hidden / models[m].heads;
  plan->model.vocab_size = 61;
  if (!plan->model.family->decoder) plan->model.rope_theta = 0; // GPT-2
  plan->model.window = models[m].window;
  plan->model.max_position_embeddings = 64;
  plan->seq = 13;
  plan->batch = SEQUENCES;
  plan->mesh = fsdp_mesh_of(1, 1);
  plan->micro_batches = 1;
  plan->documents = models[m].documents;
  plan->dropout = (fsdp_dropout){.embedding = 0.1f, .attention = 0.3f, .residual = 0.2f};
  return config;
}

static harness_config spread_over(harness_config config, int r) {
  fsdp_plan_config *plan = &config.plan;
  plan->mesh = (fsdp_mesh){0};
  fsdp_mesh_add(&plan->mesh, FSDP_AXIS_FSDP, runs[r].fsdp);
  fsdp_mesh_add(&plan->mesh, FSDP_AXIS_TENSOR, runs[r].tensor);
  fsdp_mesh_add(&plan->mesh, FSDP_AXIS_CONTEXT, runs[r].context);
  fsdp_mesh_complete(&plan->mesh);
  plan->sequence_parallel = runs[r].sequence_parallel;
  plan->micro_batches = runs[r].micro_batches;
  plan->batch = SEQUENCES / (runs[r].fsdp * runs[r].micro_batches);
  if (runs[r].recompute) plan->saving = fsdp_saving_of_blocks();
  plan->cpu_offload = runs[r].offload;
  return config;
}

static harness_result *train(const harness_config *config) {
  harness_result *result = harness_train(config);
  assert_string_equal(result->failure, "");
  return result;
}

// fp32 sums in another order, which AdamW's steps carry on.
static void expect_curve(const harness_result *found, const harness_result *expected, const char *run) {
  const double gradients = harness_difference(found->gradients, expected->gradients);
  for (int step = 0; step < STEPS; step++) {
    const double gap = fabs((double)found->loss[step] / (double)expected->loss[step] - 1);
    if (!(gap <= 1e-6)) fail_msg("%s: the loss of step %d differs by %.2g", run, step, gap);
  }
  if (!(gradients <= 1e-5)) fail_msg("%s: the gradients differ by %.2g", run, gradients);
}

TEST(test_one_curve) {
  for (int m = 0; m < MODELS; m++) {
    const harness_config one = config_of(m);
    harness_config without = one;
    without.plan.dropout = (fsdp_dropout){0};
    harness_result *expected = train(&one), *whole = train(&without);
    assert_true(fabs((double)expected->loss[0] / (double)whole->loss[0] - 1) > 1e-5); // something is dropped
    for (int r = m % test_stride(3); r < RUNS; r += test_stride(3)) {
      char name[128];
      const harness_config config = spread_over(one, r);
      snprintf(name, sizeof name, "%s, run %d on %d ranks", models[m].preset, r,
               fsdp_mesh_ranks(&config.plan.mesh));
      harness_result *found = train(&config);
      char message[256];
      expect_curve(found, expected, name);
      if (!harness_memory_as_planned(found, message, sizeof message)) fail_msg("%s: %s", name, message);
      harness_free(found);
    }
    harness_free(expected);
    harness_free(whole);
  }
}

// Each of the three drops something of its own, and steps drop different elements of the same batch.
TEST(test_rates) {
  const fsdp_dropout rates[] = {{0}, {.embedding = 0.2f}, {.attention = 0.2f}, {.residual = 0.2f}};
  int32_t tokens[2 * SEQUENCES * 13], targets[2 * SEQUENCES * 13];
  harness_config config = config_of(0);
  float loss[4][2];
  for (int i = 0; i < 2 * SEQUENCES * 13; i++) {
    tokens[i] = i % (SEQUENCES * 13) * 7 % 61;
    targets[i] = (tokens[i] + 7) % 61;
  }
  config.tokens = tokens, config.targets = targets;
  config.lr = 0;
  config.plan.hyper.weight_decay = 0;
  config.steps = 2;
  for (int i = 0; i < 4; i++) {
    config.plan.dropout = rates[i];
    harness_result *result = train(&config);
    for (int step = 0; step < 2; step++) loss[i][step] = result->loss[step];
    harness_free(result);
  }
  assert_true(loss[0][0] == loss[0][1]);
  for (int i = 1; i < 4; i++) {
    assert_true(loss[i][0] != loss[i][1]);
    for (int k = 0; k < i; k++) assert_true(loss[i][0] != loss[k][0]);
  }
}

// An evaluation drops nothing: it is that of the same weights without dropout.
TEST(test_evaluation) {
  for (int m = 0; m < MODELS; m += test_stride(3)) {
    harness_config config = config_of(m);
    float loss[2];
    config.lr = 0;
    config.plan.hyper.weight_decay = 0;
    config.steps = 1;
    config.evaluate = config.plan.evaluation = true;
    for (int drops = 0; drops < 2; drops++) {
      if (!drops)
        config.plan.dropout = (fsdp_dropout){0};
      else
        config.plan.dropout = config_of(m).plan.dropout;
      harness_result *result = train(&config);
      loss[drops] = result->evaluation_loss;
      harness_free(result);
    }
    assert_true(loss[0] == loss[1] && loss[0] > 0);
  }
}

// Without dropout a plan has nothing of it; with it, one input more.
TEST(test_plan) {
  fsdp_plan_config config = harness_small_plan(2);
  fsdp_plan *plans[2];
  fsdp_error error;
  for (int i = 0; i < 2; i++) {
    config.dropout.residual = i ? 0.1f : 0;
    assert_int_equal(fsdp_plan_create(&config, &plans[i], &error), FSDP_OK);
  }
  assert_int_equal(plans[0]->graph->inputs[FSDP_INPUT_DRAWS], -1);
  const fsdp_value *draws = &plans[1]->graph->values[plans[1]->graph->inputs[FSDP_INPUT_DRAWS]];
  assert_int_equal(draws->local_numel, 2 * config.batch * config.seq);
  assert_true(fsdp_program_hash(plans[0]->program) != fsdp_program_hash(plans[1]->program));
  for (int i = 0; i < 2; i++) fsdp_plan_destroy(plans[i]);
}

// On a GPU the general kernels alone drop probabilities: without attention's dropout others run.
TEST(test_gpu_kernels) {
  fsdp_plan_config config = harness_small_plan(1);
  fsdp_error error;
  config.backend = fsdp_plan_backend_cuda();
  config.param_dtype = config.reduce_dtype = FSDP_BF16;
  config.dropout = (fsdp_dropout){.embedding = 0.1f, .residual = 0.1f};
  for (int drops = 0; drops < 2; drops++) {
    const fsdp_attention_kernel expected = drops ? FSDP_ATTENTION_GENERAL : FSDP_ATTENTION_WGMMA;
    fsdp_plan *plan;
    int found = 0;
    config.dropout.attention = drops ? 0.1f : 0;
    if (fsdp_plan_create(&config, &plan, &error)) fail_msg("%s", error.message);
    assert_int_equal(fsdp_plan_attention(&config), expected);
    for (int i = 0; i < plan->program->instr_count; i++) {
      const fsdp_instr *instr = &plan->program->instrs[i];
      if (instr->kind != FSDP_INSTR_OP || strncmp(fsdp_op_name(instr->op), "attention", 9) != 0) continue;
      assert_int_equal(instr->attrs.attention, expected);
      assert_true(instr->attrs.dropout == config.dropout.attention);
      found++;
    }
    assert_int_equal(found, 2 * config.model.num_layers);
    fsdp_plan_destroy(plan);
  }
  fsdp_plan *refused;
  config.gpu.attention = FSDP_ATTENTION_MMA;
  assert_int_equal(fsdp_plan_create(&config, &refused, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "--attention-dropout 0"));
}
