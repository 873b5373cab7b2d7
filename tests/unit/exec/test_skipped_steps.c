// A step that is skipped leaves parameters, moments and copies as they were to the bit, under every strategy,
// and measures the memory that was planned. Others round bf16 states by the random bits of (seed, update,
// parameter's name, element), however the parameter is sharded.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/device/pool.h"
#include "runtime/exec/state.h"
#include "runtime/plan/mesh/boxes.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Under fsdp=5,tensor=2 shards begin inside a row of a matrix cut by columns.
static const struct {
  fsdp_strategy strategy;
  int data, fsdp, tensor, context;
} places[] = {{FSDP_FULL, 1, 1, 1, 1},    {FSDP_FULL, 1, 2, 1, 1},    {FSDP_FULL, 1, 3, 1, 1},
              {FSDP_GRAD_OP, 1, 4, 1, 1}, {FSDP_NO, 1, 1, 1, 1},      {FSDP_NO, 2, 1, 1, 1},
              {FSDP_NO, 3, 1, 1, 1},      {FSDP_HYBRID, 2, 2, 1, 1},  {FSDP_HYBRID, 2, 3, 1, 1},
              {FSDP_FULL, 1, 8, 1, 1},    {FSDP_GRAD_OP, 1, 1, 1, 1}, {FSDP_HYBRID, 4, 1, 1, 1},
              {FSDP_NO, 1, 1, 3, 1},      {FSDP_FULL, 1, 2, 2, 1},    {FSDP_HYBRID, 2, 1, 4, 1},
              {FSDP_GRAD_OP, 1, 1, 2, 2}, {FSDP_FULL, 1, 5, 2, 1},    {FSDP_ZERO1, 1, 3, 1, 1},
              {FSDP_ZERO1, 2, 2, 1, 1},   {FSDP_ZERO1, 1, 2, 2, 1},   {FSDP_ZERO1, 1, 1, 1, 1}};
enum { PLACES = sizeof places / sizeof *places };

static harness_config config_at(int place) {
  harness_config config = {
      .plan = harness_small_plan(1), .steps = 3, .lr = 1e-2f, .seed = 7, .gradient_step = -1};
  config.plan.strategy = places[place].strategy;
  config.plan.mesh = fsdp_mesh_of(places[place].data, places[place].fsdp);
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, places[place].tensor);
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_CONTEXT, places[place].context);
  config.plan.check = true;
  return config;
}

static void expect_equal_replicas(const harness_result *result) {
  const fsdp_units *units = result->plan->units;
  int count = fsdp_plan_digest_count(result->plan);
  for (int rank = 0; rank < fsdp_mesh_ranks(&units->mesh); rank++)
    for (int d = 0; d < count; d++) {
      fsdp_axis_set axes = units->units[fsdp_plan_digest_unit(result->plan, d, NULL)].replica_axes;
      int first = fsdp_mesh_group_member(&units->mesh, axes, rank, 0);
      assert_true(result->digests[rank * count + d] == result->digests[first * count + d]);
    }
}

// ---- Skipped

// Moments are zero as at the start, and copies are the masters'.
static void expect_untouched(const harness_config *config, fsdp_executor *executor, int rank) {
  const fsdp_plan *plan = fsdp_executor_config_of(executor)->plan;
  for (int u = 0; u < plan->units->count; u++) {
    const fsdp_unit_state *state = &plan->unit_state[u];
    if (state->slot[FSDP_SLOT_MASTER] < 0) continue;
    for (int slot = 1; slot < plan->optimizer->slot_count; slot++) {
      int tensor = state->slot[slot];
      const unsigned char *bytes = fsdp_executor_tensor(executor, tensor);
      for (int64_t i = 0; i < plan->program->tensors[tensor].bytes; i++)
        FSDP_CHECK(bytes[i] == 0, "unit %d: a moment has been touched", u);
    }
    if (state->copy < 0) continue;
    const float *master = fsdp_executor_tensor(executor, state->slot[FSDP_SLOT_MASTER]);
    const fsdp_bf16 *copy = fsdp_executor_tensor(executor, state->copy);
    for (int64_t i = 0; config->plan.master_dtype == FSDP_F32 && i < plan->units->units[u].shard_numel; i++)
      FSDP_CHECK(copy[i] == fsdp_bf16_from_f32(master[i]), "unit %d: the copy has been touched", u);
  }
}

