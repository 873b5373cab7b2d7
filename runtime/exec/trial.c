#include "runtime/exec/trial.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/plan/mesh/boxes.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_run {
  fsdp_trial_rank rank;
  const fsdp_trial_config *config;
  fsdp_trial *trial;
  fsdp_inproc *inproc;
  int64_t step, micro_batch; // that is being fed
  int64_t *updates;          // by unit: how many have been observed
  float *loss, *grad_norm, evaluation_loss;
  bool evaluating;
  int64_t *valley, *peak;
  pthread_t thread;
} rank_run;

float fsdp_trial_value(const void *values, fsdp_dtype dtype, int64_t index) {
  return dtype == FSDP_F32 ? ((const float *)values)[index]
                           : fsdp_bf16_to_f32(((const fsdp_bf16 *)values)[index]);
}

bool fsdp_trial_hands_out(const fsdp_plan *plan, int unit, int rank) {
  return fsdp_mesh_group_of(&plan->units->mesh, plan->units->units[unit].replica_axes, rank).rank == 0;
}

// ---- Tokens

// Token `position` of a sequence. Sequences are numbered over all steps; a few targets do not count.
static int32_t token_of(const rank_run *run, int64_t sequence, int64_t position) {
  const fsdp_plan_config *plan = &run->config->plan->config;
  if (run->config->tokens) return run->config->tokens[sequence * plan->seq + position];
  uint32_t words[4];
  fsdp_random_words(run->config->seed, 1, (uint64_t)(sequence * 4096 + position), words);
  return (int32_t)(words[0] % (uint32_t)plan->model.vocab_size);
}

// The target at a position: the token after it, or none.
static int32_t target_of(const rank_run *run, int64_t sequence, int64_t position) {
  if (run->config->targets) return run->config->targets[sequence * run->config->plan->config.seq + position];
  uint32_t words[4];
  fsdp_random_words(run->config->seed, 2, (uint64_t)(sequence * 4096 + position), words);
  return words[0] % 8 != 0 ? token_of(run, sequence, position + 1) : FSDP_TARGET_IGNORED;
}

// Whether a position holds a token for routers' sums: of drawn sequences some end early.
static bool is_real(const rank_run *run, int64_t sequence, int64_t position) {
  const int64_t seq = run->config->plan->config.seq;
  if (position >= seq) return false;
  if (run->config->real) return run->config->real[sequence * seq + position];
  if (run->config->tokens) return true;
  uint32_t words[4];
  fsdp_random_words(run->config->seed, 4, (uint64_t)sequence, words);
  return words[0] % 2 || position <= (int64_t)(words[1] % (uint32_t)seq);
}

// Position of the first token of the document that a position belongs to; `previous` is that of the position
// before.
static int32_t start_of(const rank_run *run, int64_t sequence, int64_t position, int32_t previous) {
  const fsdp_plan_config *plan = &run->config->plan->config;
  if (position >= plan->seq) return (int32_t)position; // padding sees itself alone
  if (run->config->starts) return run->config->starts[sequence * plan->seq + position];
  uint32_t words[4];
  fsdp_random_words(run->config->seed, 3, (uint64_t)(sequence * 4096 + position), words);
  return words[0] % 6 == 0 ? (int32_t)position : previous;
}

// How many targets of a position's document count, and whether none before it does; zeros where its own does
// not.
typedef struct learned {
  int32_t count;
  bool is_first;
} learned;

static learned learned_of(const rank_run *run, int64_t sequence, int64_t position) {
  learned of = {.is_first = true};
  int32_t start = 0, own = -1;
  if (target_of(run, sequence, position) == FSDP_TARGET_IGNORED) return (learned){0};
  for (int64_t at = 0; at <= position; at++) own = start_of(run, sequence, at, own < 0 ? 0 : own);
  for (int64_t at = 0; at < run->config->plan->config.seq; at++) {
    start = start_of(run, sequence, at, start);
    const bool counts = start == own && target_of(run, sequence, at) != FSDP_TARGET_IGNORED;
    of.count += counts;
    of.is_first = of.is_first && !(counts && at < position);
  }
  return of;
}

// What the loss is a mean over at a position: a target that counts, or the first one of its document.
static bool is_counted(const rank_run *run, int64_t sequence, int64_t position) {
  if (run->config->plan->config.loss_of_documents) return learned_of(run, sequence, position).is_first;
  return target_of(run, sequence, position) != FSDP_TARGET_IGNORED;
}

