// The whole runtime against Transformers: tests/golden/make_golden.py says what each folder holds. Given a
// folder, the program compares that one alone, its logits and with every strategy and kind of wrapping, and
// prints the greatest differences (tests/program/train/test_transformers.py makes such folders at random);
// given "logits" behind it, the logits and the loss alone.
//
// Tolerances: both sides compute in fp32, with sums in a different order. Over these sizes that is a few 1e-7
// of a loss and a few 1e-6 of a gradient. Ten AdamW steps amplify it if a gradient is near zero and m/sqrt(v)
// is all sign.
#include "runtime/checkpoint/json_file.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Greatest relative differences: of the first step's loss and gradients, of the losses and gradient norms of
// all steps, of what these did to parameters, and of parameters after them; where the folder has gradients
// made in float64, of ours from these, and of those in fp32, which bound ours if they are further away.
typedef struct tolerances {
  double loss, gradient, losses, norms, moved, after, exact, rounding;
} tolerances;
static const tolerances fp32 = {1e-5, 1e-4, 1e-5, 1e-4, 2e-3, 1e-4, 1e-5, 0};
// Of any model: among thousands of parameters some have a gradient near zero.
static const tolerances drawn = {1e-5, 1e-4, 1e-4, 1e-3, 2e-2, 1e-4, 1e-5, 0};
#define LOGITS_TOLERANCE 1e-5
// Activations and gathered parameters have 8 bits, so each of the ninety or so roundings that an element of a
// gradient has behind it in three layers adds up to 2^-9 of it: sqrt(90) 2^-9 = 1.9%, and twice that where
// the sign of what is lost is not random; the loss is a mean. AdamW makes a sign of a gradient near zero.
static const tolerances bf16 = {4e-3, 6e-2, 4e-3, 4e-2, 0.2, 1e-2, 6e-2, 0};

static const char *const folders[] = {"gpt2_hub",
                                      "gpt2_odd",
                                      "grouped",
                                      "tied",
                                      "llama3_rope",
                                      "multi_query_257",
                                      "odd",
                                      "wide_32001",
                                      "mistral_window",
                                      "mistral_257",
                                      "qwen2_tied",
                                      "qwen2_window",
                                      "qwen3_heads",
                                      "qwen3_window",
                                      "padding",
                                      "padding_tied",
                                      "qwen3_moe_routed",
                                      "olmoe_routed",
                                      "mixtral_routed",
                                      "qwen2_moe_routed",
                                      "glm4_moe_routed",
                                      "mixtral_aux",
                                      "padded_aux",
                                      "padded_bias",
                                      "dropout_gpt2",
                                      "dropout_llama",
                                      "documents_llama",
                                      "documents_gpt2",
                                      "documents_mistral"};
enum { FOLDERS = sizeof folders / sizeof *folders };

// How far to go in a list: `sanitized` under a sanitizer; on the emulated GPU, a hundred times as slow,
// `emulated`, or as FSDP_TEST_PART says.
static size_t stride(int emulated, int sanitized) {
  int most = test_stride(sanitized);
#ifdef FSDP_SIMT
  if (!test_all()) most = (int)fsdp_max_i64(most, fsdp_max_i64(emulated, test_part()));
#endif
  return (size_t)most;
}

typedef struct golden {
  char folder[256];
  fsdp_model_config model;
  fsdp_safetensors *file;
  int64_t batch, seq;
  int steps;
  float eps;                          // of AdamW
  int32_t *tokens, *targets, *starts; // starts: NULL where documents are not told apart
  int32_t *real;                      // NULL: every row holds a token
  fsdp_dropout dropout;
  double floor; // norms below it count as this much: what is left where terms cancel is rounding
} golden;

static int find(const golden *g, const char *kind, const char *name) {
  char key[2 * FSDP_NAME_BYTES];
  snprintf(key, sizeof key, "%s%s", kind, name);
  return fsdp_safetensors_find(g->file, key);
}

