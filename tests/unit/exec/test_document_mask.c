// Documents in a row: no bit of one depends on another, and each computes what it computes alone; in every
// family, on meshes that cut heads, the sequence and its rows, with recomputation and offload.
#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

enum { VOCABULARY = 61, ROWS = 4 };

static const struct {
  const char *preset;
  int heads, kv_heads, hidden, intermediate, window, first_window_layer;
} models[] = {{"tiny", 4, 2, 32, 40, 0, 0},
              {"mistral-7b", 6, 3, 36, 48, 5, 0},
              {"qwen2.5-7b", 4, 2, 40, 44, 30, 1},
              {"qwen3-8b", 4, 2, 24, 40, 0, 0},
              {"gpt2", 3, 3, 24, 40, 0, 0}};
enum { MODELS = sizeof models / sizeof *models };

static const struct {
  int fsdp, tensor, context;
  bool sequence_parallel;
} meshes[] = {{1, 1, 1, false}, {1, 2, 1, false}, {1, 2, 1, true}, {1, 1, 2, false},
              {2, 1, 1, false}, {1, 1, 3, false}, {1, 2, 2, true}, {1, 1, 4, false}};
enum { MESHES = sizeof meshes / sizeof *meshes };

typedef struct source {
  uint64_t seed, next;
} source;

static int draw(source *s, int count) {
  uint32_t words[4];
  fsdp_random_words(s->seed, 9, s->next++, words);
  return (int)(words[0] % (uint32_t)count);
}

static harness_config draw_config(source *s, int model) {
  harness_config config = {
      .plan = harness_small_plan(1), .steps = 1, .lr = 3e-4f, .seed = 3, .spread = 0.05f};
  fsdp_plan_config *plan = &config.plan;
  int m = model, at = draw(s, MESHES);
  config.gradient_step = 0;
  plan->model.family = family_of_preset(models[m].preset);
  plan->model.num_heads = models[m].heads;
  plan->model.num_kv_heads = models[m].kv_heads;
  plan->model.hidden_size = models[m].hidden;
  plan->model.intermediate_size = models[m].intermediate;
  plan->model.head_dim = models[m].hidden / models[m].heads;
  plan->model.vocab_size = VOCABULARY;
  if (!plan->model.family->decoder) plan->model.rope_theta = 0; // GPT-2
  plan->model.window = models[m].window;
  plan->model.first_window_layer = models[m].first_window_layer;
  plan->seq = 8 + draw(s, 90);
  plan->model.max_position_embeddings = 128;
  plan->documents = true;
  plan->mesh = (fsdp_mesh){0};
  fsdp_mesh_add(&plan->mesh, FSDP_AXIS_FSDP, meshes[at].fsdp);
  fsdp_mesh_add(&plan->mesh, FSDP_AXIS_TENSOR, meshes[at].tensor);
  fsdp_mesh_add(&plan->mesh, FSDP_AXIS_CONTEXT, meshes[at].context);
  fsdp_mesh_complete(&plan->mesh);
  plan->sequence_parallel = meshes[at].sequence_parallel;
  plan->micro_batches = 1 + draw(s, 2);
  plan->batch = ROWS / (meshes[at].fsdp * plan->micro_batches);
  if (draw(s, 2)) plan->saving = fsdp_saving_of_blocks();
  plan->cpu_offload = draw(s, 2);
  return config;
}

// Documents of drawn lengths; the last positions of a row are padding.
static void draw_documents(source *s, const harness_config *config, int32_t *tokens, int32_t *starts) {
  int64_t T = config->plan.seq, mean = 1 + draw(s, (int)T);
  for (int64_t i = 0; i < ROWS * T; i++) {
    int64_t t = i % T;
    bool begins = t == 0 || t >= T - T / 16 || draw(s, (int)mean) == 0;
    tokens[i] = draw(s, VOCABULARY);
    starts[i] = begins ? (int32_t)t : starts[i - 1];
  }
}

