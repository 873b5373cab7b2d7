#include "tests/support/harness.h"

#include "models/family.h"
#include "runtime/base/check.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/plan/mesh/boxes.h"
#include "tests/support/models.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_state {
  const harness_config *config;
  harness_result *result;
  unsigned char ***wholes; // by rank, by unit: what zero1 keeps after the last step, NULL: nothing
} run_state;

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
      .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f, .weight_decay = 0.01f},
      .backend = fsdp_plan_backend_cpu(),
  };
}

static bool wants_cuda(const harness_config *config) {
  const char *backend = getenv("FSDP_TEST_BACKEND");
  if (!backend || strcmp(backend, "cuda") != 0 || fsdp_mesh_ranks(&config->plan.mesh) > 1) return false;
  // What is refused on a GPU runs on the CPU here too.
  if (config->plan.model.router_aux == FSDP_ROUTER_AUX_SEQUENCE) return false;
  FSDP_CHECK(fsdp_device_cuda(), "FSDP_TEST_BACKEND=cuda, but this build has no CUDA device");
  return true;
}

static void observe(void *context, const fsdp_trial_rank *rank, const fsdp_instr *instr,
                    const fsdp_view *operands) {
  const run_state *run = context;
  const harness_config *config = run->config;
  if (config->before_instr) config->before_instr(config, rank->rank, instr);
  if (instr->kind == FSDP_INSTR_OP && instr->op == FSDP_OP_ADAMW && config->before_update)
    config->before_update(config, run->result->plan, rank->rank, instr->unit, operands);
}