// The first sequence of the rank's part of a micro-batch.
static int64_t first_sequence(const rank_run *run, int64_t micro_batch) {
  const fsdp_plan_config *c = &run->config->plan->config;
  int part, parts = fsdp_plan_batch_part(run->config->plan, run->rank.rank, &part);
  return ((run->step * c->micro_batches + micro_batch) * parts + part) * c->batch;
}

// Sequence `row / local_seq` of the rank's part of a micro-batch, at the position of index `row % local_seq`.
typedef struct place {
  int64_t sequence, position;
  bool padding;
} place;

static place place_at(const rank_run *run, int64_t micro_batch, int64_t row) {
  const fsdp_plan *plan = run->config->plan;
  const fsdp_plan_config *c = &plan->config;
  const fsdp_rows *rows = &plan->rows;
  int64_t first = first_sequence(run, micro_batch);
  int64_t position = fsdp_rows_position(rows, &plan->units->mesh, run->rank.rank, row % rows->local_seq);
  return (place){first + row / rows->local_seq, position, position >= c->seq};
}

// The targets of all ranks' sequences of a step.
static float all_targets(const rank_run *run) {
  const fsdp_plan_config *plan = &run->config->plan->config;
  int part, parts = fsdp_plan_batch_part(run->config->plan, run->rank.rank, &part);
  int64_t sequences = plan->micro_batches * parts * plan->batch, count = 0;
  for (int64_t s = run->step * sequences; s < (run->step + 1) * sequences; s++)
    for (int64_t position = 0; position < plan->seq; position++) count += is_counted(run, s, position);
  return (float)count;
}

static void feed_step(void *context, float scalars[FSDP_SCALAR_COUNT], float *target_count) {
  rank_run *run = context;
  const fsdp_plan_config *plan = &run->config->plan->config;
  if (run->evaluating || plan->evaluation_only) {
    *target_count = all_targets(run);
    return;
  }
  scalars[FSDP_SCALAR_LR] = run->config->lr;
  fsdp_optimizer_scalars(plan->optimizer, &plan->hyper, (double)(run->step + 1), scalars);
  *target_count = 0;
  for (int64_t m = 0; m < plan->micro_batches; m++) {
    for (int64_t i = 0; i < plan->batch * run->config->plan->rows.local_seq; i++) {
      place at = place_at(run, m, i);
      if (!at.padding && is_counted(run, at.sequence, at.position)) *target_count += 1;
    }
  }
  run->micro_batch = 0;
}

static void fill_starts(const rank_run *run, int64_t micro_batch, int32_t *starts) {
  const fsdp_plan_config *c = &run->config->plan->config;
  const fsdp_rows *rows = &run->config->plan->rows;
  int64_t positions = rows->parts * rows->local_seq;
  for (int64_t s = 0; s < c->batch; s++) {
    int64_t sequence = first_sequence(run, micro_batch) + s;
    int32_t start = 0;
    for (int64_t position = 0; position < positions; position++)
      starts[s * positions + position] = start = start_of(run, sequence, position, start);
  }
}

// Dropout's draws, none in an evaluation.
static void fill_draws(const rank_run *run, int64_t micro_batch, int32_t *draws) {
  const fsdp_plan_config *plan = &run->config->plan->config;
  const fsdp_rows *rows = &run->config->plan->rows;
  const bool drops = !run->evaluating && !plan->evaluation_only;
  int part, parts = fsdp_plan_batch_part(run->config->plan, run->rank.rank, &part);
  const int64_t step_sequences = plan->micro_batches * parts * plan->batch;
  for (int64_t i = 0; i < plan->batch * rows->local_seq; i++) {
    const place at = place_at(run, micro_batch, i);
    int32_t *row = draws + FSDP_DROPOUT_WORDS * fsdp_rows_row(rows, i / rows->local_seq, i % rows->local_seq);
    memset(row, 0, FSDP_DROPOUT_WORDS * sizeof *row);
    if (drops)
      fsdp_dropout_row(run->config->seed, at.sequence / step_sequences, at.sequence % step_sequences,
                       at.position, row);
  }
}