// Targets of the document that begins at `first` alone.
static void target_document(const harness_config *config, const int32_t *tokens, const int32_t *starts,
                            int64_t first, int32_t *targets) {
  int64_t T = config->plan.seq;
  for (int64_t i = 0; i < ROWS * T; i++) {
    bool within = i / T == first / T && starts[i] == starts[first];
    bool follows = (i + 1) % T != 0 && starts[i + 1] == starts[i];
    targets[i] = within && follows ? tokens[i + 1] : FSDP_TARGET_IGNORED;
  }
}

// One past the last position of a document.
static int64_t end_of(const harness_config *config, const int32_t *starts, int64_t first) {
  int64_t end = first + 1;
  while (end % config->plan.seq != 0 && starts[end] == starts[first]) end++;
  return end;
}

// The beginning of a document of two tokens or more; -1: there is none.
static int64_t find_document(source *s, const harness_config *config, const int32_t *starts) {
  int64_t T = config->plan.seq, count = ROWS * T, from = draw(s, (int)count);
  for (int64_t n = 0; n < count; n++) {
    int64_t i = (from + n) % count;
    if (starts[i] == i % T && end_of(config, starts, i) > i + 1) return i;
  }
  return -1;
}

// A position of another document: right before it, right behind it, or anywhere.
static int64_t other_position(source *s, const harness_config *config, const int32_t *starts, int64_t first) {
  int64_t end = end_of(config, starts, first), count = ROWS * config->plan.seq;
  switch (draw(s, 3)) {
  case 0:
    return (first + count - 1) % count;
  case 1:
    return end % count;
  default:
    return (end + draw(s, (int)(count - (end - first)))) % count;
  }
}

static void expect_same(const harness_tensor *a, const harness_tensor *b, int count, const char *run) {
  for (int p = 0; p < count; p++)
    for (int64_t e = 0; e < a[p].numel; e++)
      if (a[p].values[e] != b[p].values[e])
        fail_msg("%s: %s[%lld] is %.9g, and %.9g with a token of another document changed", run, a[p].name,
                 (long long)e, (double)a[p].values[e], (double)b[p].values[e]);
}

typedef struct rows {
  int32_t *tokens, *targets, *starts;
} rows;

static rows allocate_rows(const harness_config *config) {
  size_t count = (size_t)(ROWS * config->plan.seq);
  return (rows){fsdp_alloc(count * sizeof(int32_t)), fsdp_alloc(count * sizeof(int32_t)),
                fsdp_alloc(count * sizeof(int32_t))};
}

static void free_rows(rows r) {
  free(r.tokens), free(r.targets), free(r.starts);
}

static harness_result *train_on(harness_config config, rows r) {
  config.tokens = r.tokens, config.targets = r.targets, config.starts = r.starts;
  harness_result *result = harness_train(&config);
  assert_string_equal(result->failure, "");
  return result;
}

// Whether there was anything to compare.
static bool expect_no_leak(source *s, const harness_config *config, const char *run) {
  rows r = allocate_rows(config);
  draw_documents(s, config, r.tokens, r.starts);
  int64_t first = find_document(s, config, r.starts);
  if (first >= 0) {
    target_document(config, r.tokens, r.starts, first, r.targets);
    harness_result *one = train_on(*config, r);
    int32_t *changed = &r.tokens[other_position(s, config, r.starts, first)];
    *changed = (*changed + 1 + draw(s, VOCABULARY - 1)) % VOCABULARY;
    harness_result *two = train_on(*config, r);
    assert_true(one->loss[0] == two->loss[0] && one->loss[0] > 0);
    expect_same(one->gradients, two->gradients, one->param_count, run);
    harness_free(one);
    harness_free(two);
  }
  free_rows(r);
  return first >= 0;
}

// Targets count in one document alone, so that loss and gradients are its own: no bit of them changes with a
// token of another document, be it read by attention's forward or reached by its backward.
TEST(test_no_leak) {
  int compared = 0, runs = test_draws(100, 10);
  for (int n = 0; n < runs; n++) {
    source s = {.seed = 1000 + (uint64_t)n};
    harness_config config = draw_config(&s, n % MODELS);
    if (n % 4 == 3)
      config.plan.dropout = (fsdp_dropout){.embedding = 0.1f, .attention = 0.2f, .residual = 0.1f};
    char run[128];
    snprintf(run, sizeof run, "run %d, %s, %lld positions, %d ranks", n, models[n % MODELS].preset,
             (long long)config.plan.seq, fsdp_mesh_ranks(&config.plan.mesh));
    compared += expect_no_leak(&s, &config, run);
  }
  assert_true(compared > runs / 2);
}