static float *read_floats(const golden *g, int index, int64_t *numel) {
  *numel = fsdp_safetensors_at(g->file, index)->numel;
  float *values = fsdp_alloc((size_t)*numel * sizeof *values);
  fsdp_error error;
  assert_int_equal(fsdp_safetensors_read(g->file, index, 0, *numel, values, &error), FSDP_OK);
  return values;
}

static int32_t *read_ints(const golden *g, const char *kind, const char *name, int64_t *numel) {
  int index = find(g, kind, name);
  assert_true(index >= 0);
  *numel = fsdp_safetensors_at(g->file, index)->numel;
  int32_t *values = fsdp_alloc((size_t)*numel * sizeof *values);
  fsdp_error error;
  assert_int_equal(fsdp_safetensors_read_raw(g->file, index, 0, *numel, values, &error), FSDP_OK);
  return values;
}

static golden open_folder(const char *folder) {
  golden g = {0};
  char path[512];
  fsdp_error error = {0};
  snprintf(g.folder, sizeof g.folder, "%s", folder);
  snprintf(path, sizeof path, "%s/config.json", g.folder);
  if (fsdp_config_read(path, &g.model, &error)) fail_msg("%s", error.message);
  snprintf(path, sizeof path, "%s/golden.safetensors", g.folder);
  if (fsdp_safetensors_open(path, &g.file, &error)) fail_msg("%s", error.message);
  const fsdp_safetensors_tensor *tokens = fsdp_safetensors_at(g.file, find(&g, "", "tokens"));
  g.steps = (int)tokens->shape[0];
  g.eps = 1e-8f;
  g.batch = tokens->shape[1];
  g.seq = tokens->shape[2];
  int64_t numel = 0;
  g.tokens = read_ints(&g, "", "tokens", &numel);
  g.targets = read_ints(&g, "", "targets", &numel);
  if (find(&g, "", "starts") >= 0) g.starts = read_ints(&g, "", "starts", &numel);
  if (find(&g, "", "real") >= 0) g.real = read_ints(&g, "", "real", &numel);
  if (find(&g, "", "dropout") >= 0) {
    float *rates = read_floats(&g, find(&g, "", "dropout"), &numel);
    g.dropout = (fsdp_dropout){.embedding = rates[0], .attention = rates[1], .residual = rates[2]};
    free(rates);
  }
  if (find(&g, "", "eps") >= 0) {
    float *eps = read_floats(&g, find(&g, "", "eps"), &numel);
    g.eps = eps[0];
    free(eps);
  }
  float *norms = read_floats(&g, find(&g, "", "grad_norms"), &numel);
  g.floor = 1e-3 * (double)norms[0];
  free(norms);
  return g;
}

static golden open_golden(const char *name) {
  char folder[256];
  const char *root = getenv("FSDP_SOURCE_DIR"); // where the program was built elsewhere
  snprintf(folder, sizeof folder, "%s/tests/golden/%s", root ? root : FSDP_SOURCE_DIR, name);
  return open_folder(folder);
}

static void close_golden(golden *g) {
  fsdp_safetensors_close(g->file);
  free(g->tokens);
  free(g->targets);
  free(g->starts);
  free(g->real);
}

// Norm of a - b over the norm of b, which counts as `floor` if it is smaller.
static double difference(const float *a, const float *b, int64_t numel, double floor) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < numel; i++) {
    difference += pow((double)a[i] - (double)b[i], 2);
    norm += (double)b[i] * (double)b[i];
  }
  return sqrt(difference) / fmax(sqrt(norm), floor);
}

// Raises *worst; fails, naming what differs, above the tolerance. A NaN is above every one.
static void record(const golden *g, const char *what, const char *name, double relative, double tolerance,
                   double *worst) {
  if (!(relative <= tolerance))
    fail_msg("%s: %s of %s differs by %.2g, which is above %.2g", g->folder, what, name, relative, tolerance);
  *worst = fmax(*worst, relative);
}

