// Meshes agree: one global batch gives the same losses, norms, gradients and parameters on any mesh of
// tensor, context, fsdp and data, and every run measures the memory that was planned. The reference is one
// rank, plain.
//
// The runs are a set in which every pair of values of two settings occurs (see `settings` below), and random
// ones, also in bf16.
#include "models/family.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/pairwise.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, GLOBAL_BATCH = 24, RANKS_MAX = 12 };

// ---- The settings and their values

typedef struct mesh_sizes {
  int data, fsdp, tensor, context;
} mesh_sizes;

// All of tensor 1 to 4, fsdp and data 1 and 2, context 1 to 3 with no more than RANKS_MAX ranks.
static mesh_sizes meshes[PAIRWISE_VALUES_MAX];

static int list_meshes(void) {
  int count = 0;
  for (int i = 0; i < 4 * 2 * 2 * 3; i++) {
    mesh_sizes m = {.tensor = 1 + i % 4, .fsdp = 1 + i / 4 % 2, .data = 1 + i / 8 % 2, .context = 1 + i / 16};
    if (m.tensor * m.fsdp * m.data * m.context <= RANKS_MAX) meshes[count++] = m;
  }
  return count;
}

static const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_GRAD_OP, FSDP_NO, FSDP_HYBRID, FSDP_ZERO1};

// What is odd of each is what its name says; sizes that no entry gives are harness_small_plan's.
static const struct {
  const char *name, *preset;
  int heads, kv_heads, hidden, intermediate, vocabulary, seq, window, first_window_layer;
  bool tied;
} models[] = {
    {"Llama, 2 key heads", "tiny", 4, 2, 32, 80, 101, 12, 0, 0, false},
    {"5 heads, tied", "tiny", 5, 5, 32, 40, 61, 7, 0, 0, true},
    {"1 key head", "tiny", 4, 1, 24, 40, 61, 9, 0, 0, false},
    {"vocabulary 257, intermediate 101, sequence 33", "tiny", 4, 2, 32, 101, 257, 33, 0, 0, false},
    {"sequence 1", "tiny", 4, 2, 32, 40, 61, 1, 0, 0, false},
    {"vocabulary 3, sequence 2", "tiny", 2, 1, 16, 3, 3, 2, 0, 0, false},
    {"Mistral, 3 key heads, window", "mistral-7b", 6, 3, 40, 48, 64, 21, 5, 0, false},
    {"Qwen2, tied, window in a layer", "qwen2.5-7b", 10, 2, 40, 44, 61, 13, 4, 1, true},
    {"Qwen3", "qwen3-8b", 4, 2, 24, 40, 61, 12, 0, 0, false},
    {"GPT-2", "gpt2", 3, 3, 24, 40, 61, 10, 0, 0, true},
};
enum { MODELS = sizeof models / sizeof *models };

static const fsdp_wrap_policy wraps[] = {
    {FSDP_WRAP_BLOCK, 0, NULL}, {FSDP_WRAP_NONE, 0, NULL}, {FSDP_WRAP_SIZE, 1500, NULL}};

// What is recomputed and offloaded.
static const char *const savings[][2] = {{"none", "none"},
                                         {"block", "none"},
                                         {"attention,linear@1", "none"},
                                         {"none", "block_inputs,attention"},
                                         {"block", "block_inputs"}};

static const struct {
  int count;
  fsdp_accumulate kind;
} accumulations[] = {{1, FSDP_ACCUMULATE_REDUCE}, {2, FSDP_ACCUMULATE_REDUCE}, {3, FSDP_ACCUMULATE_LOCAL}};

enum setting {
  MESH,
  STRATEGY,
  MODEL,
  WRAP,
  SEQUENCE_PARALLEL,
  AXES_REVERSED, // the mesh's axes
  SAVING,
  ACCUMULATION,
  CPU_OFFLOAD,
  PREFETCH,
  POISON,
  CLIP,
  EVALUATION,
  CHECK,
  SNAPSHOT,
  EXCHANGE,
  DOCUMENTS,
  SETTINGS
};