// ---- Packed and alone

// Each document of `packed` alone, at the beginning of a row that is padded with what no target counts.
static rows unpack(const harness_config *config, rows packed, int64_t *documents) {
  int64_t T = config->plan.seq, count = ROWS * T;
  rows alone = {fsdp_alloc_zeroed((size_t)(count * T), sizeof(int32_t)),
                fsdp_alloc((size_t)(count * T) * sizeof(int32_t)), NULL};
  for (int64_t i = 0; i < count * T; i++) alone.targets[i] = FSDP_TARGET_IGNORED;
  *documents = 0;
  for (int64_t i = 0, end; i < count; i = end, ++*documents) {
    end = end_of(config, packed.starts, i);
    for (int64_t k = i; k < end; k++) {
      alone.tokens[*documents * T + k - i] = packed.tokens[k];
      alone.targets[*documents * T + k - i] = packed.targets[k];
    }
  }
  return alone;
}

static void target_all(const harness_config *config, rows r) {
  for (int64_t i = 0; i < ROWS * config->plan.seq; i++) {
    bool follows = (i + 1) % config->plan.seq != 0 && r.starts[i + 1] == r.starts[i];
    r.targets[i] = follows ? r.tokens[i + 1] : FSDP_TARGET_IGNORED;
  }
}

// The norm of what all gradients differ by, relative to theirs.
static double distance(const harness_result *a, const harness_result *b) {
  double difference = 0, norm = 0;
  for (int p = 0; p < a->param_count; p++)
    for (int64_t e = 0; e < a->gradients[p].numel; e++) {
      double x = (double)a->gradients[p].values[e], y = (double)b->gradients[p].values[e];
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  return sqrt(difference / norm);
}

// The greatest difference of a parameter's gradient, relative to its norm; where terms cancel, as in biases
// of keys, that counts as a thousandth of all.
static double greatest_distance(const harness_result *a, const harness_result *b) {
  double greatest = 0, whole = 0;
  for (int p = 0; p < b->param_count; p++)
    for (int64_t e = 0; e < b->gradients[p].numel; e++)
      whole += (double)b->gradients[p].values[e] * (double)b->gradients[p].values[e];
  for (int p = 0; p < b->param_count; p++) {
    double difference = 0, norm = 0;
    for (int64_t e = 0; e < b->gradients[p].numel; e++) {
      double x = (double)a->gradients[p].values[e], y = (double)b->gradients[p].values[e];
      difference += (x - y) * (x - y);
      norm += y * y;
    }
    greatest = fmax(greatest, sqrt(difference / fmax(norm, 1e-6 * whole)));
  }
  return greatest;
}

// fp32 sums in another order.
TEST(test_packed_is_alone) {
  for (int n = 0; n < test_draws(25, 5); n++) {
    source s = {.seed = 9000 + (uint64_t)n};
    harness_config config = draw_config(&s, n % MODELS), single = config;
    rows packed = allocate_rows(&config);
    int64_t documents;
    draw_documents(&s, &config, packed.tokens, packed.starts);
    target_all(&config, packed);
    rows alone = unpack(&config, packed, &documents);
    single.plan.documents = single.plan.cpu_offload = false;
    single.plan.mesh = fsdp_mesh_of(1, 1);
    single.plan.micro_batches = 1;
    single.plan.batch = documents;
    bool any = false;
    for (int64_t i = 0; i < ROWS * config.plan.seq; i++) any |= packed.targets[i] != FSDP_TARGET_IGNORED;
    if (any) {
      harness_result *one = train_on(config, packed), *two = train_on(single, alone);
      double loss = fabs((double)one->loss[0] / (double)two->loss[0] - 1),
             gradient = greatest_distance(one, two);
      if (!(loss <= 1e-6 && gradient <= 1e-5))
        fail_msg("run %d, %s: loss differs by %.2g, gradients by %.2g", n, models[n % MODELS].preset, loss,
                 gradient);
      harness_free(one);
      harness_free(two);
    }
    free_rows(packed);
    free_rows(alone);
  }
}

// The logits of a position of the first row, which every rank has. Weights stay, and a second step's rows, of
// which an evaluation is made, are the first's.
static struct {
  int64_t position;
  float logits[VOCABULARY];
} asked;

static void ask(const harness_config *config, fsdp_executor *executor, int rank) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  float logits[VOCABULARY];
  int64_t row = FSDP_NO_ROW;
  int part;
  fsdp_plan_batch_part(plan, rank, &part);
  for (int64_t index = 0; index < plan->rows.local_seq && part == 0; index++)
    if (fsdp_rows_position(&plan->rows, &plan->units->mesh, rank, index) == asked.position)
      row = fsdp_rows_row(&plan->rows, 0, index);
  fsdp_executor_run_logits(executor, row, logits);
  if (rank == 0) memcpy(asked.logits, logits, sizeof logits);
}