static fsdp_status read_weights(void *weights, const fsdp_state_range *range, void *values,
                                fsdp_error *error) {
  return fsdp_weights_read(weights, range->param, range->first_elem, range->numel, values, error);
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
static void check_padding(void *context, fsdp_trial_rank *rank) {
  const run_state *run = context;
  const fsdp_plan *plan = run->result->plan;
  fsdp_executor *executor = rank->session.executor;
  for (int u = 0; u < plan->units->count; u++) {
    const fsdp_unit_state *state = &plan->unit_state[u];
    int64_t numel = plan->units->units[u].shard_numel;
    if (numel == 0) continue;
    unsigned char *values = fsdp_alloc((size_t)numel * sizeof(float));
    bool zero = true;
    for (int slot = 0; slot < state->optimizer->slot_count; slot++) {
      fsdp_state_read_shard(executor, slot, u, 0, numel, values);
      zero = zero && is_padded_with_zeros(plan, u, rank->rank, values, fsdp_plan_slot_dtype(plan, slot));
    }
    if (state->copy >= 0) {
      fsdp_device *device = rank->session.device;
      fsdp_dtype dtype = plan->config.param_dtype;
      device->table->read(device, values, fsdp_executor_tensor(executor, state->copy),
                          numel * fsdp_dtype_bytes(dtype));
      zero = zero && is_padded_with_zeros(plan, u, rank->rank, values, dtype);
    }
    free(values);
    if (!zero)
      snprintf(rank->failure, sizeof rank->failure, "padding of unit %s is not zero",
               plan->units->units[u].path);
  }
}

// What the rank keeps of units whole.
static void read_wholes(const run_state *run, fsdp_trial_rank *rank) {
  const fsdp_plan *plan = run->result->plan;
  unsigned char **wholes = run->wholes[rank->rank];
  for (int u = 0; u < plan->units->count; u++) {
    int tensor = plan->unit_state[u].whole;
    if (tensor < 0) continue;
    int64_t bytes = plan->program->tensors[tensor].bytes;
    wholes[u] = fsdp_alloc((size_t)bytes);
    rank->session.device->table->read(rank->session.device, wholes[u],
                                      fsdp_executor_tensor(rank->session.executor, tensor), bytes);
  }
}

static void after_step(void *context, fsdp_trial_rank *rank, int step) {
  const harness_config *config = ((const run_state *)context)->config;
  if (config->after_step) config->after_step(config, rank->session.executor, rank->rank, step);
}

static void end(void *context, fsdp_trial_rank *rank) {
  const run_state *run = context;
  const harness_config *config = run->config;
  check_padding(context, rank);
  read_wholes(run, rank);
  if (config->after_steps) config->after_steps(config, rank->session.executor, rank->rank);
  if (!run->result->digests) return;
  int count = fsdp_plan_digest_count(run->result->plan);
  fsdp_executor_run_check(rank->session.executor, run->result->digests + rank->rank * count);
}

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

// Whether the parameters that a rank keeps whole are the masters of all ranks in param dtype, padded with
// zeros.
static bool wholes_are_masters(const harness_result *result, int rank, int unit, const unsigned char *whole) {
  const fsdp_plan *plan = result->plan;
  const fsdp_unit_range all = {.unit = unit, .rank = rank, .numel = plan->units->units[unit].padded_numel};
  fsdp_dtype dtype = plan->config.param_dtype;
  float *expected = fsdp_alloc_zeroed((size_t)all.numel, sizeof *expected);
  int count;
  fsdp_shard_run *runs = fsdp_units_runs(plan->units, plan->graph, &all, &count);
  for (int i = 0; i < count; i++) {
    const int whole_param = plan->graph->params[runs[i].param].whole;
    const float *masters = result->parameters[whole_param].values + runs[i].element_index;
    memcpy(expected + runs[i].shard_offset, masters, (size_t)runs[i].numel * sizeof *masters);
  }
  bool same = true;
  for (int64_t i = 0; i < all.numel; i++) {
    float rounded = dtype == FSDP_BF16 ? fsdp_bf16_to_f32(fsdp_bf16_from_f32(expected[i])) : expected[i];
    same = same && bits_of(fsdp_trial_value(whole, dtype, i)) == bits_of(rounded);
  }
  free(runs);
  free(expected);
  return same;
}

// Also releases them.
static void compare_wholes(run_state *run, int ranks) {
  harness_result *result = run->result;
  for (int r = 0; r < ranks; r++) {
    for (int u = 0; u < result->plan->units->count; u++) {
      const unsigned char *whole = run->wholes[r][u];
      if (whole && !result->failure[0] && !wholes_are_masters(result, r, u, whole))
        snprintf(result->failure, sizeof result->failure, "rank %d: unit %s is not what the masters are", r,
                 result->plan->units->units[u].path);
      free(run->wholes[r][u]);
    }
    free(run->wholes[r]);
  }
  free(run->wholes);
}

static void take_results(harness_result *result, fsdp_trial *trial) {
  result->trial = trial;
  result->steps = trial->steps;
  result->loss = trial->loss;
  result->grad_norm = trial->grad_norm;
  result->evaluation_loss = trial->evaluation_loss;
  result->gradients = trial->gradients;
  result->parameters = trial->parameters;
  result->param_count = trial->param_count;
  result->measured_valley_bytes = trial->valley_bytes;
  result->measured_peak_bytes = trial->peak_bytes;
  snprintf(result->failure, sizeof result->failure, "%s", trial->failure);
}

static void run_trial(run_state *run, fsdp_weights *weights) {
  const harness_config *config = run->config;
  fsdp_gpu gpu = {.present = wants_cuda(config)};
  const fsdp_trial_config trial = {
      .plan = run->result->plan,
      .steps = config->steps,
      .lr = config->lr,
      .seed = config->seed,
      .spread = config->spread,
      .gradient_first = config->gradient_step,
      .gradient_steps = config->gradient_step >= 0,
      .evaluate = config->evaluate,
      .kernel_threads = config->kernel_threads > 0 ? config->kernel_threads : 1,
      .gpu = &gpu,
      .weights = weights ? read_weights : NULL,
      .weights_context = weights,
      .tokens = config->tokens,
      .targets = config->targets,
      .starts = config->starts,
      .real = config->real,
      .hooks = {.context = run,
                .filled = check_padding,
                .stepped = after_step,
                .ended = end,
                .observe = config->before_update || config->before_instr ? observe : NULL},
  };
  take_results(run->result, fsdp_trial_run(&trial));
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
  result->planned = result->plan->memory;
  result->traffic = result->plan->traffic;
  int ranks = fsdp_mesh_ranks(&config->plan.mesh);
  if (plan.check && fsdp_units_have_replicas(result->plan->units)) {
    size_t digests = (size_t)ranks * (size_t)fsdp_plan_digest_count(result->plan);
    result->digests = fsdp_alloc_zeroed(digests, sizeof *result->digests);
  }
  fsdp_weights *weights = NULL;
  if (config->weights) {
    fsdp_status status = fsdp_weights_open(config->weights, result->plan->graph, 0, &weights, &error);
    FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  }
  run_state run = {.config = config, .result = result};
  run.wholes = fsdp_alloc((size_t)ranks * sizeof *run.wholes);
  for (int r = 0; r < ranks; r++)
    run.wholes[r] = fsdp_alloc_zeroed((size_t)result->plan->units->count, sizeof **run.wholes);
  run_trial(&run, weights);
  compare_wholes(&run, ranks);
  fsdp_weights_close(weights);
  return result;
}

void harness_free(harness_result *result) {
  fsdp_trial_destroy(result->trial);
  free(result->digests);
  fsdp_plan_destroy(result->plan);
  free(result);
}

double harness_difference(const harness_tensor *a, const harness_tensor *b) {
  return fsdp_trial_difference(a, b);
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

// ---- Whether runs train alike

bool harness_near(double found, double expected, double tolerance) {
  return fabs(found - expected) <= tolerance * fabs(expected);
}

double harness_norm(const harness_tensor *tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor->numel; i++) sum += (double)tensor->values[i] * (double)tensor->values[i];
  return sqrt(sum);
}

const char *harness_compare(const harness_result *mine, const harness_result *reference,
                            const harness_tolerance *tolerance) {
  static char text[512];
  if (mine->failure[0]) return mine->failure;
  for (int s = 0; s < mine->steps; s++) {
    snprintf(text, sizeof text, "step %d: loss %.8g for %.8g, norm %.8g for %.8g", s, (double)mine->loss[s],
             (double)reference->loss[s], (double)mine->grad_norm[s], (double)reference->grad_norm[s]);
    if (!harness_near((double)mine->loss[s], (double)reference->loss[s], tolerance->loss) ||
        !harness_near((double)mine->grad_norm[s], (double)reference->grad_norm[s], tolerance->gradient))
      return text;
  }
  double all = 0;
  for (int p = 0; p < reference->param_count; p++) all += pow(harness_norm(&reference->gradients[p]), 2);
  for (int p = 0; p < mine->param_count; p++) {
    double norm = harness_norm(&reference->gradients[p]);
    double gradient = harness_difference(&mine->gradients[p], &reference->gradients[p]);
    double value = harness_difference(&mine->parameters[p], &reference->parameters[p]);
    if (norm > 0) gradient *= norm;
    snprintf(text, sizeof text, "%s: gradient of norm %.3g (%.3g all) differs by %.2g, value by %.2g",
             mine->parameters[p].name, norm, sqrt(all), gradient, value);
    if (!(gradient <= tolerance->gradient * norm + tolerance->noise * sqrt(all) && value <= tolerance->value))
      return text;
  }
  return harness_memory_as_planned(mine, text, sizeof text) ? NULL : text;
}

const char *harness_compare_evaluation(const harness_result *mine, const harness_result *reference,
                                       double tolerance) {
  static char text[128];
  snprintf(text, sizeof text, "evaluation: %.8g for %.8g", (double)mine->evaluation_loss,
           (double)reference->evaluation_loss);
  return harness_near((double)mine->evaluation_loss, (double)reference->evaluation_loss, tolerance) ? NULL
                                                                                                    : text;
}

// ---- As one rank does

// Sums of fp32 in another order. A gradient that is nearly nothing, as that of a query's weight where there
// is one key, is what rounding leaves of terms as large as the others.
const char *harness_same_difference(const harness_result *mine, const harness_result *reference) {
  static const harness_tolerance tolerance = {
      .loss = 1e-5, .gradient = 1e-5, .value = INFINITY, .noise = 1e-6};
  const char *difference = harness_compare(mine, reference, &tolerance);
  return difference ? difference : harness_compare_evaluation(mine, reference, tolerance.loss);
}

harness_result *harness_train_same(const fsdp_plan_config *plan, const int32_t *tokens) {
  const harness_config config = {.plan = *plan,
                                 .steps = HARNESS_SAME_STEPS,
                                 .lr = 3e-4f,
                                 .seed = 7,
                                 .spread = 0.05f,
                                 .tokens = tokens,
                                 .targets = tokens,
                                 .evaluate = !tokens};
  return harness_train(&config);
}

harness_result *harness_train_alone(const fsdp_plan *plan, const int32_t *tokens) {
  int part;
  fsdp_plan_config alone = plan->config;
  alone.batch *= fsdp_plan_batch_part(plan, 0, &part);
  alone.mesh = fsdp_mesh_of(1, 1);
  alone.sharding = NULL;
  alone.op_strategies = NULL;
  alone.strategy = FSDP_FULL;
  alone.accumulate = FSDP_ACCUMULATE_REDUCE;
  alone.cpu_offload = alone.poison = false;
  alone.expert_blocks = 0;
  alone.saving = (fsdp_saving){0};
  harness_result *result = harness_train_same(&alone, tokens);
  FSDP_CHECK(!result->failure[0], "one rank: %s", result->failure);
  return result;
}

// ---- Routed experts

fsdp_plan_config harness_routed_plan(const char *mesh) {
  fsdp_plan_config plan = harness_small_plan(1);
  plan.model.family = family_of_preset("tiny-qwen3-moe");
  plan.model.experts = 5, plan.model.expert_slots = 2, plan.model.expert_size = 11;
  plan.batch = 2;
  plan.evaluation = true;
  plan.grad_clip = 1e-2f; // always clips
  plan.mesh = (fsdp_mesh){0};
  for (const char *at = mesh; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] != 0)) {
    char name[FSDP_AXIS_NAME_BYTES];
    const size_t length = strcspn(at, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, at);
    fsdp_mesh_add(&plan.mesh, name, atoi(at + length + 1));
  }
  fsdp_mesh_complete(&plan.mesh);
  return plan;
}