// A gradient that was too large to keep: its norm and some of its rows.
static double part_difference(const golden *g, const harness_tensor *gradient) {
  int64_t count = 0, part_numel = 0, one = 0;
  int32_t *rows = read_ints(g, "rows.", gradient->name, &count);
  float *part = read_floats(g, find(g, "part.", gradient->name), &part_numel);
  float *norm = read_floats(g, find(g, "norm.", gradient->name), &one);
  int64_t columns = part_numel / count;
  double sum = 0;
  for (int64_t i = 0; i < gradient->numel; i++)
    sum += (double)gradient->values[i] * (double)gradient->values[i];
  double of_norm = fabs(sqrt(sum) - (double)norm[0]) / (double)norm[0];
  float *mine = fsdp_alloc((size_t)part_numel * sizeof *mine);
  for (int64_t r = 0; r < count; r++)
    memcpy(mine + r * columns, gradient->values + rows[r] * columns, (size_t)columns * sizeof *mine);
  double of_rows = difference(mine, part, part_numel, g->floor);
  free(rows), free(part), free(norm), free(mine);
  return fmax(of_norm, of_rows);
}

// Where terms cancel, rounding is more than the tolerance in any order of sums: in float64 it is not.
// `apart`: how far ours is from Transformers'; if that is more than the tolerance, ours must be the nearer
// one.
static void check_exact(const golden *g, const harness_tensor *gradient, const float *rounded, double apart,
                        const tolerances *t, tolerances *worst) {
  int64_t numel = 0;
  const int index = find(g, "exact.", gradient->name);
  if (index < 0) return;
  float *exact = read_floats(g, index, &numel);
  assert_int_equal(numel, gradient->numel);
  const double rounding = difference(rounded, exact, numel, g->floor);
  const double own = difference(gradient->values, exact, numel, g->floor);
  record(g, "from float64 the gradient", gradient->name, own, fmax(t->exact, rounding), &worst->exact);
  if (apart > t->exact && apart > worst->gradient)
    printf("gradient of %s: %.2g from Transformers'; from float64's ours %.2g, Transformers' %.2g\n",
           gradient->name, apart, own, rounding);
  if (apart > t->exact && own > rounding)
    fail_msg("%s: the gradient of %s differs by %.2g and is further from float64's, %.2g, than Transformers' "
             "is, %.2g",
             g->folder, gradient->name, apart, own, rounding);
  worst->rounding = fmax(worst->rounding, rounding);
  free(exact);
}

static void check_gradients(const golden *g, const harness_result *result, const tolerances *t,
                            tolerances *worst) {
  for (int p = 0; p < result->param_count; p++) {
    const harness_tensor *gradient = &result->gradients[p];
    int index = find(g, "grad.", gradient->name);
    if (index < 0) {
      record(g, "the gradient", gradient->name, part_difference(g, gradient), t->gradient, &worst->gradient);
      continue;
    }
    int64_t numel = 0;
    float *expected = read_floats(g, index, &numel);
    assert_int_equal(numel, gradient->numel);
    const double apart = difference(gradient->values, expected, numel, g->floor);
    check_exact(g, gradient, expected, apart, t, worst);
    record(g, "the gradient", gradient->name, apart, t->gradient, &worst->gradient);
    free(expected);
  }
}

static void check_series(const golden *g, const char *name, const float *mine, double tolerance,
                         double *worst) {
  int64_t numel = 0;
  float *expected = read_floats(g, find(g, "", name), &numel);
  assert_int_equal(numel, g->steps);
  for (int i = 0; i < g->steps; i++) {
    char step[16];
    snprintf(step, sizeof step, "step %d", i);
    record(g, name, step, fabs((double)mine[i] / (double)expected[i] - 1), tolerance, worst);
  }
  free(expected);
}