static bool allowed(const int *values) {
  const mesh_sizes *m = &meshes[values[MESH]];
  fsdp_strategy strategy = strategies[values[STRATEGY]];
  if (strategy == FSDP_NO && m->fsdp > 1) return false;
  return (strategy != FSDP_FULL && strategy != FSDP_GRAD_OP) || m->data == 1;
}

static pairwise settings = {.settings = SETTINGS,
                            .value_count = {[STRATEGY] = sizeof strategies / sizeof *strategies,
                                            [MODEL] = MODELS,
                                            [WRAP] = 3,
                                            [SEQUENCE_PARALLEL] = 2,
                                            [AXES_REVERSED] = 2,
                                            [SAVING] = 5,
                                            [ACCUMULATION] = 3,
                                            [CPU_OFFLOAD] = 2,
                                            [PREFETCH] = 3,
                                            [POISON] = 2,
                                            [CLIP] = 2,
                                            [EVALUATION] = 2,
                                            [CHECK] = 2,
                                            [SNAPSHOT] = 2,
                                            [EXCHANGE] = 2,
                                            [DOCUMENTS] = 2},
                            .allowed = allowed};

// ---- A run

static fsdp_model_config model_of(int index) {
  fsdp_model_config model = harness_small_plan(1).model;
  model.family = family_of_preset(models[index].preset);
  model.num_heads = models[index].heads;
  model.num_kv_heads = models[index].kv_heads;
  model.hidden_size = models[index].hidden;
  model.intermediate_size = models[index].intermediate;
  model.vocab_size = models[index].vocabulary;
  model.tie_word_embeddings = models[index].tied;
  model.window = models[index].window;
  model.first_window_layer = models[index].first_window_layer;
  if (!model.family->decoder) model.rope_theta = 0; // GPT-2
  return model;
}

static fsdp_mesh mesh_of(mesh_sizes sizes, bool reversed) {
  const char *const names[] = {FSDP_AXIS_DATA, FSDP_AXIS_FSDP, FSDP_AXIS_TENSOR, FSDP_AXIS_CONTEXT};
  const int counts[] = {sizes.data, sizes.fsdp, sizes.tensor, sizes.context};
  fsdp_mesh mesh = {0};
  for (int i = 0; i < 4; i++)
    assert_true(fsdp_mesh_add(&mesh, names[reversed ? 3 - i : i], counts[reversed ? 3 - i : i]));
  fsdp_mesh_complete(&mesh);
  return mesh;
}

static fsdp_saving saving_of(const char *const fates[2]) {
  fsdp_saving saving = {0};
  fsdp_error error;
  assert_int_equal(fsdp_saving_parse(fates[0], "recompute", FSDP_FATE_RECOMPUTE, &saving, &error), FSDP_OK);
  assert_int_equal(fsdp_saving_parse(fates[1], "offload", FSDP_FATE_OFFLOAD, &saving, &error), FSDP_OK);
  return saving;
}

static void snapshot_done(void *argument) {}

static void begin_snapshot(const harness_config *config, fsdp_executor *executor, int rank, int step) {
  if (config->plan.snapshot && step == 0) fsdp_executor_begin_snapshot(executor, snapshot_done, NULL);
}