static void feed_batch(void *context, int32_t *const inputs[FSDP_INPUT_COUNT]) {
  rank_run *run = context;
  const fsdp_plan_config *plan = &run->config->plan->config;
  const fsdp_rows *rows = &run->config->plan->rows;
  for (int64_t i = 0; i < plan->batch * rows->local_seq; i++) {
    place at = place_at(run, run->micro_batch, i);
    int64_t row = fsdp_rows_row(rows, i / rows->local_seq, i % rows->local_seq);
    inputs[FSDP_INPUT_TOKENS][row] = at.padding ? 0 : token_of(run, at.sequence, at.position);
    inputs[FSDP_INPUT_TARGETS][row] =
        at.padding ? FSDP_TARGET_IGNORED : target_of(run, at.sequence, at.position);
    if (inputs[FSDP_INPUT_REAL]) inputs[FSDP_INPUT_REAL][row] = is_real(run, at.sequence, at.position);
    if (inputs[FSDP_INPUT_LEARNED])
      inputs[FSDP_INPUT_LEARNED][row] = at.padding ? 0 : learned_of(run, at.sequence, at.position).count;
  }
  if (inputs[FSDP_INPUT_STARTS]) fill_starts(run, run->micro_batch, inputs[FSDP_INPUT_STARTS]);
  if (inputs[FSDP_INPUT_DRAWS]) fill_draws(run, run->micro_batch, inputs[FSDP_INPUT_DRAWS]);
  if (++run->micro_batch == plan->micro_batches) run->step++;
}

// ---- Gradients and weights

// The bytes of an operand in host memory: its own, or a copy for the caller to free.
static const void *read_operand(rank_run *run, const fsdp_view *view, void **copy) {
  int64_t bytes = view->numel * fsdp_dtype_bytes(view->dtype), offset;
  fsdp_space space = FSDP_SPACE_HOST;
  *copy = NULL;
  fsdp_device *device = run->rank.session.device;
  fsdp_arenas_locate(&device->arenas, view->data, bytes, &space, &offset);
  if (!device->table->enqueues || space == FSDP_SPACE_HOST) return view->data;
  *copy = fsdp_alloc((size_t)bytes);
  device->table->read(device, *copy, view->data, bytes);
  return *copy;
}

// The first operand of an update is the unit's gradient shard.
static void keep_gradient(rank_run *run, int64_t index, int unit, const fsdp_view *operands) {
  const fsdp_plan *plan = run->config->plan;
  fsdp_trial_tensor *gradients = &run->trial->gradients[index * run->trial->param_count];
  int count;
  fsdp_shard_run *runs = fsdp_units_shard_runs(plan->units, plan->graph, unit, run->rank.rank, &count);
  void *copy;
  const void *gradient = read_operand(run, &operands[0], &copy);
  for (int i = 0; i < count; i++) {
    float *whole = gradients[plan->graph->params[runs[i].param].whole].values + runs[i].element_index;
    for (int64_t j = 0; j < runs[i].numel; j++)
      whole[j] = fsdp_trial_value(gradient, operands[0].dtype, runs[i].shard_offset + j);
  }
  free(copy);
  free(runs);
}

static void observe(void *context, const fsdp_instr *instr, const fsdp_view *operands) {
  rank_run *run = context;
  const fsdp_trial_config *config = run->config;
  if (config->hooks.observe) config->hooks.observe(config->hooks.context, &run->rank, instr, operands);
  if (instr->kind != FSDP_INSTR_OP || instr->unit < 0 ||
      instr->op != config->plan->unit_state[instr->unit].optimizer->update)
    return;
  // A unit is updated once per step, always on the same stream.
  int64_t index = run->updates[instr->unit]++ - config->gradient_first;
  if (index < 0 || index >= config->gradient_steps) return;
  if (fsdp_trial_hands_out(config->plan, instr->unit, run->rank.rank))
    keep_gradient(run, index, instr->unit, operands);
}

static fsdp_status draw(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  (void)error;
  const rank_run *run = context;
  const fsdp_param *param = &run->config->plan->graph->params[range->param];
  fsdp_random_normal(run->config->seed, fsdp_random_stream(range->name), range->first_elem, range->numel,
                     param->init_mean, fmaxf(param->init_deviation, run->config->spread), values);
  return FSDP_OK;
}

static fsdp_status keep(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  (void)error;
  const rank_run *run = context;
  const fsdp_plan *plan = run->config->plan;
  if (!fsdp_trial_hands_out(plan, range->unit, run->rank.rank)) return FSDP_OK;
  float *whole = run->trial->parameters[range->param].values + range->first_elem;
  for (int64_t i = 0; i < range->numel; i++) whole[i] = fsdp_trial_value(values, range->dtype, i);
  return FSDP_OK;
}

static void fill(rank_run *run) {
  const fsdp_trial_config *config = run->config;
  fsdp_executor *executor = run->rank.session.executor;
  fsdp_state_callback source = config->weights ? config->weights : draw;
  void *context = config->weights ? config->weights_context : run;
  fsdp_error error;
  fsdp_status status = fsdp_state_fill(executor, source, context, &error);
  FSDP_CHECK(status == FSDP_OK, "no weights: %s", error.message);
  fsdp_executor_run_exchange(executor);
}

// ---- A rank

