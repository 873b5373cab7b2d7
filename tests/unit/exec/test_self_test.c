// The self-test: its twin is small and cut as the plan is, it passes where a plan is right, and it finds a
// sum that is counted twice.
#include "runtime/base/check.h"
#include "runtime/exec/self_test.h"
#include "runtime/plan/narrow.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static fsdp_plan_config preset(const char *name, int fsdp, int tensor, int context) {
  fsdp_plan_config config = harness_small_plan(fsdp);
  config.model = model_of_preset(name);
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, tensor);
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_CONTEXT, context);
  config.sequence_parallel = true;
  config.seq = 1024;
  config.batch = 1;
  return config;
}

// ---- The twin

TEST(test_mesh) {
  static const struct {
    const char *model;
    int fsdp, tensor, context, expected[3];
  } cases[] = {{"llama2-7b", 512, 8, 1, {2, 2, 1}},
               {"llama2-7b", 3, 1, 2, {3, 1, 2}},
               {"llama2-7b", 5, 1, 1, {3, 1, 1}},
               {"llama3-405b", 64, 16, 1, {2, 4, 1}}, // two ranks for each of 8 key/value heads
               {"llama3-8b", 2, 2, 8, {2, 2, 2}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_plan_config config = preset(cases[i].model, cases[i].fsdp, cases[i].tensor, cases[i].context);
    config.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 100000000};
    fsdp_plan *plan = plan_of_config(&config);
    fsdp_narrow *narrow = fsdp_narrow_create(plan);
    assert_int_equal(fsdp_mesh_size(&narrow->config.mesh, FSDP_AXIS_FSDP), cases[i].expected[0]);
    assert_int_equal(fsdp_mesh_size(&narrow->config.mesh, FSDP_AXIS_TENSOR), cases[i].expected[1]);
    assert_int_equal(fsdp_mesh_size(&narrow->config.mesh, FSDP_AXIS_CONTEXT), cases[i].expected[2]);
    assert_int_equal(narrow->config.model.num_layers, 2);
    assert_true(narrow->config.seq <= 24);
    fsdp_narrow_destroy(narrow);
    fsdp_plan_destroy(plan);
  }
}

// 7B at 1e8 wraps embedding, head, every MLP, and all attention with the model.
TEST(test_wrap) {
  fsdp_plan_config config = preset("llama2-7b", 4, 1, 1);
  config.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_SIZE, .numel = 100000000};
  fsdp_plan *plan = plan_of_config(&config);
  fsdp_narrow *narrow = fsdp_narrow_create(plan);
  fsdp_plan *twin = plan_of_config(&narrow->config);
  static const char *const expected[] = {
      "", "model", "model.embed_tokens", "model.layers.0.mlp", "model.layers.1.mlp", "lm_head"};
  assert_int_equal(plan->units->count, 36);
  assert_int_equal(twin->units->count, 6);
  for (int u = 0; u < 6; u++) {
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(twin->graph, twin->units->units[u].module, path);
    assert_string_equal(path, expected[u]);
  }
  fsdp_plan_destroy(twin);
  fsdp_narrow_destroy(narrow);
  fsdp_plan_destroy(plan);
}

// Whether the twin's line for up_proj of a layer has the axis fsdp.
static bool names_fsdp(const fsdp_narrow *narrow, int layer) {
  char name[FSDP_NAME_BYTES];
  bool has = false;
  int lines = 0;
  snprintf(name, sizeof name, "model.layers.%d.mlp.up_proj.weight", layer);
  for (int r = 0; r < narrow->sharding.rule_count; r++) {
    const fsdp_shard_rule *rule = &narrow->sharding.rules[r];
    if (strcmp(rule->name, name) != 0) continue;
    lines++;
    for (int i = 0; i < FSDP_MESH_AXES_MAX * rule->dims; i++) {
      const fsdp_rule_dim *dim = &rule->dim[i / FSDP_MESH_AXES_MAX];
      int a = i % FSDP_MESH_AXES_MAX;
      has = has || (a < dim->count && !strcmp(dim->axes[a], FSDP_AXIS_FSDP));
    }
  }
  assert_int_equal(lines, 1);
  return has;
}

