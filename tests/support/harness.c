#include "tests/support/harness.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/exec/session.h"
#include "runtime/exec/state.h"
#include "runtime/plan/layout/boxes.h"
#include "tests/support/models.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

typedef struct rank_run {
  const harness_config *config;
  harness_result *result;
  fsdp_inproc *inproc;
  fsdp_weights *weights; // NULL: drawn
  fsdp_session session;
  int rank;
  int64_t step, micro_batch; // that is being fed
  int64_t *updates;          // by unit: how many have been observed
  char failure[512];
  float *loss, *grad_norm, evaluation_loss;
  bool evaluating;
  int64_t *valley, *peak;
  unsigned char **wholes; // by unit: what zero1 keeps after the last step, NULL: nothing
  pthread_t thread;
} rank_run;

fsdp_plan_config harness_small_plan(int ranks) {
  return (fsdp_plan_config){
      .model = {.family = family_of_preset("tiny"),
                .vocab_size = 101,
                .hidden_size = 32,
                .intermediate_size = 80,
                .num_layers = 2,
                .num_heads = 4,
                .num_kv_heads = 2,
                .head_dim = 8,
                .max_position_embeddings = 64,
                .norm_eps = 1e-5,
                .rope_theta = 10000,
                .initializer_range = 0.05},
      .batch = 2,
      .seq = 12,
      .micro_batches = 1,
      .strategy = FSDP_FULL,
      .mesh = fsdp_mesh_of(1, ranks),
      .wrap = {.kind = FSDP_WRAP_BLOCK},
      .prefetch = 1,
      .grad_clip = 1.0f,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .adam_eps = 1e-8f,
      .weight_decay = 0.01f,
      .backend = fsdp_plan_backend_cpu(),
  };
}

// Token `position` of a sequence. Sequences are numbered over all steps; a few targets do not count.
static int32_t token_of(const rank_run *run, int64_t sequence, int64_t position) {
  if (run->config->tokens) return run->config->tokens[sequence * run->config->plan.seq + position];
  uint32_t words[4];
  fsdp_random_words(run->config->seed, 1, (uint64_t)(sequence * 4096 + position), words);
  return (int32_t)(words[0] % (uint32_t)run->config->plan.model.vocab_size);
}

// The target at a position: the token after it, or none.
static int32_t target_of(const rank_run *run, int64_t sequence, int64_t position) {
  if (run->config->targets) return run->config->targets[sequence * run->config->plan.seq + position];
  uint32_t words[4];
  fsdp_random_words(run->config->seed, 2, (uint64_t)(sequence * 4096 + position), words);
  return words[0] % 8 != 0 ? token_of(run, sequence, position + 1) : FSDP_TARGET_IGNORED;
}

// Sequence `row / local_seq` of the rank's part of a micro-batch, at the position of index `row % local_seq`.
typedef struct place {
  int64_t sequence, position;
  bool padding;
} place;

static place place_at(const rank_run *run, int64_t micro_batch, int64_t row) {
  const fsdp_plan_config *plan = &run->config->plan;
  const fsdp_rows *rows = &run->result->plan->rows;
  int part, parts = fsdp_plan_batch_part(run->result->plan, run->rank, &part);
  int64_t first = ((run->step * plan->micro_batches + micro_batch) * parts + part) * plan->batch;
  int64_t position =
      fsdp_rows_position(rows, &run->result->plan->units->mesh, run->rank, row % rows->local_seq);
  return (place){first + row / rows->local_seq, position, position >= plan->seq};
}

// The targets of all ranks' sequences of a step.
static float all_targets(const rank_run *run) {
  const fsdp_plan_config *plan = &run->config->plan;
  int part, parts = fsdp_plan_batch_part(run->result->plan, run->rank, &part);
  int64_t sequences = plan->micro_batches * parts * plan->batch, count = 0;
  for (int64_t s = run->step * sequences; s < (run->step + 1) * sequences; s++)
    for (int64_t position = 0; position < plan->seq; position++)
      count += target_of(run, s, position) != FSDP_TARGET_IGNORED;
  return (float)count;
}