static bool take_figures(rank_run *run, int step) {
  fsdp_step_stats stats;
  bool clean = fsdp_executor_step_stats(run->rank.session.executor, step + 1, &stats, run->rank.failure,
                                        (int)sizeof run->rank.failure);
  int64_t *valley = &run->valley[step * FSDP_SPACE_COUNT], *peak = &run->peak[step * FSDP_SPACE_COUNT];
  memcpy(valley, stats.memory.valley_bytes, sizeof stats.memory.valley_bytes);
  memcpy(peak, stats.memory.peak_bytes, sizeof stats.memory.peak_bytes);
  return clean;
}

// A micro-batch at a time; each loss is its part of the mean over all.
static void evaluate(rank_run *run) {
  run->evaluating = true;
  run->micro_batch = 0;
  for (int m = 0; m < run->config->plan->config.micro_batches; m++) {
    float loss;
    fsdp_executor_run_evaluation(run->rank.session.executor, &loss);
    run->evaluation_loss += loss;
  }
}

static void train(rank_run *run) {
  const fsdp_trial_config *config = run->config;
  const fsdp_trial_hooks *hooks = &config->hooks;
  fsdp_executor *executor = run->rank.session.executor;
  fsdp_error error;
  fill(run);
  if (hooks->filled) hooks->filled(hooks->context, &run->rank);
  for (int step = 0; step < config->steps; step++) {
    fsdp_step_result result;
    fsdp_executor_run_step(executor, &result);
    run->loss[step] = result.loss;
    run->grad_norm[step] = result.grad_norm;
    if (hooks->stepped) hooks->stepped(hooks->context, &run->rank, step);
    // The figures of the step before: asking for them does not wait for this one, so that steps overlap.
    if (step > 0 && !take_figures(run, step - 1)) return;
  }
  if (!take_figures(run, config->steps - 1)) return;
  fsdp_executor_drain(executor);
  if (config->evaluate) evaluate(run);
  if (hooks->ended) hooks->ended(hooks->context, &run->rank);
  FSDP_CHECK(fsdp_state_save(executor, FSDP_SLOT_MASTER, keep, run, &error) == FSDP_OK,
             "weights were refused");
}