static void expect_initial(const harness_result *result, const harness_config *config) {
  for (int p = 0; p < result->param_count; p++) {
    const fsdp_param *param = &result->plan->graph->params[p];
    float *drawn = fsdp_alloc((size_t)param->numel * sizeof *drawn);
    fsdp_random_normal(config->seed, fsdp_random_stream(param->name), 0, param->numel, param->init_mean,
                       param->init_deviation, drawn);
    for (int64_t i = 0; config->plan.master_dtype == FSDP_BF16 && i < param->numel; i++)
      drawn[i] = fsdp_bf16_to_f32(fsdp_bf16_from_f32(drawn[i]));
    assert_memory_equal(drawn, result->parameters[p].values, (size_t)param->numel * sizeof *drawn);
    free(drawn);
  }
}

enum {
  OFFLOAD = 1,
  STATES_BF16 = 2,
  PARAMS_BF16 = 4,
  ACCUMULATES = 8,
  LOCAL = 16,
  OVERFLOWS = 32,
  MODES = 64
};

static void check_skipped(int place, int mode) {
  harness_config config = config_at(place);
  config.plan.cpu_offload = mode & OFFLOAD;
  if (mode & STATES_BF16) config.plan.master_dtype = config.plan.moment_dtype = FSDP_BF16;
  if (mode & PARAMS_BF16) config.plan.param_dtype = FSDP_BF16;
  if (mode & ACCUMULATES) config.plan.micro_batches = 3;
  if (mode & LOCAL) config.plan.accumulate = FSDP_ACCUMULATE_LOCAL;
  // Either activations overflow, or every norm is above the limit.
  if (mode & OVERFLOWS) config.plan.model.initializer_range = 1e18;
  if (!(mode & OVERFLOWS)) config.plan.norm_limit = 1e-6f;
  config.after_steps = expect_untouched;
  harness_result *result = harness_train(&config);
  if (result->failure[0]) fail_msg("place %d mode %d: %s", place, mode, result->failure);
  for (int s = 0; s < config.steps; s++)
    assert_int_equal(isfinite(result->grad_norm[s]) != 0, (mode & OVERFLOWS) == 0);
  expect_initial(result, &config);
  if (result->digests) expect_equal_replicas(result);
  char message[256];
  if (!harness_memory_as_planned(result, message, sizeof message))
    fail_msg("place %d mode %d: %s", place, mode, message);
  harness_free(result);
}

// Every mode at some places, and every place in some modes.
TEST(test_skipped_steps_touch_nothing) {
  for (int mode = 0; mode < MODES; mode += test_stride(5))
    for (int k = 0; k < 4; k += test_stride(4)) check_skipped((mode * 5 + k * 8) % PLACES, mode);
}

// ---- Not skipped: what bf16 states become

// The gradient of an element, which depends on nothing else.
static float gradient_of(uint64_t stream, int64_t element) {
  uint32_t words[4];
  fsdp_random_words(99, stream, (uint64_t)element, words);
  return (float)(int32_t)words[0] * 0x1p-31f;
}

static void set_gradients(const harness_config *config, const fsdp_plan *plan, int rank, int unit,
                          const fsdp_view *operands) {
  int count;
  fsdp_shard_run *runs = fsdp_units_shard_runs(plan->units, plan->graph, unit, rank, &count);
  FSDP_CHECK(operands[0].dtype == FSDP_F32, "gradients in fp32");
  for (int i = 0; i < count; i++) {
    uint64_t stream = fsdp_random_stream(plan->graph->params[runs[i].param].name);
    for (int64_t j = 0; j < runs[i].numel; j++)
      ((float *)operands[0].data)[runs[i].shard_offset + j] = gradient_of(stream, runs[i].element_index + j);
  }
  free(runs);
}

// The moments of the run under way, by part and parameter.
static fsdp_bf16 *moments[2][64];

typedef struct keeper {
  const fsdp_units *units;
  int rank, part;
} keeper;

static fsdp_status keep_moment(void *context, const fsdp_state_range *range, void *values,
                               fsdp_error *error) {
  const keeper *k = context;
  fsdp_axis_set replicas = k->units->units[range->unit].replica_axes;
  if (fsdp_mesh_group_of(&k->units->mesh, replicas, k->rank).rank != 0) return FSDP_OK;
  memcpy(moments[k->part][range->param] + range->first_elem, values,
         (size_t)range->numel * sizeof(fsdp_bf16));
  return FSDP_OK;
}

static void keep_moments(const harness_config *config, fsdp_executor *executor, int rank) {
  fsdp_error error;
  for (int part = 0; part < 2; part++) {
    keeper k = {.units = fsdp_executor_config_of(executor)->plan->units, .rank = rank, .part = part};
    fsdp_state_save(executor, 1 + part, keep_moment, &k, &error);
  }
}