static void feed_step(void *context, float scalars[FSDP_SCALAR_COUNT], float *target_count) {
  rank_run *run = context;
  const fsdp_plan_config *plan = &run->config->plan;
  double t = (double)(run->step + 1);
  scalars[FSDP_SCALAR_LR] = run->config->lr;
  scalars[FSDP_SCALAR_CORRECTION1] = (float)(1 - pow(plan->beta1, t));
  scalars[FSDP_SCALAR_CORRECTION2] = (float)(1 - pow(plan->beta2, t));
  scalars[FSDP_SCALAR_STEP] = (float)t;
  if (run->evaluating) {
    *target_count = all_targets(run);
    return;
  }
  *target_count = 0;
  for (int64_t m = 0; m < plan->micro_batches; m++) {
    for (int64_t i = 0; i < plan->batch * run->result->plan->rows.local_seq; i++) {
      place at = place_at(run, m, i);
      if (!at.padding && target_of(run, at.sequence, at.position) != FSDP_TARGET_IGNORED) *target_count += 1;
    }
  }
  run->micro_batch = 0;
}

static void feed_batch(void *context, int32_t *tokens, int32_t *targets) {
  rank_run *run = context;
  const fsdp_plan_config *plan = &run->config->plan;
  const fsdp_rows *rows = &run->result->plan->rows;
  for (int64_t i = 0; i < plan->batch * rows->local_seq; i++) {
    place at = place_at(run, run->micro_batch, i);
    int64_t row = fsdp_rows_row(rows, i / rows->local_seq, i % rows->local_seq);
    tokens[row] = at.padding ? 0 : token_of(run, at.sequence, at.position);
    targets[row] = at.padding ? FSDP_TARGET_IGNORED : target_of(run, at.sequence, at.position);
  }
  if (++run->micro_batch == plan->micro_batches) run->step++;
}

static float value_at(const void *values, fsdp_dtype dtype, int64_t index) {
  return dtype == FSDP_F32 ? ((const float *)values)[index]
                           : fsdp_bf16_to_f32(((const fsdp_bf16 *)values)[index]);
}

static bool wants_cuda(const harness_config *config) {
  const char *backend = getenv("FSDP_TEST_BACKEND");
  if (!backend || strcmp(backend, "cuda") != 0 || fsdp_mesh_ranks(&config->plan.mesh) > 1) return false;
  FSDP_CHECK(fsdp_device_cuda(), "FSDP_TEST_BACKEND=cuda, but this build has no CUDA device");
  return true;
}

// The bytes of an operand in host memory: its own, or a copy for the caller to free.
static const void *read_operand(const rank_run *run, const fsdp_view *view, void **copy) {
  int64_t bytes = view->numel * fsdp_dtype_bytes(view->dtype), offset;
  fsdp_space space = FSDP_SPACE_HOST;
  *copy = NULL;
  fsdp_device *device = run->session.device;
  fsdp_arenas_locate(&device->arenas, view->data, bytes, &space, &offset);
  if (!device->table->enqueues || space == FSDP_SPACE_HOST) return view->data;
  *copy = fsdp_alloc((size_t)bytes);
  device->table->read(device, *copy, view->data, bytes);
  return *copy;
}

// Whether this rank hands out its shard of a unit: one of those that hold the same.
static bool hands_out(const rank_run *run, int unit) {
  const fsdp_units *units = run->result->plan->units;
  return fsdp_mesh_group_of(&units->mesh, units->units[unit].replica_axes, run->rank).rank == 0;
}

// The first operand of an update is the unit's gradient shard.
static void observe(void *context, const fsdp_instr *instr, const fsdp_view *operands) {
  rank_run *run = context;
  if (run->config->before_instr) run->config->before_instr(run->config, run->rank, instr);
  if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_OP_ADAMW) return;
  const fsdp_plan *plan = run->result->plan;
  const harness_config *asked = run->config;
  if (asked->before_update) asked->before_update(asked, plan, run->rank, instr->unit, operands);
  // A unit is updated once per step, always on the same stream.
  if (run->updates[instr->unit]++ != run->config->gradient_step) return;
  if (!hands_out(run, instr->unit)) return;
  int count;
  fsdp_shard_run *runs = fsdp_units_shard_runs(plan->units, plan->graph, instr->unit, run->rank, &count);
  void *copy;
  const void *gradient = read_operand(run, &operands[0], &copy);
  for (int i = 0; i < count; i++) {
    float *whole = run->result->gradients[runs[i].param].values + runs[i].element_index;
    for (int64_t j = 0; j < runs[i].numel; j++) {
      whole[j] = value_at(gradient, operands[0].dtype, runs[i].shard_offset + j);
    }
  }
  free(copy);
  free(runs);
}