static void find_logits(harness_config config, rows r, int64_t sequences, int64_t position, float *logits) {
  const size_t count = (size_t)(sequences * config.plan.seq);
  rows twice = {fsdp_alloc(2 * count * sizeof(int32_t)), fsdp_alloc(2 * count * sizeof(int32_t)),
                r.starts ? fsdp_alloc(2 * count * sizeof(int32_t)) : NULL};
  for (size_t i = 0; i < 2 * count; i++) {
    twice.tokens[i] = r.tokens[i % count];
    twice.targets[i] = r.targets[i % count];
    if (r.starts) twice.starts[i] = r.starts[i % count];
  }
  config.plan.evaluation = config.plan.logits = true;
  config.lr = 0;
  config.plan.hyper.weight_decay = 0;
  config.after_steps = ask;
  asked.position = position;
  harness_free(train_on(config, twice));
  memcpy(logits, asked.logits, sizeof asked.logits);
  free_rows(twice);
}

TEST(test_packed_logits) {
  for (int n = 0; n < test_draws(20, 5); n++) {
    source s = {.seed = 7000 + (uint64_t)n};
    harness_config config = draw_config(&s, n % MODELS), single = config;
    rows packed = allocate_rows(&config);
    int64_t documents;
    draw_documents(&s, &config, packed.tokens, packed.starts);
    target_all(&config, packed);
    rows alone = unpack(&config, packed, &documents);
    single.plan.documents = single.plan.cpu_offload = single.plan.sequence_parallel = false;
    single.plan.mesh = fsdp_mesh_of(1, 1);
    single.plan.micro_batches = config.plan.micro_batches = 1;
    config.plan.batch = ROWS / fsdp_mesh_size(&config.plan.mesh, FSDP_AXIS_FSDP);
    single.plan.batch = 1;
    const int64_t position = draw(&s, (int)config.plan.seq), start = packed.starts[position];
    int64_t document = 0;
    for (int64_t i = 0; i < start; i = end_of(&config, packed.starts, i)) document++;
    rows own = {alone.tokens + document * config.plan.seq, alone.targets + document * config.plan.seq, NULL};
    float found[VOCABULARY], expected[VOCABULARY];
    find_logits(config, packed, ROWS, position, found);
    find_logits(single, own, 1, position - start, expected);
    double difference = 0, norm = 0;
    for (int v = 0; v < VOCABULARY; v++) {
      difference += pow((double)found[v] - (double)expected[v], 2);
      norm += pow((double)expected[v], 2);
    }
    if (!(sqrt(difference / norm) <= 2e-6))
      fail_msg("run %d, %s: logits differ by %.2g", n, models[n % MODELS].preset, sqrt(difference / norm));
    free_rows(packed);
    free_rows(alone);
  }
}

// ---- The loss as a mean over documents

static bool counts_in(const harness_config *config, rows r, int64_t first) {
  bool counts = false;
  for (int64_t i = first; i < end_of(config, r.starts, first); i++)
    counts |= r.targets[i] != FSDP_TARGET_IGNORED;
  return counts;
}