// What the kernel makes of the whole parameter in `steps` updates.
static void expect_updated(const harness_result *result, const harness_config *config, int p) {
  const fsdp_param *param = &result->plan->graph->params[p];
  uint64_t stream = fsdp_random_stream(param->name);
  size_t count = (size_t)param->numel;
  float *grad = fsdp_alloc(count * sizeof *grad), *drawn = fsdp_alloc(count * sizeof *drawn);
  fsdp_bf16 *states[3];
  for (int s = 0; s < 3; s++) states[s] = fsdp_alloc_zeroed(count, sizeof *states[s]);
  fsdp_random_normal(config->seed, stream, 0, param->numel, param->init_mean, param->init_deviation, drawn);
  for (size_t i = 0; i < count; i++) {
    states[0][i] = fsdp_bf16_from_f32(drawn[i]);
    grad[i] = gradient_of(stream, (int64_t)i);
  }
  fsdp_pool *pool = fsdp_pool_create(1);
  for (int t = 1; t <= config->steps; t++) {
    float factor = 1,
          scalars[FSDP_SCALAR_COUNT] = {config->lr, (float)(1 - pow(config->plan.hyper.beta1, t)),
                                        (float)(1 - pow(config->plan.hyper.beta2, t)), (float)t, 1};
    const fsdp_op_attrs attrs = {.beta1 = config->plan.hyper.beta1,
                                 .beta2 = config->plan.hyper.beta2,
                                 .adam_eps = config->plan.hyper.eps,
                                 .weight_decay = config->plan.hyper.weight_decay};
    const fsdp_view views[] = {{grad, param->numel, FSDP_F32, FSDP_READ},
                               {scalars, FSDP_SCALAR_COUNT, FSDP_F32, FSDP_READ},
                               {&factor, 1, FSDP_F32, FSDP_READ},
                               {states[0], param->numel, FSDP_BF16, FSDP_UPDATE},
                               {states[1], param->numel, FSDP_BF16, FSDP_UPDATE},
                               {states[2], param->numel, FSDP_BF16, FSDP_UPDATE}};
    const fsdp_param_run whole = {.numel = param->numel, .random_stream = stream};
    fsdp_kernel_call call = {.kind = FSDP_OP_ADAMW,
                             .attrs = &attrs,
                             .operands = views,
                             .operand_count = 6,
                             .segments = &whole,
                             .segment_count = 1,
                             .seed = config->seed,
                             .pool = pool};
    fsdp_cpu_kernels()->kernels[FSDP_OP_ADAMW](&call);
  }
  fsdp_pool_destroy(pool);
  for (size_t i = 0; i < count; i++) {
    bool same = fsdp_bf16_to_f32(states[0][i]) == result->parameters[p].values[i] &&
                states[1][i] == moments[0][p][i] && states[2][i] == moments[1][p][i];
    if (!same) fail_msg("element %zu of %s is not what the whole parameter's would be", i, param->name);
  }
  for (int s = 0; s < 3; s++) free(states[s]);
  free(grad);
  free(drawn);
}

TEST(test_rounding_depends_on_name_and_update) {
  for (int place = 0; place < PLACES; place++)
    for (int offload = 0; offload < 2; offload++) {
      if (test_sanitized() && offload != place % 2) continue;
      harness_config config = config_at(place);
      config.plan.cpu_offload = offload;
      config.plan.grad_clip = 0; // no factor, which would differ in its last bits
      config.plan.master_dtype = config.plan.moment_dtype = FSDP_BF16;
      config.before_update = set_gradients;
      config.after_steps = keep_moments;
      fsdp_graph *graph = fsdp_model_graph(&config.plan.model, 1, 1);
      for (int p = 0; p < graph->param_count; p++)
        for (int part = 0; part < 2; part++)
          moments[part][p] = fsdp_alloc_zeroed((size_t)graph->params[p].numel, sizeof(fsdp_bf16));
      harness_result *result = harness_train(&config);
      if (result->failure[0]) fail_msg("place %d: %s", place, result->failure);
      if (result->digests) expect_equal_replicas(result);
      for (int p = 0; p < result->param_count; p++) expect_updated(result, &config, p);
      harness_free(result);
      for (int p = 0; p < graph->param_count; p++) free(moments[0][p]), free(moments[1][p]);
      fsdp_graph_destroy(graph);
    }
}