static fsdp_status draw(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  const rank_run *run = context;
  if (run->weights)
    return fsdp_weights_read(run->weights, range->param, range->first_elem, range->numel, values, error);
  const fsdp_param *param = &run->result->plan->graph->params[range->param];
  fsdp_random_normal(run->config->seed, fsdp_random_stream(range->name), range->first_elem, range->numel,
                     param->init_mean, fmaxf(param->init_deviation, run->config->spread), values);
  return FSDP_OK;
}

static fsdp_status keep(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  (void)error;
  const rank_run *run = context;
  if (!hands_out(run, run->result->plan->units->unit_of_param[range->param])) return FSDP_OK;
  float *whole = run->result->parameters[range->param].values + range->first_elem;
  for (int64_t i = 0; i < range->numel; i++) whole[i] = value_at(values, range->dtype, i);
  return FSDP_OK;
}

static bool take_figures(rank_run *run, fsdp_executor *executor, int step) {
  fsdp_step_stats stats;
  bool clean = fsdp_executor_step_stats(executor, step + 1, &stats, run->failure, (int)sizeof run->failure);
  int64_t *valley = &run->valley[step * FSDP_SPACE_COUNT], *peak = &run->peak[step * FSDP_SPACE_COUNT];
  memcpy(valley, stats.memory.valley_bytes, sizeof stats.memory.valley_bytes);
  memcpy(peak, stats.memory.peak_bytes, sizeof stats.memory.peak_bytes);
  return clean;
}

// Whether all of a shard that is no parameter's element is zero.
static bool is_padded_with_zeros(const fsdp_plan *plan, int unit, int rank, const unsigned char *values,
                                 fsdp_dtype dtype) {
  int count;
  int64_t width = fsdp_dtype_bytes(dtype), begin = 0, shard = plan->units->units[unit].shard_numel;
  fsdp_shard_run *runs = fsdp_units_shard_runs(plan->units, plan->graph, unit, rank, &count);
  bool zero = true;
  for (int i = 0; i <= count; i++) {
    int64_t end = i < count ? runs[i].shard_offset : shard;
    for (int64_t b = begin * width; b < end * width; b++) zero = zero && values[b] == 0;
    if (i < count) begin = runs[i].shard_offset + runs[i].numel;
  }
  free(runs);
  return zero;
}

// Padding is zero before the first step and after the last: in every slot, and in the copies.
static void check_padding(rank_run *run, fsdp_executor *executor) {
  const fsdp_plan *plan = run->result->plan;
  for (int u = 0; u < plan->units->count; u++) {
    const fsdp_unit_state *state = &plan->unit_state[u];
    int64_t numel = plan->units->units[u].shard_numel;
    if (numel == 0) continue;
    unsigned char *values = fsdp_alloc((size_t)numel * sizeof(float));
    bool zero = true;
    for (int slot = 0; slot < plan->optimizer->slot_count; slot++) {
      fsdp_state_read_shard(executor, slot, u, 0, numel, values);
      zero = zero && is_padded_with_zeros(plan, u, run->rank, values, fsdp_plan_slot_dtype(plan, slot));
    }
    if (state->copy >= 0) {
      fsdp_device *device = run->session.device;
      fsdp_dtype dtype = plan->config.param_dtype;
      device->table->read(device, values, fsdp_executor_tensor(executor, state->copy),
                          numel * fsdp_dtype_bytes(dtype));
      zero = zero && is_padded_with_zeros(plan, u, run->rank, values, dtype);
    }
    free(values);
    if (!zero)
      snprintf(run->failure, sizeof run->failure, "padding of unit %s is not zero",
               plan->units->units[u].path);
  }
}