static void *run_rank(void *argument) {
  rank_run *run = argument;
  const fsdp_trial_config *asked = run->config;
  bool gpu = asked->gpu && asked->gpu->present;
  fsdp_session_config config = {
      .plan = asked->plan,
      .inproc = gpu ? NULL : run->inproc,
      .rank = run->rank.rank,
      .gpu = asked->gpu,
      .threads = asked->kernel_threads,
      .callbacks = {.context = run, .feed_step = feed_step, .feed_batch = feed_batch},
      .seed = asked->seed,
      .measure = !asked->traced.last,
      .profile = asked->traced.last > 0,
      .traced = asked->traced,
  };
  if (asked->gradient_steps > 0 || asked->hooks.observe) config.callbacks.observe = observe;
  fsdp_error error;
  fsdp_status status = fsdp_session_create(&config, &run->rank.session, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  train(run);
  fsdp_session_destroy(&run->rank.session);
  return NULL;
}

// ---- All ranks

static void add_tensors(const fsdp_graph *graph, int copies, fsdp_trial_tensor **out) {
  if (!copies) return;
  fsdp_trial_tensor *tensors = fsdp_alloc((size_t)copies * (size_t)graph->param_count * sizeof *tensors);
  for (int i = 0; i < copies * graph->param_count; i++) {
    const fsdp_param *param = &graph->params[i % graph->param_count];
    tensors[i] = (fsdp_trial_tensor){.name = param->name,
                                     .values = fsdp_alloc_zeroed((size_t)param->numel, sizeof(float)),
                                     .numel = param->numel};
  }
  *out = tensors;
}

static void free_tensors(fsdp_trial_tensor *tensors, int count) {
  for (int i = 0; tensors && i < count; i++) free(tensors[i].values);
  free(tensors);
}

static rank_run *start_ranks(const fsdp_trial_config *config, fsdp_trial *trial, fsdp_inproc *inproc,
                             int ranks) {
  size_t steps = (size_t)config->steps;
  rank_run *runs = fsdp_alloc_zeroed((size_t)ranks, sizeof *runs);
  for (int r = 0; r < ranks; r++) {
    rank_run *run = &runs[r];
    *run = (rank_run){.config = config, .trial = trial, .inproc = inproc, .rank = {.rank = r}};
    run->updates = fsdp_alloc_zeroed((size_t)config->plan->units->count, sizeof(int64_t));
    run->loss = fsdp_alloc_zeroed(steps, sizeof(float));
    run->grad_norm = fsdp_alloc_zeroed(steps, sizeof(float));
    run->valley = fsdp_alloc_zeroed(steps * FSDP_SPACE_COUNT, sizeof(int64_t));
    run->peak = fsdp_alloc_zeroed(steps * FSDP_SPACE_COUNT, sizeof(int64_t));
    const int failure = pthread_create(&run->thread, NULL, run_rank, run);
    FSDP_NEED_THREAD(failure, "the thread of rank %d of %d", r, ranks);
  }
  return runs;
}

// Whether a rank's peaks are rank 0's. A rank whose rows or columns are padding alone, if anything is cut
// beside the batch, has less: it reads no positions, or nothing of what it has columns of.
static bool peaks_fit(const fsdp_trial *trial, const rank_run *run, const rank_run *first, int ranks) {
  int part;
  bool may_pad = fsdp_plan_batch_part(run->config->plan, 0, &part) < ranks;
  for (int i = 0; i < trial->steps * FSDP_SPACE_COUNT; i++)
    if (run->peak[i] > first->peak[i] || (run->peak[i] < first->peak[i] && !may_pad)) return false;
  return true;
}

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

// What every rank must see alike.
static void compare_ranks(fsdp_trial *trial, const rank_run *runs, int ranks) {
  size_t floats = (size_t)trial->steps * sizeof(float);
  size_t sizes = (size_t)trial->steps * FSDP_SPACE_COUNT * sizeof(int64_t);
  for (int r = ranks - 1; r >= 0; r--) {
    const char *what = NULL;
    if (memcmp(runs[r].loss, runs[0].loss, floats) != 0) what = "loss";
    if (memcmp(runs[r].grad_norm, runs[0].grad_norm, floats) != 0) what = "gradient norm";
    if (bits_of(runs[r].evaluation_loss) != bits_of(runs[0].evaluation_loss)) what = "loss of the evaluation";
    if (memcmp(runs[r].valley, runs[0].valley, sizes) != 0) what = "measured valley";
    if (!peaks_fit(trial, &runs[r], &runs[0], ranks)) what = "measured peak";
    if (what)
      snprintf(trial->failure, sizeof trial->failure, "rank %d: its %s differs from rank 0's", r, what);
    if (runs[r].rank.failure[0])
      snprintf(trial->failure, sizeof trial->failure, "rank %d: %.480s", r, runs[r].rank.failure);
  }
}

fsdp_trial *fsdp_trial_run(const fsdp_trial_config *config) {
  const fsdp_graph *graph = config->plan->graph;
  fsdp_trial *trial = fsdp_alloc_zeroed(1, sizeof *trial);
  int ranks = fsdp_mesh_ranks(&config->plan->config.mesh);
  trial->steps = config->steps;
  trial->param_count = graph->param_count;
  trial->moves_biases = config->plan->config.hyper.balance_rate > 0;
  add_tensors(graph, 1, &trial->parameters);
  add_tensors(graph, config->gradient_steps, &trial->gradients);
  fsdp_inproc *inproc = fsdp_session_inproc(config->plan);
  rank_run *runs = start_ranks(config, trial, inproc, ranks);
  for (int r = 0; r < ranks; r++) pthread_join(runs[r].thread, NULL);
  compare_ranks(trial, runs, ranks);
  trial->loss = runs[0].loss;
  trial->grad_norm = runs[0].grad_norm;
  trial->evaluation_loss = runs[0].evaluation_loss;
  trial->valley_bytes = runs[0].valley;
  trial->peak_bytes = runs[0].peak;
  for (int r = 0; r < ranks; r++) {
    free(runs[r].updates);
    if (r == 0) continue;
    free(runs[r].loss), free(runs[r].grad_norm), free(runs[r].valley), free(runs[r].peak);
  }
  free(runs);
  fsdp_inproc_destroy(inproc);
  trial->gradient_steps = config->gradient_steps;
  return trial;
}

void fsdp_trial_destroy(fsdp_trial *trial) {
  if (!trial) return;
  free_tensors(trial->gradients, trial->gradient_steps * trial->param_count);
  free_tensors(trial->parameters, trial->param_count);
  free(trial->loss), free(trial->grad_norm);
  free(trial->valley_bytes), free(trial->peak_bytes);
  free(trial);
}

double fsdp_trial_difference(const fsdp_trial_tensor *a, const fsdp_trial_tensor *b) {
  FSDP_CHECK(a->numel == b->numel, "%s and %s differ in size", a->name, b->name);
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < a->numel; i++) {
    double d = (double)a->values[i] - (double)b->values[i];
    difference += d * d;
    norm += (double)b->values[i] * (double)b->values[i];
  }
  return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