// What the steps did to the parameters that the folder keeps: the losses alone would hardly show a wrong
// beta.
static void check_parameters(const golden *g, const harness_result *start, const harness_result *result,
                             const tolerances *t, tolerances *worst) {
  int checked = 0;
  for (int p = 0; p < result->param_count; p++) {
    const harness_tensor *after = &result->parameters[p];
    int index = find(g, "after.", after->name);
    if (index < 0) continue;
    int64_t numel = 0;
    float *expected = read_floats(g, index, &numel);
    assert_int_equal(numel, after->numel);
    record(g, "the value after the steps", after->name, difference(after->values, expected, numel, 0),
           t->after, &worst->after);
    float *moved = fsdp_alloc((size_t)numel * sizeof *moved);
    for (int64_t i = 0; i < numel; i++) {
      moved[i] = after->values[i] - start->parameters[p].values[i];
      expected[i] -= start->parameters[p].values[i];
    }
    record(g, "the movement", after->name, difference(moved, expected, numel, 0), t->moved, &worst->moved);
    free(moved), free(expected);
    checked++;
  }
  assert_true(checked >= 2);
}

static harness_config config_of(const golden *g) {
  harness_config config = {.plan = harness_small_plan(1),
                           .steps = g->steps,
                           .lr = 1e-3f,
                           .weights = g->folder,
                           .tokens = g->tokens,
                           .targets = g->targets,
                           .starts = g->starts,
                           .real = g->real};
  config.plan.model = g->model;
  config.plan.documents = g->starts != NULL;
  config.plan.dropout = g->dropout;
  config.plan.batch = g->batch;
  config.plan.seq = g->seq;
  config.plan.hyper.beta2 = 0.95;
  config.plan.hyper.eps = g->eps;
  config.plan.hyper.weight_decay = 0.1f;
  return config;
}

static void check(const golden *g, const harness_config *config, const tolerances *t, tolerances *worst) {
  harness_config still = *config;
  tolerances ignored = {0};
  still.steps = 1;
  still.lr = 0;
  still.plan.hyper.weight_decay = 0;
  harness_result *start = harness_train(&still);
  harness_result *result = harness_train(config);
  assert_string_equal(result->failure, "");
  if (!worst) worst = &ignored;
  int64_t one = 0;
  float *loss = read_floats(g, find(g, "", "loss"), &one);
  record(g, "the loss", "the first batch", fabs((double)result->loss[0] / (double)loss[0] - 1), t->loss,
         &worst->loss);
  free(loss);
  check_gradients(g, result, t, worst);
  check_series(g, "losses", result->loss, t->losses, &worst->losses);
  check_series(g, "grad_norms", result->grad_norm, t->norms, &worst->norms);
  check_parameters(g, start, result, t, worst);
  harness_free(start);
  harness_free(result);
}

static void test_one_rank(void **state) {
  for (size_t i = 0; i < FOLDERS; i += stride(1, 2)) {
    golden g = open_golden(folders[i]);
    harness_config config = config_of(&g);
    check(&g, &config, &fp32, NULL);
    close_golden(&g);
  }
}

// The sequences of a batch spread over ranks or micro-batches, sharded, recomputed, offloaded.
static void test_sharded(void **state) {
  // Of some folders not those of one rank.
  for (size_t i = stride(3, 3) > 1; i < FOLDERS; i += stride(3, 3)) {
    golden g = open_golden(folders[i]);
    harness_config config = config_of(&g);
    config.plan.batch = 1;
    config.plan.mesh = fsdp_mesh_of(1, (int)g.batch);
    config.plan.saving = fsdp_saving_of_blocks();
    config.plan.cpu_offload = i % 2;
    check(&g, &config, &fp32, NULL);
    config.plan.mesh = fsdp_mesh_of(1, 1);
    config.plan.micro_batches = (int)g.batch;
    config.plan.accumulate = i % 2 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
    // The auxiliary loss is of a micro-batch: of others it is another one.
    if (g.model.router_aux_coef == 0) check(&g, &config, &fp32, NULL);
    close_golden(&g);
  }
}

