// The state that a run starts from: new weights, the model folder's, or a checkpoint's.
#include "launcher/report/memory_profile.h"
#include "launcher/train/trainer.h"
#include "runtime/base/random.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/exec/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

// Elements that a thread draws at a time: whole blocks of the generator.
#define PART_ELEMS ((int64_t)1 << 14)

typedef struct drawing {
  const fsdp_param *param;
  uint64_t seed, stream;
  int64_t first, numel;
  float *out;
} drawing;

static void draw_part(void *argument, int64_t index, void *scratch) {
  const drawing *d = argument;
  (void)scratch;
  int64_t begin = index * PART_ELEMS, count = fsdp_min_i64(PART_ELEMS, d->numel - begin);
  fsdp_random_normal(d->seed, d->stream, d->first + begin, count, d->param->init_mean,
                     d->param->init_deviation, d->out + begin);
  int64_t zero = fsdp_max_i64(d->param->zero_first - d->first, begin);
  int64_t end = fsdp_min_i64(d->param->zero_first + d->param->zero_numel - d->first, begin + count);
  if (zero < end) memset(d->out + zero, 0, (size_t)(end - zero) * sizeof *d->out);
}

void fsdp_init_param(fsdp_pool *pool, const fsdp_param *param, uint64_t seed, int64_t first, int64_t numel,
                     float *out) {
  drawing d = {.param = param,
               .seed = seed,
               .stream = fsdp_random_stream(param->name),
               .first = first,
               .numel = numel,
               .out = out};
  fsdp_pool_run(pool, (numel + PART_ELEMS - 1) / PART_ELEMS, draw_part, &d);
}

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
    fsdp_state_fill(executor, draw_or_read, t, error);
    fsdp_pool_destroy(t->init_pool);
  }
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  fsdp_executor_run_exchange(executor);
  if (t->weights) t->weights_bytes = fsdp_world_sum(t->world, fsdp_weights_files(t->weights)->bytes_read);
  return FSDP_OK;
}

// Cuts the log back to the step from which the run continues.
static fsdp_status rewind_log(fsdp_trainer *t, fsdp_error *error) {
  fsdp_metrics_rewound rewound;
  const char *path = fsdp_metrics_log_path(t->log.log);
  bool found = fsdp_train_checkpoints_found(&t->checkpoints);
  fsdp_status status =
      fsdp_metrics_log_rewind(t->log.log, FSDP_TRAIN_LOG_STEP, t->feed.first_step, &rewound, error);
  if (rewound.damaged)
    fprintf(stderr,
            "fsdp_train: warning: %s: line %" PRId64 " is damaged; it stays, with the good ones behind it\n",
            path, rewound.damaged);
  if (rewound.dropped == 0) return status;
  printf("removed:   %" PRId64 " line%s of %s, ", rewound.dropped, fsdp_plural(rewound.dropped), path);
  if (found)
    printf("of steps after %" PRId64 "\n", t->feed.first_step);
  else
    printf("of an earlier run\n");
  fflush(stdout);
  return status;
}

fsdp_status fsdp_train_resume(fsdp_trainer *t, fsdp_error *error) {
  if (fsdp_train_checkpoints_restore(&t->checkpoints, t->session.executor, &t->feed, error) != FSDP_OK) {
    return error->status;
  }
  fsdp_train_count_steps(t, error);
  return fsdp_world_share_error(t->world, error);
}

fsdp_status fsdp_train_begin(fsdp_trainer *t, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  if (fsdp_trainer_is_first(t) && t->options->memory_profile)
    fsdp_memory_profile_write(t->setup.plan, t->setup.model_name, t->options->memory_profile, error);
  if (fsdp_world_share_error(t->world, error) != FSDP_OK) return error->status;
  fsdp_train_checkpoints_overwrite(&t->checkpoints);
  if (t->log.log) status = rewind_log(t, error);
  if (status == FSDP_OK && fsdp_trainer_is_first(t))
    fsdp_train_checkpoints_write_options(&t->checkpoints, error);
  return fsdp_world_share_error(t->world, error);
}