static harness_config config_of(const pairwise_choice *choice) {
  const int *v = choice->values;
  // The epsilon is below gradients, but above their rounding errors: without it AdamW gives an element whose
  // gradient is zero but for rounding (queries and keys of a sequence of one position, biases of keys) steps
  // of the full learning rate, in any direction.
  harness_config config = {.plan = harness_small_plan(1),
                           .steps = STEPS,
                           .lr = 3e-4f,
                           .seed = 7,
                           .gradient_step = 1,
                           .spread = 0.05f,
                           .evaluate = v[EVALUATION],
                           .after_step = begin_snapshot};
  fsdp_plan_config *plan = &config.plan;
  const mesh_sizes *sizes = &meshes[v[MESH]];
  plan->model = model_of(v[MODEL]);
  plan->seq = models[v[MODEL]].seq;
  plan->mesh = mesh_of(*sizes, v[AXES_REVERSED]);
  plan->sequence_parallel = v[SEQUENCE_PARALLEL];
  plan->strategy = strategies[v[STRATEGY]];
  plan->wrap = wraps[v[WRAP]];
  plan->saving = saving_of(savings[v[SAVING]]);
  plan->micro_batches = accumulations[v[ACCUMULATION]].count;
  plan->accumulate = accumulations[v[ACCUMULATION]].kind;
  plan->batch = GLOBAL_BATCH / (sizes->data * sizes->fsdp * plan->micro_batches);
  plan->cpu_offload = v[CPU_OFFLOAD];
  plan->prefetch = v[PREFETCH];
  plan->poison = v[POISON];
  plan->grad_clip = v[CLIP] ? 0.1f : 0;
  plan->hyper.eps = 1e-5f;
  plan->evaluation = v[EVALUATION];
  plan->check = v[CHECK];
  plan->snapshot = v[SNAPSHOT];
  plan->exchange = v[EXCHANGE];
  plan->documents = v[DOCUMENTS];
  return config;
}

static void describe(const pairwise_choice *choice, char *out, size_t bytes) {
  const int *v = choice->values;
  const mesh_sizes *m = &meshes[v[MESH]];
  snprintf(out, bytes,
           "%s, data=%d,fsdp=%d,tensor=%d,context=%d%s, %s, wrap %d, sequence parallel %d, recompute %s, "
           "offload %s, accumulation %d %s, cpu offload %d, prefetch %d, poison %d, clip %d, evaluation %d, "
           "check %d, snapshot %d, exchange %d, documents %d",
           models[v[MODEL]].name, m->data, m->fsdp, m->tensor, m->context,
           v[AXES_REVERSED] ? " reversed" : "", fsdp_strategy_name(strategies[v[STRATEGY]]), v[WRAP],
           v[SEQUENCE_PARALLEL], savings[v[SAVING]][0], savings[v[SAVING]][1],
           accumulations[v[ACCUMULATION]].count,
           accumulations[v[ACCUMULATION]].kind == FSDP_ACCUMULATE_LOCAL ? "local" : "reduce", v[CPU_OFFLOAD],
           v[PREFETCH], v[POISON], v[CLIP], v[EVALUATION], v[CHECK], v[SNAPSHOT], v[EXCHANGE], v[DOCUMENTS]);
}

// ---- Comparison with one rank

// fp32 sums in another order.
static const harness_tolerance of_sums = {.loss = 1e-5, .gradient = 1e-5, .value = 1e-4, .noise = 1e-7};

static void compare(const char *run, const harness_result *mine, const harness_result *reference,
                    const harness_tolerance *tolerance) {
  const char *difference = harness_compare(mine, reference, tolerance);
  if (difference) fail_msg("%s: %s", run, difference);
}

// Ranks that hold the same shard of a unit hold the same bits.
static void compare_replicas(const char *run, const harness_result *result) {
  const fsdp_mesh *mesh = &result->plan->units->mesh;
  int count = fsdp_plan_digest_count(result->plan);
  for (int rank = 0; result->digests && rank < fsdp_mesh_ranks(mesh); rank++) {
    for (int d = 0; d < count; d++) {
      const fsdp_unit *unit = &result->plan->units->units[fsdp_plan_digest_unit(result->plan, d, NULL)];
      int first = fsdp_mesh_group_member(mesh, unit->replica_axes, rank, 0);
      if (result->digests[rank * count + d] != result->digests[first * count + d])
        fail_msg("%s: ranks %d and %d differ in unit %s", run, first, rank, unit->path);
    }
  }
}