// Documents in a row, and rows without a token, where heads, positions and rows are cut.
static void test_rows_on_meshes(void **state) {
  static const struct {
    int fsdp, tensor, context;
    bool sequence_parallel;
  } meshes[] = {{1, 2, 1, true}, {1, 1, 2, false}, {3, 1, 1, false}, {1, 2, 2, true}, {1, 1, 4, false}};
  int compared = 0;
  for (size_t i = 0; i < FOLDERS; i++) {
    golden g = open_golden(folders[i]);
    for (size_t m = 0; (g.starts || g.real) && m < sizeof meshes / sizeof *meshes; m += stride(3, 3)) {
      harness_config config = config_of(&g);
      config.plan.mesh = fsdp_mesh_of(1, meshes[m].fsdp);
      fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, meshes[m].tensor);
      fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_CONTEXT, meshes[m].context);
      config.plan.sequence_parallel = meshes[m].sequence_parallel && g.model.router_aux_coef == 0;
      config.plan.batch = g.batch / meshes[m].fsdp;
      if (m % 2) config.plan.saving = fsdp_saving_of_blocks();
      check(&g, &config, &fp32, NULL);
      compared++;
    }
    close_golden(&g);
  }
  assert_true(compared >= 3);
}

static void test_bf16(void **state) {
  for (size_t i = 0; i < FOLDERS; i += stride(5, 5)) {
    golden g = open_golden(folders[i]);
    harness_config config = config_of(&g);
    config.plan.param_dtype = FSDP_BF16;
    // Rounding that sends a row to another expert changes a gradient by more than it rounds.
    if (g.model.expert_slots == g.model.experts) check(&g, &config, &bf16, NULL);
    close_golden(&g);
  }
}

// ---- A folder that is given

static const char *given;

typedef struct asked_logits {
  float *values;
  int64_t rows, words;
} asked_logits;
static asked_logits asked;

static void ask_logits(const harness_config *config, fsdp_executor *executor, int rank) {
  for (int64_t row = 0; row < asked.rows; row++)
    fsdp_executor_run_logits(executor, row, asked.values + row * asked.words);
}

// Of the first batch, by a plan without gradients.
static void test_logits(void **state) {
  golden g = open_folder(given);
  const int index = find(&g, "", "logits");
  if (index < 0) close_golden(&g);
  if (index < 0) skip();
  int64_t numel = 0, one = 0;
  float *expected = read_floats(&g, index, &numel), *loss = read_floats(&g, find(&g, "", "ce"), &one);
  harness_config config = config_of(&g);
  // A step, and then one for each row, of the first batch: a plan without training counts steps and
  // micro-batches on.
  const int64_t each = g.batch * g.seq;
  int32_t *repeated[2];
  for (int i = 0; i < 2; i++) {
    repeated[i] = fsdp_alloc((size_t)((2 + each) * each) * sizeof *repeated[i]);
    for (int64_t n = 0; n < 2 + each; n++)
      memcpy(repeated[i] + n * each, i ? g.targets : g.tokens, (size_t)each * sizeof *repeated[i]);
  }
  config.tokens = repeated[0], config.targets = repeated[1];
  config.steps = 1;
  config.gradient_step = -1;
  config.plan.evaluation_only = config.plan.logits = true;
  config.after_steps = ask_logits;
  asked = (asked_logits){.rows = each, .words = g.model.vocab_size};
  assert_int_equal(numel, asked.rows * asked.words);
  asked.values = fsdp_alloc_zeroed((size_t)numel, sizeof(float));
  harness_result *result = harness_train(&config);
  assert_string_equal(result->failure, "");
  for (int64_t row = 0; row < each && g.real; row++) {
    if (g.real[row]) continue;
    memset(asked.values + row * asked.words, 0, (size_t)asked.words * sizeof(float));
    memset(expected + row * asked.words, 0, (size_t)asked.words * sizeof(float));
  }
  double worst[2] = {0};
  record(&g, "the loss", "an evaluation", fabs((double)result->loss[0] / (double)loss[0] - 1),
         LOGITS_TOLERANCE, &worst[0]);
  record(&g, "the logits", "the first batch", difference(asked.values, expected, numel, 0), LOGITS_TOLERANCE,
         &worst[1]);
  printf("logits: %lld rows of %lld words differ by %.1e, the loss by %.1e\n", (long long)asked.rows,
         (long long)asked.words, worst[1], worst[0]);
  harness_free(result);
  free(asked.values), free(expected), free(loss);
  free(repeated[0]), free(repeated[1]);
  close_golden(&g);
}