// Two layers of each kind: those that a line names lie otherwise, and those that are recomputed.
TEST(test_layers) {
  static const struct {
    const char *recompute, *line;
    int prefetch, layers, recomputed;
  } cases[] = {{"none", NULL, 1, 2, 0},
               {"block", NULL, 1, 2, 0},
               {"block:20", NULL, 1, 4, 2},
               {"block:1", NULL, 1, 3, 1},
               {"none", "model.layers.17.mlp.up_proj.weight", 1, 5, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_plan_config config = preset("llama2-7b", 2, 2, 1);
    fsdp_error error;
    fsdp_shard_rule rule = {.output = -1, .dims = 2, .place = "here"};
    fsdp_sharding sharding = {.preset = FSDP_SHARDING_FSDP_TP, .rules = &rule, .rule_count = 1};
    if (cases[i].line) {
      snprintf(rule.name, sizeof rule.name, "%s", cases[i].line);
      rule.dim[0] = (fsdp_rule_dim){.count = 1, .axes = {FSDP_AXIS_TENSOR}};
      config.sharding = &sharding;
    }
    assert_int_equal(fsdp_saving_parse(cases[i].recompute, "", FSDP_FATE_RECOMPUTE, &config.saving, &error),
                     FSDP_OK);
    fsdp_plan *plan = plan_of_config(&config);
    fsdp_narrow *narrow = fsdp_narrow_create(plan);
    assert_int_equal(narrow->config.model.num_layers, cases[i].layers);
    if (cases[i].recomputed) assert_int_equal(narrow->config.saving.rules[0].layers, cases[i].recomputed);
    // Layers 0, 1, 17, 18 and 19 are kept: the line is for the third.
    for (int layer = 0; layer < cases[i].layers; layer++)
      assert_int_equal(names_fsdp(narrow, layer), !cases[i].line || layer != 2);
    fsdp_narrow_destroy(narrow);
    fsdp_plan_destroy(plan);
  }
}

// Rows of a rank are more than any chunk of a head has, where the plan's head has several and more is cut
// than the batch.
TEST(test_chunks) {
  for (int i = 0; i < 3; i++) {
    fsdp_plan_config config = preset("llama2-7b", 2, i == 2 ? 1 : 2, i == 2 ? 1 : 2);
    config.batch = i == 1 ? 1 : 8;
    config.seq = i == 1 ? 64 : 1024;
    fsdp_plan *plan = plan_of_config(&config);
    fsdp_narrow *narrow = fsdp_narrow_create(plan);
    fsdp_plan *twin = plan_of_config(&narrow->config);
    int64_t rows = twin->config.batch * twin->rows.local_seq;
    int64_t chunk = fsdp_op_chunk_rows(FSDP_OP_CPU, rows, twin->config.model.vocab_size, FSDP_F32);
    assert_int_equal(chunk < rows, i == 0);
    assert_true(rows < 1200);
    fsdp_plan_destroy(twin);
    fsdp_narrow_destroy(narrow);
    fsdp_plan_destroy(plan);
  }
}

// ---- What passes

static void check_passes(const char *run, const fsdp_plan_config *config, int parameters) {
  fsdp_plan *plan = plan_of_config(config);
  fsdp_self_test_report report;
  fsdp_error error;
  if (fsdp_self_test(plan, &report, &error)) fail_msg("%s: %s", run, error.message);
  if (report.parameters != parameters || report.idle || report.ranks < 2 || report.ranks > 16)
    fail_msg("%s: %d parameters, %d idle, %d ranks", run, report.parameters, report.idle, report.ranks);
  assert_true(report.largest > 0 && report.largest <= 1e-5); // other orders of sums do not agree to the bit
  char text[FSDP_SELF_TEST_TEXT];
  assert_non_null(strstr(fsdp_self_test_print(&report, text), "train as on one"));
  fsdp_plan_destroy(plan);
}

// Parameters of two layers, counted by hand: 9 of a Llama's, 3 more biases or 2 more norms, 12 of GPT-2's.
TEST(test_families) {
  static const struct {
    const char *model;
    int parameters;
  } models[] = {{"llama2-7b", 21}, {"gpt2", 28}, {"mistral-7b", 21}, {"qwen2.5-7b", 27}, {"qwen3-8b", 25}};
  for (size_t i = 0; i < sizeof models / sizeof *models; i += (size_t)test_stride(2)) {
    fsdp_plan_config config = preset(models[i].model, 8, 4, 2);
    config.seq = i == 1 ? 1024 : 200; // one with a head in several chunks
    config.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
    config.micro_batches = 64;
    config.param_dtype = FSDP_BF16;
    config.backend = fsdp_plan_backend_cuda();
    check_passes(models[i].model, &config, models[i].parameters);
  }
}

TEST(test_options) {
  for (int i = 0; i < 5; i += test_stride(2)) {
    fsdp_plan_config config = preset("tiny", 4, 1, 1);
    fsdp_error error;
    config.strategy = (fsdp_strategy[]){FSDP_FULL, FSDP_GRAD_OP, FSDP_NO, FSDP_HYBRID, FSDP_ZERO1}[i];
    if (config.strategy == FSDP_NO) config.mesh = fsdp_mesh_of(4, 1);
    if (config.strategy == FSDP_HYBRID) config.mesh = fsdp_mesh_of(2, 4);
    config.cpu_offload = i % 2;
    config.prefetch = i;
    config.micro_batches = 1 + i;
    config.accumulate = i % 2 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
    config.grad_clip = i == 3 ? 0 : 1;
    config.exchange = true;
    const char *saved = i % 2 ? "block" : "block_inputs";
    assert_int_equal(
        fsdp_saving_parse(saved, "", i % 2 ? FSDP_FATE_RECOMPUTE : FSDP_FATE_OFFLOAD, &config.saving, &error),
        FSDP_OK);
    check_passes(fsdp_strategy_name(config.strategy), &config, 9 * (i == 4 || i == 2 ? 3 : 2) + 3);
  }
}

// ---- What it finds

typedef struct fault {
  const fsdp_plan *plan;
  int unit; // whose gradient is summed twice from step `step` on
  int64_t step;
  int64_t updates[16]; // by rank
} fault;

static void sum_twice(void *context, const fsdp_trial_rank *rank, const fsdp_instr *instr,
                      const fsdp_view *operands) {
  fault *f = context;
  if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_OP_ADAMW || instr->unit != f->unit) return;
  if (f->updates[rank->rank]++ < f->step) return;
  float *gradient = operands[0].data;
  for (int64_t i = 0; i < operands[0].numel; i++) gradient[i] *= 2;
}

