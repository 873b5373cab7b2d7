// Trains the preset `tiny` for some steps on one batch of random bytes, on one rank: train_steps [STEPS]
#include "runtime/base/random.h"
#include "runtime/exec/session.h"
#include "runtime/exec/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct trainer {
  const fsdp_plan *plan;
  int64_t updates;
} trainer;

static void feed_step(void *context, float scalars[FSDP_SCALAR_COUNT], float *target_count) {
  trainer *t = context;
  const fsdp_plan_config *config = &t->plan->config;
  scalars[FSDP_SCALAR_LR] = 1e-3F;
  fsdp_optimizer_scalars(config->optimizer, &config->hyper, (double)++t->updates, scalars);
  *target_count = (float)(config->batch * config->seq);
}

// The target of a position is the token behind it.
static void feed_batch(void *context, int32_t *const inputs[FSDP_INPUT_COUNT]) {
  const fsdp_plan_config *config = &((trainer *)context)->plan->config;
  uint32_t state = 1;
  for (int64_t i = 0; i < config->batch * config->seq; i++) {
    inputs[FSDP_INPUT_TOKENS][i] = (int32_t)(state >> 24);
    state = state * 1664525 + 1013904223;
    inputs[FSDP_INPUT_TARGETS][i] = (int32_t)(state >> 24);
  }
}

// New weights, as the model draws them.
static fsdp_status draw(void *context, const fsdp_state_range *range, void *values, fsdp_error *error) {
  (void)error;
  const fsdp_param *param = &((trainer *)context)->plan->graph->params[range->param];
  fsdp_random_normal(0, fsdp_random_stream(range->name), range->first_elem, range->numel, param->init_mean,
                     param->init_deviation, values);
  return FSDP_OK;
}

int main(int argc, char **argv) {
  fsdp_error error;
  fsdp_plan *plan = NULL;
  fsdp_session session = {0};
  fsdp_plan_config config = {.batch = 2,
                             .seq = 128,
                             .micro_batches = 1,
                             .mesh = fsdp_mesh_of(1, 1),
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .grad_clip = 1,
                             .hyper = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8F},
                             .backend = fsdp_plan_backend_cpu()};
  if (fsdp_model_preset("tiny", &config.model, &error) || fsdp_plan_create(&config, &plan, &error))
    goto failed;
  trainer t = {.plan = plan};
  fsdp_session_config of = {.plan = plan,
                            .threads = 2,
                            .measure = true,
                            .callbacks = {.context = &t, .feed_step = feed_step, .feed_batch = feed_batch}};
  if (fsdp_session_create(&of, &session, &error)) goto failed;
  if (fsdp_state_fill(session.executor, draw, &t, &error)) goto failed;
  fsdp_executor_run_exchange(session.executor); // nothing here; under zero1, every rank's whole parameters
  for (int step = 0; step < (argc > 1 ? atoi(argv[1]) : 2); step++) {
    fsdp_step_result result;
    fsdp_step_stats stats;
    char message[256] = "";
    fsdp_executor_run_step(session.executor, &result);
    if (!fsdp_executor_step_stats(session.executor, result.step, &stats, message, sizeof message))
      puts(message);
    printf("step %" PRId64 "  loss %.4f  norm %.3f  peak %" PRId64 " bytes, planned %" PRId64 "\n",
           result.step, (double)result.loss, (double)result.grad_norm,
           stats.memory.peak_bytes[FSDP_SPACE_DEVICE], plan->memory.space[FSDP_SPACE_DEVICE].peak_bytes);
  }
  fsdp_session_destroy(&session);
  fsdp_plan_destroy(plan);
  return 0;
failed:
  fprintf(stderr, "train_steps: %s\n", error.message);
  fsdp_session_destroy(&session);
  fsdp_plan_destroy(plan);
  return (int)error.status;
}