// What the rank keeps of units whole.
static void read_wholes(rank_run *run, fsdp_executor *executor) {
  const fsdp_plan *plan = run->result->plan;
  for (int u = 0; u < plan->units->count; u++) {
    int tensor = plan->unit_state[u].whole;
    if (tensor < 0) continue;
    int64_t bytes = plan->program->tensors[tensor].bytes;
    run->wholes[u] = fsdp_alloc((size_t)bytes);
    run->session.device->table->read(run->session.device, run->wholes[u],
                                     fsdp_executor_tensor(executor, tensor), bytes);
  }
}

// A micro-batch at a time; each loss is its part of the mean over all.
static void evaluate(rank_run *run, fsdp_executor *executor) {
  run->evaluating = true;
  run->micro_batch = 0;
  for (int m = 0; m < run->config->plan.micro_batches; m++) {
    float loss;
    fsdp_executor_run_evaluation(executor, &loss);
    run->evaluation_loss += loss;
  }
}

static void train(rank_run *run, fsdp_executor *executor) {
  const harness_config *config = run->config;
  fsdp_error error;
  fsdp_status status = config->plan.exchange ? fsdp_state_fill_slice(executor, draw, run, &error)
                                             : fsdp_state_fill(executor, draw, run, &error);
  FSDP_CHECK(status == FSDP_OK, "no weights: %s", error.message);
  fsdp_executor_run_exchange(executor);
  check_padding(run, executor);
  for (int step = 0; step < config->steps; step++) {
    fsdp_step_result result;
    fsdp_executor_run_step(executor, &result);
    run->loss[step] = result.loss;
    run->grad_norm[step] = result.grad_norm;
    if (config->after_step) config->after_step(config, executor, run->rank, step);
    // The figures of the step before: asking for them does not wait for this one, so that steps overlap.
    if (step > 0 && !take_figures(run, executor, step - 1)) return;
  }
  if (!take_figures(run, executor, config->steps - 1)) return;
  fsdp_executor_drain(executor);
  check_padding(run, executor);
  if (config->evaluate) evaluate(run, executor);
  read_wholes(run, executor);
  if (config->after_steps) config->after_steps(config, executor, run->rank);
  if (run->result->digests) {
    int count = fsdp_plan_digest_count(run->result->plan);
    fsdp_executor_run_check(executor, run->result->digests + run->rank * count);
  }
  FSDP_CHECK(fsdp_state_save(executor, FSDP_SLOT_MASTER, keep, run, &error) == FSDP_OK,
             "weights were refused");
}