// Shards along the batch, which every strategy cuts its own way.
static fsdp_mesh mesh_of(fsdp_strategy strategy, int ranks) {
  int replicas = ranks % 2 ? ranks : 2;
  if (strategy == FSDP_NO) return fsdp_mesh_of(ranks, 1);
  return strategy == FSDP_HYBRID ? fsdp_mesh_of(replicas, ranks / replicas) : fsdp_mesh_of(1, ranks);
}

static void test_every_strategy_and_wrap(void **state) {
  golden g = open_folder(given);
  fsdp_graph *graph = fsdp_model_graph(&g.model, 1, 1);
  bool transposed = false;
  for (int m = 0; m < graph->module_count; m++) transposed |= !strcmp(graph->modules[m].class_name, "Conv1D");
  fsdp_graph_destroy(graph);
  const fsdp_wrap_policy wraps[] = {
      {.kind = FSDP_WRAP_BLOCK},
      {.kind = FSDP_WRAP_NONE},
      {.kind = FSDP_WRAP_SIZE, .numel = 1500},
      {.kind = FSDP_WRAP_MODULE, .classes = transposed ? "Conv1D,Embedding" : "Linear,Embedding"},
  };
  tolerances worst = {0};
  enum { WRAPS = sizeof wraps / sizeof *wraps, STRATEGIES = FSDP_ZERO1 + 1 };
  for (int i = 0; i < STRATEGIES * WRAPS; i++) {
    harness_config config = config_of(&g);
    int ranks = i % 3 ? (int)g.batch : 1;
    config.plan.strategy = (fsdp_strategy)(i / WRAPS);
    config.plan.wrap = wraps[i % WRAPS];
    const bool whole = g.model.router_aux_coef > 0; // the auxiliary loss is of a micro-batch
    config.plan.batch = whole ? g.batch / ranks : 1;
    config.plan.micro_batches = whole ? 1 : (int)g.batch / ranks;
    config.plan.mesh = mesh_of(config.plan.strategy, ranks);
    if (i % 2) config.plan.saving = fsdp_saving_of_blocks();
    config.plan.cpu_offload = i % 5 == 2;
    config.plan.accumulate = i % 4 < 2 ? FSDP_ACCUMULATE_REDUCE : FSDP_ACCUMULATE_LOCAL;
    check(&g, &config, &drawn, &worst);
  }
  printf("%d plans: loss %.1e, gradients %.1e; %d steps: losses %.1e, norms %.1e, moved %.1e, "
         "parameters %.1e\n",
         STRATEGIES * WRAPS, worst.loss, worst.gradient, g.steps, worst.losses, worst.norms, worst.moved,
         worst.after);
  if (worst.exact > 0)
    printf("%d plans: gradients %.1e from float64's, Transformers' own %.1e\n", STRATEGIES * WRAPS,
           worst.exact, worst.rounding);
  close_golden(&g);
}

int main(int argc, char **argv) {
  const struct CMUnitTest of_folder[] = {cmocka_unit_test(test_logits),
                                         cmocka_unit_test(test_every_strategy_and_wrap)};
  const struct CMUnitTest of_logits[] = {cmocka_unit_test(test_logits)};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_rank),
      cmocka_unit_test(test_sharded),
      cmocka_unit_test(test_rows_on_meshes),
      cmocka_unit_test(test_bf16),
  };
  given = argc > 1 ? argv[1] : NULL;
  if (argc > 2 && !strcmp(argv[2], "logits")) return cmocka_run_group_tests(of_logits, NULL, NULL);
  return given ? cmocka_run_group_tests(of_folder, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