fsdp_plan_config harness_grouped_plan(const char *mesh, int groups, int each) {
  fsdp_plan_config plan = harness_routed_plan(mesh);
  plan.model.family = family_of_preset("tiny-glm4-moe");
  plan.model.experts = (int64_t)groups * each, plan.model.expert_slots = each;
  plan.model.route_score = FSDP_ROUTE_SIGMOID, plan.model.route_bias = plan.model.router_f32 = true;
  plan.model.normalises_routes = true, plan.model.route_scale = 1;
  plan.model.route_groups = groups, plan.model.route_groups_kept = 1, plan.model.route_group_best = each;
  plan.model.shared_expert_size = 11;
  return plan;
}

void harness_expect_same(const fsdp_plan_config *config, const int32_t *tokens) {
  fsdp_plan *plan;
  fsdp_error error = {0};
  char run[1024];
  describe_plan_config(config, run, sizeof run);
  if (getenv("FSDP_TEST_CASE")) print_message("%s\n", run);
  if (fsdp_plan_create(config, &plan, &error)) fail_msg("%s: %s", run, error.message);
  harness_result *reference = harness_train_alone(plan, tokens), *mine = harness_train_same(config, tokens);
  const char *difference = harness_same_difference(mine, reference);
  if (difference) {
    print_message("%s E=%lld k=%lld\n", run, (long long)config->model.experts,
                  (long long)config->model.expert_slots);
    fail_msg("%s", difference);
  }
  harness_free(mine);
  harness_free(reference);
  fsdp_plan_destroy(plan);
}