static void *run_rank(void *argument) {
  rank_run *run = argument;
  const harness_config *asked = run->config;
  fsdp_gpu gpu = {.present = wants_cuda(asked)};
  fsdp_session_config config = {
      .plan = run->result->plan,
      .inproc = gpu.present ? NULL : run->inproc,
      .rank = run->rank,
      .gpu = &gpu,
      .threads = asked->kernel_threads > 0 ? asked->kernel_threads : 1,
      .callbacks = {.context = run, .feed_step = feed_step, .feed_batch = feed_batch},
      .seed = asked->seed,
      .measure = true,
  };
  if (asked->gradient_step >= 0 || asked->before_update || asked->before_instr)
    config.callbacks.observe = observe;
  fsdp_error error;
  fsdp_status status = fsdp_session_create(&config, &run->session, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  train(run, run->session.executor);
  fsdp_session_destroy(&run->session);
  return NULL;
}

static harness_tensor *make_tensors(const fsdp_graph *graph) {
  harness_tensor *tensors = fsdp_alloc((size_t)graph->param_count * sizeof *tensors);
  for (int p = 0; p < graph->param_count; p++) {
    tensors[p] = (harness_tensor){.name = graph->params[p].name,
                                  .values = fsdp_alloc_zeroed((size_t)graph->params[p].numel, sizeof(float)),
                                  .numel = graph->params[p].numel};
  }
  return tensors;
}

static void free_tensors(harness_tensor *tensors, int count) {
  for (int i = 0; tensors && i < count; i++) free(tensors[i].values);
  free(tensors);
}

static rank_run *start_ranks(const harness_config *config, harness_result *result, fsdp_inproc *inproc,
                             fsdp_weights *weights) {
  int ranks = fsdp_mesh_ranks(&config->plan.mesh);
  size_t steps = (size_t)config->steps;
  rank_run *runs = fsdp_alloc_zeroed((size_t)ranks, sizeof *runs);
  for (int r = 0; r < ranks; r++) {
    rank_run *run = &runs[r];
    *run = (rank_run){.config = config, .result = result, .inproc = inproc, .weights = weights, .rank = r};
    run->updates = fsdp_alloc_zeroed((size_t)result->plan->units->count, sizeof(int64_t));
    run->wholes = fsdp_alloc_zeroed((size_t)result->plan->units->count, sizeof *run->wholes);
    run->loss = fsdp_alloc_zeroed(steps, sizeof(float));
    run->grad_norm = fsdp_alloc_zeroed(steps, sizeof(float));
    run->valley = fsdp_alloc_zeroed(steps * FSDP_SPACE_COUNT, sizeof(int64_t));
    run->peak = fsdp_alloc_zeroed(steps * FSDP_SPACE_COUNT, sizeof(int64_t));
    FSDP_CHECK(pthread_create(&run->thread, NULL, run_rank, run) == 0, "a rank could not be started");
  }
  return runs;
}

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

// Whether the parameters that a rank keeps whole are the masters of all ranks in param dtype, padded with
// zeros.
static bool wholes_are_masters(const harness_result *result, const rank_run *run, int unit) {
  const fsdp_plan *plan = result->plan;
  const fsdp_unit_range all = {
      .unit = unit, .rank = run->rank, .numel = plan->units->units[unit].padded_numel};
  fsdp_dtype dtype = plan->config.param_dtype;
  float *expected = fsdp_alloc_zeroed((size_t)all.numel, sizeof *expected);
  int count;
  fsdp_shard_run *runs = fsdp_units_runs(plan->units, plan->graph, &all, &count);
  for (int i = 0; i < count; i++) {
    const float *masters = result->parameters[runs[i].param].values + runs[i].element_index;
    memcpy(expected + runs[i].shard_offset, masters, (size_t)runs[i].numel * sizeof *masters);
  }
  bool same = true;
  for (int64_t i = 0; i < all.numel; i++) {
    float rounded = dtype == FSDP_BF16 ? fsdp_bf16_to_f32(fsdp_bf16_from_f32(expected[i])) : expected[i];
    same = same && bits_of(value_at(run->wholes[unit], dtype, i)) == bits_of(rounded);
  }
  free(runs);
  free(expected);
  return same;
}

static void compare_wholes(harness_result *result, const rank_run *run) {
  for (int u = 0; u < result->plan->units->count; u++)
    if (run->wholes[u] && !wholes_are_masters(result, run, u))
      snprintf(result->failure, sizeof result->failure, "rank %d: unit %s is not what the masters are",
               run->rank, result->plan->units->units[u].path);
}

// Whether a rank's peaks are rank 0's. A rank whose rows or columns are padding alone, if anything is cut
// beside the batch, has less: it reads no positions, or nothing of what it has columns of.
static bool peaks_fit(const harness_result *result, const rank_run *run, const rank_run *first) {
  int part, ranks = fsdp_mesh_ranks(&result->plan->config.mesh);
  bool may_pad = fsdp_plan_batch_part(result->plan, 0, &part) < ranks;
  for (int i = 0; i < result->steps * FSDP_SPACE_COUNT; i++)
    if (run->peak[i] > first->peak[i] || (run->peak[i] < first->peak[i] && !may_pad)) return false;
  return true;
}

// What every rank must see alike.
static void compare_ranks(harness_result *result, const rank_run *runs, int ranks) {
  size_t floats = (size_t)result->steps * sizeof(float);
  size_t sizes = (size_t)result->steps * FSDP_SPACE_COUNT * sizeof(int64_t);
  for (int r = ranks - 1; r >= 0; r--) {
    const char *what = NULL;
    if (memcmp(runs[r].loss, runs[0].loss, floats) != 0) what = "loss";
    if (memcmp(runs[r].grad_norm, runs[0].grad_norm, floats) != 0) what = "gradient norm";
    if (bits_of(runs[r].evaluation_loss) != bits_of(runs[0].evaluation_loss)) what = "loss of the evaluation";
    if (memcmp(runs[r].valley, runs[0].valley, sizes) != 0) what = "measured valley";
    if (!peaks_fit(result, &runs[r], &runs[0])) what = "measured peak";
    if (what)
      snprintf(result->failure, sizeof result->failure, "rank %d: its %s differs from rank 0's", r, what);
    compare_wholes(result, &runs[r]);
    if (runs[r].failure[0]) {
      snprintf(result->failure, sizeof result->failure, "rank %d: %.480s", r, runs[r].failure);
    }
  }
}

harness_result *harness_train(const harness_config *config) {
  harness_result *result = fsdp_alloc_zeroed(1, sizeof *result);
  fsdp_error error;
  fsdp_plan_config plan = config->plan;
  if (wants_cuda(config)) plan.backend = fsdp_plan_backend_cuda();
  if (fsdp_plan_create(&plan, &result->plan, &error) != FSDP_OK) {
    snprintf(result->failure, sizeof result->failure, "%.500s", error.message);
    return result;
  }
  result->steps = config->steps;
  result->planned = result->plan->memory;
  result->traffic = result->plan->traffic;
  result->param_count = result->plan->graph->param_count;
  result->parameters = make_tensors(result->plan->graph);
  if (config->gradient_step >= 0) result->gradients = make_tensors(result->plan->graph);
  int ranks = fsdp_mesh_ranks(&config->plan.mesh);
  if (plan.check && fsdp_units_have_replicas(result->plan->units)) {
    size_t digests = (size_t)ranks * (size_t)fsdp_plan_digest_count(result->plan);
    result->digests = fsdp_alloc_zeroed(digests, sizeof *result->digests);
  }
  fsdp_weights *weights = NULL;
  if (config->weights) {
    fsdp_status status = fsdp_weights_open(config->weights, result->plan->graph, &weights, &error);
    FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  }
  fsdp_inproc *inproc = fsdp_session_inproc(result->plan);
  rank_run *runs = start_ranks(config, result, inproc, weights);
  for (int r = 0; r < ranks; r++) pthread_join(runs[r].thread, NULL);
  compare_ranks(result, runs, ranks);
  result->loss = runs[0].loss;
  result->grad_norm = runs[0].grad_norm;
  result->evaluation_loss = runs[0].evaluation_loss;
  result->measured_valley_bytes = runs[0].valley;
  result->measured_peak_bytes = runs[0].peak;
  for (int r = 0; r < ranks; r++) {
    free(runs[r].updates);
    for (int u = 0; u < result->plan->units->count; u++) free(runs[r].wholes[u]);
    free(runs[r].wholes);
    if (r == 0) continue;
    free(runs[r].loss), free(runs[r].grad_norm), free(runs[r].valley), free(runs[r].peak);
  }
  free(runs);
  fsdp_inproc_destroy(inproc);
  fsdp_weights_close(weights);
  return result;
}

void harness_free(harness_result *result) {
  free_tensors(result->gradients, result->param_count);
  free_tensors(result->parameters, result->param_count);
  free(result->loss), free(result->grad_norm), free(result->digests);
  free(result->measured_valley_bytes), free(result->measured_peak_bytes);
  fsdp_plan_destroy(result->plan);
  free(result);
}

double harness_difference(const harness_tensor *a, const harness_tensor *b) {
  FSDP_CHECK(a->numel == b->numel, "%s and %s differ in size", a->name, b->name);
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < a->numel; i++) {
    double d = (double)a->values[i] - (double)b->values[i];
    difference += d * d;
    norm += (double)b->values[i] * (double)b->values[i];
  }
  return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

bool harness_memory_as_planned(const harness_result *result, char *message, int message_bytes) {
  for (int i = 0; i < result->steps * FSDP_SPACE_COUNT; i++) {
    const fsdp_memory_space_report *planned = &result->planned.space[i % FSDP_SPACE_COUNT];
    if (result->measured_valley_bytes[i] == planned->valley_bytes &&
        result->measured_peak_bytes[i] == planned->peak_bytes) {
      continue;
    }
    snprintf(message, (size_t)message_bytes,
             "step %d, %s: valley %lld, peak %lld measured; %lld and %lld planned", i / FSDP_SPACE_COUNT,
             i % FSDP_SPACE_COUNT == FSDP_SPACE_DEVICE ? "device" : "host",
             (long long)result->measured_valley_bytes[i], (long long)result->measured_peak_bytes[i],
             (long long)planned->valley_bytes, (long long)planned->peak_bytes);
    return false;
  }
  return true;
}