static fsdp_trial *try_plan(const fsdp_plan *plan, fault *f) {
  const fsdp_trial_config config = {.plan = plan,
                                    .steps = 2,
                                    .lr = 1e-3f,
                                    .seed = 5,
                                    .gradient_steps = 2,
                                    .evaluate = true,
                                    .kernel_threads = 1,
                                    .hooks = {.context = f, .observe = f ? sum_twice : NULL}};
  fsdp_trial *trial = fsdp_trial_run(&config);
  assert_string_equal(trial->failure, "");
  return trial;
}

// The first of a unit's parameters in the order of the backward, its step and both values are named.
TEST(test_sum_counted_twice) {
  fsdp_plan_config config = harness_small_plan(4);
  config.wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_BLOCK};
  config.evaluation = true;
  fsdp_plan *plan = plan_of_config(&config);
  config = fsdp_narrow_alone(plan);
  fsdp_plan *plain = plan_of_config(&config);
  fsdp_trial *alone = try_plan(plain, NULL);
  fsdp_self_test_report report;
  for (int u = 0; u < plan->units->count; u++) {
    const fsdp_unit *unit = &plan->units->units[u];
    if (!unit->param_count) continue;
    fault f = {.plan = plan, .unit = u, .step = u % 2};
    fsdp_trial *trial = try_plan(plan, &f);
    int last = plan->units->params[unit->first_param + unit->param_count - 1].param;
    char message[512], expected[256];
    assert_false(fsdp_self_test_compare(trial, alone, plan->graph, &report, message, sizeof message));
    snprintf(expected, sizeof expected, "the gradient of %s in step %d differs by 1 of its norm, most at [",
             plan->graph->params[last].name, u % 2 + 1);
    if (strncmp(message, expected, strlen(expected)) != 0) fail_msg("%s: %s", unit->path, message);
    double found, correct;
    assert_int_equal(sscanf(strchr(message, ']'), "]: %lf in place of %lf", &found, &correct), 2);
    assert_true(fabs(found - 2 * correct) <= 1e-5 * fabs(found));
    fsdp_trial_destroy(trial);
  }
  fsdp_trial *trial = try_plan(plan, NULL);
  char message[512];
  assert_true(fsdp_self_test_compare(trial, alone, plan->graph, &report, message, sizeof message));
  // The gradients of the second step alone are those of both.
  const fsdp_trial_config second = {.plan = plan,
                                    .steps = 2,
                                    .lr = 1e-3f,
                                    .seed = 5,
                                    .gradient_first = 1,
                                    .gradient_steps = 1,
                                    .kernel_threads = 1};
  fsdp_trial *last = fsdp_trial_run(&second);
  for (int p = 0; p < last->param_count; p++)
    assert_true(fsdp_trial_difference(&last->gradients[p], &trial->gradients[trial->param_count + p]) == 0);
  fsdp_trial_destroy(last);
  fsdp_trial_destroy(trial);
  fsdp_trial_destroy(alone);
  fsdp_plan_destroy(plain);
  fsdp_plan_destroy(plan);
}