// One step over the targets of each document alone, on one rank: its loss and gradients are the means over
// its targets. Adds up to the mean over documents.
static void add_documents(const harness_config *config, rows r, harness_result *sum, double *loss) {
  rows one = {r.tokens, fsdp_alloc((size_t)(ROWS * config->plan.seq) * sizeof(int32_t)), r.starts};
  int64_t documents = 0;
  for (int64_t i = 0; i < ROWS * config->plan.seq; i = end_of(config, r.starts, i))
    documents += counts_in(config, r, i);
  for (int64_t i = 0, end; i < ROWS * config->plan.seq; i = end) {
    end = end_of(config, r.starts, i);
    if (!counts_in(config, r, i)) continue;
    for (int64_t k = 0; k < ROWS * config->plan.seq; k++)
      one.targets[k] = k >= i && k < end ? r.targets[k] : FSDP_TARGET_IGNORED;
    harness_result *own = train_on(*config, one);
    *loss += (double)own->loss[0] / (double)documents;
    for (int p = 0; p < own->param_count; p++)
      for (int64_t e = 0; e < own->gradients[p].numel; e++)
        sum->gradients[p].values[e] += own->gradients[p].values[e] / (float)documents;
    harness_free(own);
  }
  free(one.targets);
}

// Each document counts the same, whatever mesh its row lies on; some of its targets do not count.
TEST(test_loss_of_documents) {
  for (int n = 0; n < test_draws(16, 4); n++) {
    source s = {.seed = 500 + (uint64_t)n};
    harness_config config = draw_config(&s, n % MODELS), single;
    config.plan.seq = 8 + draw(&s, 24);
    config.plan.documents = n % 4 != 3;
    single = config;
    config.plan.loss_of_documents = true;
    single.plan.mesh = fsdp_mesh_of(1, 1);
    single.plan.cpu_offload = single.plan.sequence_parallel = false;
    single.plan.micro_batches = 1;
    single.plan.batch = ROWS;
    rows r = allocate_rows(&config);
    draw_documents(&s, &config, r.tokens, r.starts);
    target_all(&config, r);
    bool any = false;
    for (int64_t i = 0; i < ROWS * config.plan.seq; i++) {
      if (draw(&s, 4) == 0) r.targets[i] = FSDP_TARGET_IGNORED;
      any |= r.targets[i] != FSDP_TARGET_IGNORED;
    }
    if (!any) r.targets[0] = 1;
    double loss = 0;
    harness_result *found = train_on(config, r), *sum = train_on(single, r);
    for (int p = 0; p < sum->param_count; p++)
      memset(sum->gradients[p].values, 0, (size_t)sum->gradients[p].numel * sizeof(float));
    add_documents(&single, r, sum, &loss);
    double gap = fabs((double)found->loss[0] / loss - 1), gradient = distance(found, sum);
    if (!(gap <= 1e-6 && gradient <= 1e-5))
      fail_msg("run %d, %s: loss differs by %.2g, gradients by %.2g", n, models[n % MODELS].preset, gap,
               gradient);
    harness_free(found);
    harness_free(sum);
    free_rows(r);
  }
}

// What a plan is does not depend on documents, and without them nothing of it changes.
TEST(test_plan) {
  fsdp_plan_config config = harness_small_plan(2);
  fsdp_plan *plans[2];
  fsdp_error error;
  for (int i = 0; i < 2; i++) {
    config.documents = i;
    assert_int_equal(fsdp_plan_create(&config, &plans[i], &error), FSDP_OK);
  }
  assert_int_equal(plans[0]->graph->inputs[FSDP_INPUT_STARTS], -1);
  assert_true(plans[0]->program->instr_count + 1 == plans[1]->program->instr_count); // one more copy
  assert_true(fsdp_program_hash(plans[0]->program) != fsdp_program_hash(plans[1]->program));
  const fsdp_value *starts = &plans[1]->graph->values[plans[1]->graph->inputs[FSDP_INPUT_STARTS]];
  assert_int_equal(starts->local_numel, config.batch * config.seq);
  for (int i = 0; i < 2; i++) fsdp_plan_destroy(plans[i]);
}