// Of a step of all ranks.
static int64_t sequences_of(const fsdp_plan *plan) {
  int part;
  return fsdp_plan_batch_part(plan, 0, &part) * plan->config.micro_batches * plan->config.batch;
}

void harness_rows_of_experts(const harness_result *result, int layer, int64_t *rows) {
  char name[64];
  snprintf(name, sizeof name, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
  const harness_tensor *loads = NULL;
  for (int p = 0; p < result->param_count; p++)
    if (!strcmp(result->gradients[p].name, name)) loads = &result->gradients[p];
  assert_non_null(loads);
  const fsdp_plan_config *c = &result->plan->config;
  const int64_t all = sequences_of(result->plan) * c->seq * c->model.expert_slots;
  for (int64_t e = 0; e < c->model.experts; e++) {
    rows[e] = (llround((double)loads->values[e]) + all) / c->model.experts;
    assert_true((double)(rows[e] * c->model.experts - all) == (double)loads->values[e]);
  }
}

// ---- Gradients against central differences of the loss in double

double *harness_params_after_step(harness_config config) {
  config.steps = 1;
  config.gradient_step = -1;
  harness_result *result = harness_train(&config);
  if (result->failure[0]) fail_msg("%s", result->failure);
  const int64_t count = config.plan.model.family->parameter_count(&config.plan.model);
  double *params = fsdp_alloc((size_t)count * sizeof *params), *at = params;
  for (int p = 0; p < result->param_count; p++)
    for (int64_t i = 0; i < result->parameters[p].numel; i++) *at++ = (double)result->parameters[p].values[i];
  assert_int_equal(at - params, count);
  harness_free(result);
  return params;
}

void harness_check_gradients(harness_config config, double *params, harness_loss *loss, int64_t every) {
  const double step = 1e-5;
  config.steps = 2;
  config.gradient_step = 1;
  harness_result *result = harness_train(&config);
  if (result->failure[0]) fail_msg("%s", result->failure);
  const int64_t begin = sequences_of(result->plan) * config.plan.seq;
  const int32_t *tokens = config.tokens + begin, *targets = config.targets + begin;
  assert_true(fabs((double)result->loss[1] - loss(params, tokens, targets)) < 1e-5);
  int64_t at = 0;
  for (int p = 0; p < result->param_count; p++) {
    const harness_tensor *gradient = &result->gradients[p];
    double error = 0, size = 0;
    for (int64_t i = 0; i < gradient->numel; i++, at++) {
      if (at % every) continue;
      const double kept = params[at];
      params[at] = kept + step;
      const double above = loss(params, tokens, targets);
      params[at] = kept - step;
      const double expected = (above - loss(params, tokens, targets)) / (2 * step);
      params[at] = kept;
      error += pow((double)gradient->values[i] - expected, 2), size += pow(expected, 2);
    }
    if (!(sqrt(error) <= 1e-4 * sqrt(size)))
      fail_msg("%s: gradient off by %.2g of %.2g", gradient->name, sqrt(error), sqrt(size));
  }
  assert_int_equal(at, config.plan.model.family->parameter_count(&config.plan.model));
  harness_free(result);
}