// One rank, plain: of a model, with and without clipping and documents, made when it is first asked for.
static harness_result *references[MODELS][2][2];

static const harness_result *reference_of(const pairwise_choice *choice) {
  const int *v = choice->values;
  harness_result **reference = &references[v[MODEL]][v[CLIP]][v[DOCUMENTS]];
  if (*reference) return *reference;
  pairwise_choice plain = {.values = {[MODEL] = v[MODEL], [CLIP] = v[CLIP], [DOCUMENTS] = v[DOCUMENTS]}};
  harness_config config = config_of(&plain);
  config.plan.evaluation = config.evaluate = true;
  *reference = harness_train(&config);
  assert_string_equal((*reference)->failure, "");
  return *reference;
}

// Trains, and compares all of it with the reference.
static void check_run(const char *run, const harness_config *config, const harness_result *reference) {
  harness_result *result = harness_train(config);
  compare(run, result, reference, &of_sums);
  compare_replicas(run, result);
  const char *difference =
      config->evaluate ? harness_compare_evaluation(result, reference, of_sums.loss) : NULL;
  if (difference) fail_msg("%s: %s", run, difference);
  harness_free(result);
}

TEST(test_pairs) {
  settings.value_count[MESH] = list_meshes();
  pairwise_choice *choices;
  int left_out, count = pairwise_choices(&settings, &choices, &left_out), every = test_stride(16);
  for (int n = cases_begin(count); cases_run(__func__, n); n += every) {
    assert_in_range(n, 0, count - 1);
    char run[512];
    describe(&choices[n], run, sizeof run);
    harness_config config = config_of(&choices[n]);
    check_run(run, &config, reference_of(&choices[n]));
  }
  print_message("%d runs on %d meshes agree with one rank; %d pairs are not allowed\n",
                (count + every - 1) / every, settings.value_count[MESH], left_out);
  free(choices);
}

// More rows than the head takes at a time: its loss and gradients are sums over chunks of them.
TEST(test_chunks_of_the_head) {
  harness_config plain = {.plan = harness_small_plan(1),
                          .steps = 2,
                          .lr = 3e-4f,
                          .gradient_step = 1,
                          .spread = 0.05f,
                          .evaluate = true};
  plain.plan.batch = 30;
  plain.plan.seq = 70;
  plain.plan.evaluation = true;
  plain.plan.hyper.eps = 1e-5f;
  harness_result *reference = harness_train(&plain);
  assert_string_equal(reference->failure, "");
  harness_config config = plain;
  config.plan.mesh = mesh_of((mesh_sizes){1, 1, 3, 1}, false);
  harness_result *result = harness_train(&config);
  compare("chunks", result, reference, &of_sums);
  assert_true(
      harness_near((double)result->evaluation_loss, (double)reference->evaluation_loss, of_sums.loss));
  int chunks = 0;
  for (int i = 0; i < result->plan->program->instr_count; i++)
    chunks += result->plan->program->instrs[i].op == FSDP_OP_HEAD_BACKWARD;
  assert_true(chunks > 1);
  harness_free(result);
  harness_free(reference);
}

// ---- Random configurations

// A configuration on a mesh with tensor or context, and few enough ranks.
static harness_config draw(uint64_t seed, int number, fsdp_dtype dtype) {
  random_source random = {.seed = seed + (uint64_t)number};
  harness_config config = {
      .steps = STEPS, .lr = 3e-4f, .seed = (uint64_t)number, .gradient_step = 1, .spread = 0.05f};
  fsdp_mesh *mesh = &config.plan.mesh;
  do {
    random.seed += 1000000;
    random.next = 0;
    config.plan = random_plan_config(&random);
  } while (fsdp_mesh_ranks(mesh) > RANKS_MAX ||
           fsdp_mesh_size(mesh, FSDP_AXIS_TENSOR) * fsdp_mesh_size(mesh, FSDP_AXIS_CONTEXT) == 1);
  config.plan.backend = fsdp_plan_backend_cpu();
  config.plan.hyper.eps = 1e-5f;
  config.plan.param_dtype = dtype;
  if (dtype == FSDP_F32) config.plan.reduce_dtype = dtype;
  config.plan.master_dtype = config.plan.moment_dtype = FSDP_F32;
  config.evaluate = config.plan.evaluation;
  return config;
}

