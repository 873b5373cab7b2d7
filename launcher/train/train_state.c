// The state that a run starts from: new weights, the model folder's, or a checkpoint's.
#include "launcher/train/init_weights.h"
#include "launcher/train/trainer.h"
#include "runtime/exec/state.h"

#include <inttypes.h>
#include <stdio.h>

static fsdp_status draw_or_read(void *context, const fsdp_state_range *range, void *values,
                                fsdp_error *error) {
  fsdp_trainer *t = context;
  if (t->weights)
    return fsdp_weights_read(t->weights, range->param, range->first_elem, range->numel, values, error);
  fsdp_init_param(t->init_pool, &t->setup.plan->graph->params[range->param], (uint64_t)t->options->seed,
                  range->first_elem, range->numel, values);
  return FSDP_OK;
}

fsdp_status fsdp_train_start_state(fsdp_trainer *t, fsdp_error *error) {
  fsdp_executor *executor = t->session.executor;
  if (fsdp_train_checkpoints_found(&t->checkpoints)) return FSDP_OK;
  if (!t->weights && t->gpu->present) {
    fsdp_state_draw(executor, (uint64_t)t->options->seed);
  } else {
    t->init_pool = fsdp_pool_create(t->binding->core_count);
    fsdp_state_fill_slice(executor, draw_or_read, t, error);
    fsdp_pool_destroy(t->init_pool);
  }
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  fsdp_executor_run_exchange(executor);
  if (t->weights) t->weights_bytes = fsdp_world_sum(t->world, fsdp_weights_bytes_read(t->weights));
  return FSDP_OK;
}

fsdp_status fsdp_train_resume(fsdp_trainer *t, fsdp_error *error) {
  if (fsdp_train_checkpoints_restore(&t->checkpoints, t->session.executor, &t->feed, error) != FSDP_OK) {
    return error->status;
  }
  fsdp_status status = fsdp_train_count_steps(t, error);
  if (status == FSDP_OK && t->log.log && fsdp_train_checkpoints_found(&t->checkpoints)) {
    int64_t damaged;
    fsdp_metrics_log_rewind(t->log.log, "global_step", t->feed.first_step, &damaged, error);
    if (damaged)
      fprintf(stderr,
              "fsdp_train: warning: %s: line %" PRId64
              " is damaged; it stays, with the good ones behind it\n",
              fsdp_metrics_log_path(t->log.log), damaged);
  }
  return fsdp_world_share_error(t->world, error);
}