// Two trials by hand: what differs is named, a number that is none is no number that agrees, and gradients of
// zero compare nothing.
TEST(test_comparison) {
  const fsdp_plan_config small = harness_small_plan(1);
  fsdp_graph *graph = fsdp_model_forward(&small.model, 1, 4);
  for (int kind = 0; kind < 9; kind++) {
    float values[2][6], numbers[2][2] = {{3, 4}, {3, 4}};
    for (int i = 0; i < 12; i++) values[i / 6][i % 6] = kind == 7 ? 0 : (float)(1 + i % 6);
    fsdp_trial_tensor gradients[2][2];
    fsdp_trial trials[2];
    for (int t = 0; t < 2; t++) {
      gradients[t][0] = (fsdp_trial_tensor){"first", values[t], 4};
      gradients[t][1] = (fsdp_trial_tensor){"second", values[t] + 4, 2};
      trials[t] = (fsdp_trial){.steps = 1,
                               .gradient_steps = 1,
                               .param_count = 2,
                               .loss = &numbers[t][0],
                               .grad_norm = &numbers[t][1],
                               .evaluation_loss = 2,
                               .gradients = gradients[t]};
    }
    if (kind == 1) numbers[0][0] = 3.0001f;
    if (kind == 2) numbers[0][1] = 4.0001f;
    if (kind == 3) trials[0].evaluation_loss = 2.0001f;
    if (kind == 4) values[0][2] = 3.0002f;
    if (kind == 5) values[0][5] = NAN;
    if (kind == 8) values[0][4] = values[0][5] = 0;
    if (kind == 6) numbers[0][0] = numbers[1][0] = INFINITY;
    static const char *const expected[] = {NULL,
                                           "the loss of step 1 is 3.0001 in place of 3",
                                           "the gradient norm of step 1 is 4.0001 in place of 4",
                                           "the loss of the evaluation is 2.0001 in place of 2",
                                           "the gradient of first in step 1 differs by 3.7e-05 of its norm",
                                           "the gradient of second in step 1 differs by nan of its norm",
                                           "the loss of step 1 is inf in place of inf",
                                           "all gradients are zero, which compares nothing",
                                           "the gradient of second in step 1 differs by 1 of its norm"};
    fsdp_self_test_report report;
    char message[512] = "";
    bool same = fsdp_self_test_compare(&trials[0], &trials[1], graph, &report, message, sizeof message);
    assert_int_equal(same, kind == 0);
    if (kind && strncmp(message, expected[kind], strlen(expected[kind])) != 0) fail_msg("%s", message);
    assert_int_equal(report.parameters, 2);
  }
  fsdp_graph_destroy(graph);
}

// A plan that no pass made is told by its name, and its error has the status of options.
TEST(test_message) {
  fsdp_plan_config config = preset("tiny", 4, 1, 1);
  fsdp_plan *plan = plan_of_config(&config);
  fsdp_spec *spec = &plan->specs->params[0];
  fsdp_self_test_report report;
  fsdp_error error;
  spec->dim[1] = spec->dim[0]; // the axis fsdp twice
  assert_int_equal(fsdp_self_test(plan, &report, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "--self-test: the narrow model cannot be planned: "));
  assert_non_null(strstr(error.message, "names axis fsdp twice"));
  fsdp_plan_destroy(plan);
}