// The same global batch on one rank, plain, in fp32 or as the configuration has it.
static harness_result *train_plain(harness_config config, bool in_fp32) {
  fsdp_plan_config *plan = &config.plan;
  int parts = fsdp_mesh_size(&plan->mesh, FSDP_AXIS_DATA) * fsdp_mesh_size(&plan->mesh, FSDP_AXIS_FSDP);
  plan->batch *= parts * plan->micro_batches;
  plan->micro_batches = 1;
  plan->mesh = fsdp_mesh_of(1, 1);
  plan->strategy = FSDP_FULL;
  plan->wrap = (fsdp_wrap_policy){.kind = FSDP_WRAP_NONE};
  plan->saving = (fsdp_saving){0};
  plan->cpu_offload = plan->check = plan->snapshot = plan->exchange = plan->poison = false;
  if (in_fp32) plan->param_dtype = plan->reduce_dtype = FSDP_F32;
  harness_result *result = harness_train(&config);
  assert_string_equal(result->failure, "");
  return result;
}

TEST(test_random) {
  for (int n = cases_begin(test_draws(24, 4)); cases_run(__func__, n); n++) {
    harness_config config = draw(6000000, n, FSDP_F32);
    char run[1024];
    describe_plan_config(&config.plan, run, sizeof run);
    harness_result *reference = train_plain(config, true);
    check_run(run, &config, reference);
    harness_free(reference);
  }
}

// The norm of what all gradients differ by.
static double distance(const harness_result *a, const harness_result *b) {
  double sum = 0;
  for (int p = 0; p < a->param_count; p++)
    sum += pow(harness_difference(&a->gradients[p], &b->gradients[p]) * harness_norm(&b->gradients[p]), 2);
  return sqrt(sum);
}

// Rounding to 8 bits, on a mesh also of what its ranks add up, errs as much as on one rank; each error by
// itself is a matter of chance.
static void compare_rounding(const char *run, const harness_result *mine, const harness_result *one,
                             const harness_result *exact) {
  const harness_tolerance of_bf16 = {.loss = 1e-3, .gradient = 5e-2, .value = INFINITY, .noise = 5e-3};
  double rounding = distance(one, exact), found = distance(mine, exact);
  compare(run, mine, exact, &of_bf16);
  if (!(found <= 1.5 * rounding))
    fail_msg("%s: gradients err by %.3g, on one rank by %.3g", run, found, rounding);
}

TEST(test_random_in_bf16) {
  for (int n = cases_begin(test_draws(8, 1)); cases_run(__func__, n); n++) {
    harness_config config = draw(7000000, n, FSDP_BF16);
    char run[1024];
    describe_plan_config(&config.plan, run, sizeof run);
    harness_result *exact = train_plain(config, true), *one = train_plain(config, false);
    harness_result *result = harness_train(&config);
    compare_rounding(run, result, one, exact);
    compare_replicas(run, result);
    harness_free(result);
    harness_free(one);
    harness_free(exact);
  }
}

static int free_references(void **state) {
  for (int m = 0; m < MODELS; m++)
    for (int clip = 0; clip < 2; clip++)
      for (int documents = 0; documents < 2; documents++)
        if (references[m][clip][documents]) harness_free(references[m][clip][documents]);
  return 0;
}

int main(void) {
  return run_all_tests(NULL, free_references);
}
