#include "launcher/stop.h"
#include "launcher/trainer.h"
#include "runtime/base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// How often ranks ask each other whether to stop.
#define AGREEMENT_MS 200

// The driver's count, asked for in the first steps, by when libraries have taken what they keep, and then
// from time to time.
static int64_t count_device_bytes(fsdp_trainer *t, int64_t local) {
  const fsdp_device_table *table = t->device->table;
  if (table->used_bytes && (local <= 3 || local % 100 == 0)) t->used_bytes = table->used_bytes(t->device);
  return t->used_bytes;
}

// Of all ranks' GPUs together; 0 where it is not known.
static double peak_flops(const fsdp_trainer *t) {
  if (!t->gpu->present) return 0;
  double one = fsdp_gpu_peak_flops(t->gpu->name, t->setup.plan->config.param_dtype);
  return one * t->world->size / t->gpu->sharers;
}

// Completes the record of a step that is over and hands it out. Its figures are asked for one step late, when
// they cost no waiting (runtime/exec/executor.h), but before a save of that step: what is resumed from a
// checkpoint goes on behind its step's line, whenever the run was killed.
static void finish_step(fsdp_trainer *t, fsdp_step_record *record, fsdp_train_tally *sum) {
  char message[512];
  int64_t local = record->step - t->feed.first_step; // the executor counts its own
  bool sound = fsdp_executor_figures(t->executor, local, &record->figures, message, sizeof message);
  FSDP_CHECK(sound, "step %" PRId64 ": %s", record->step, message);
  record->measured = t->options->measure;
  record->peak_flops = peak_flops(t);
  record->device_used_bytes = count_device_bytes(t, local);
  record->data_ms = fsdp_feed_take_ms(&t->feed, record->step - 1);
  sum->line_loss += record->loss;
  sum->line_ms += record->total_ms;
  sum->run_ms += record->total_ms;
  sum->line_steps++;
  record->running_loss = sum->line_loss / (double)sum->line_steps;
  fsdp_train_log_write(&t->log, record, t->setup.plan);
  bool shown = record->step % t->options->log_freq == 0 || local == 1 || record->step == t->total_steps ||
               record->evaluated;
  if (!shown) return;
  fsdp_progress_rate rate = {.tokens_per_s =
                                 (double)(sum->line_steps * t->step_tokens) / (sum->line_ms / 1e3),
                             .ms_per_step = sum->line_ms / (double)sum->line_steps};
  if (fsdp_trainer_is_first(t)) fsdp_progress_print(record, t->setup.plan, &rate, stdout);
  if (fsdp_trainer_is_first(t) && record->evaluated) fsdp_progress_print_evaluation(record, stdout);
  sum->line_loss = sum->line_ms = 0;
  sum->line_steps = 0;
}

static fsdp_step_record make_record(fsdp_trainer *t, const fsdp_step_result *result, double total_ms) {
  int64_t done = t->feed.first_step + result->step - 1, position = done + t->feed.sample_shift;
  return (fsdp_step_record){.step = done + 1,
                            .total_steps = t->total_steps,
                            .epoch = position / t->steps_per_epoch,
                            .epoch_step = position % t->steps_per_epoch + 1,
                            .steps_per_epoch = t->steps_per_epoch,
                            .loss = (double)result->loss,
                            .lr = fsdp_learning_rate_at(&t->feed.config.rate, done),
                            .grad_norm = (double)result->grad_norm,
                            .total_ms = total_ms,
                            .checkpoint_ms = fsdp_train_checkpoints_take_ms(&t->checkpoints),
                            .snapshot_bytes = t->setup.snapshot_bytes,
                            .tokens = t->step_tokens};
}

// After step `step`: what every rank knows then is the greatest of the signals that ranks have received (0:
// none), whether all have written their part of a checkpoint, and after which step to ask again. One
// exchange, so that all stop after the same step; as it costs up to a millisecond where ranks share cores, it
// is made a few times a second and not in every short step.
static void agree_to_stop(fsdp_trainer *t, const fsdp_step_record *record, int *stop_signal, bool *written) {
  *written = false;
  if (record->step < t->next_agreement) return;
  struct {
    double step_ms;
    int signal_number, written;
  } mine = {record->total_ms, fsdp_stop_signal(), fsdp_train_checkpoints_is_written(&t->checkpoints)},
    *all = fsdp_alloc((size_t)t->world->size * sizeof *all);
  fsdp_world_gather(t->world, &mine, (int64_t)sizeof mine, all);
  double longest_ms = 0;
  *written = true;
  for (int i = 0; i < t->world->size; i++) {
    if (all[i].signal_number > *stop_signal) *stop_signal = all[i].signal_number;
    *written = *written && all[i].written;
    longest_ms = fmax(longest_ms, all[i].step_ms);
  }
  free(all);
  t->next_agreement = record->step + (int64_t)fmin(1000, fmax(1, AGREEMENT_MS / fmax(longest_ms, 1e-3)));
}

static fsdp_status fail_not_finite(const fsdp_trainer *t, const fsdp_step_record *record, fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_NOT_FINITE,
      "the loss is %g at step %" PRId64 " (learning rate %g): lower --lr %g (%s), raise --warmup-steps, or "
      "look at the data",
      record->loss, record->step, record->lr, t->options->lr, fsdp_options_place(t->options, "lr"));
}

// Evaluates where it is due after the record's step; returns the time it took, which is no step's.
static int64_t evaluate(fsdp_trainer *t, fsdp_step_record *record) {
  int64_t frequency = t->options->eval_freq;
  bool due = record->step == t->total_steps || (frequency > 0 && record->step % frequency == 0);
  if (!t->feed.config.eval_dataset || !due) return 0;
  int64_t began_ns = fsdp_profile_now_ns();
  fsdp_board_enter(FSDP_ACTIVITY_EVALUATING);
  record->eval_loss = fsdp_feed_evaluate(&t->feed, t->executor);
  fsdp_board_enter(FSDP_ACTIVITY_TRAINING);
  record->evaluated = true;
  int64_t took_ns = fsdp_profile_now_ns() - began_ns;
  record->eval_ms = (double)took_ns / 1e6;
  return took_ns;
}

fsdp_status fsdp_train_run_steps(fsdp_trainer *t, int *stop_signal, fsdp_error *error) {
  fsdp_step_record record = {0};
  fsdp_train_tally sum = {0};
  int64_t before_ns = fsdp_profile_now_ns(), first = t->feed.first_step + 1;
  bool finished = true;
  fsdp_status status = FSDP_OK;
  fsdp_board_start_steps(t->feed.first_step);
  for (int64_t step = first; step <= t->total_steps && status == FSDP_OK && !*stop_signal; step++) {
    fsdp_step_result result;
    bool written;
    fsdp_executor_run_step(t->executor, &result);
    int64_t now_ns = fsdp_profile_now_ns();
    if (!finished) finish_step(t, &record, &sum);
    record = make_record(t, &result, (double)(now_ns - before_ns) / 1e6);
    before_ns = now_ns;
    agree_to_stop(t, &record, stop_signal, &written);
    if (!isfinite(record.loss)) status = fail_not_finite(t, &record, error);
    if (status == FSDP_OK && !*stop_signal) before_ns += evaluate(t, &record);
    finished = status == FSDP_OK && fsdp_train_checkpoints_is_due(&t->checkpoints, step);
    if (finished) finish_step(t, &record, &sum);
    if (status == FSDP_OK && !*stop_signal) {
      fsdp_train_checkpoints_after_step(&t->checkpoints, t->executor, &t->feed, step, written);
    }
  }
  fsdp_executor_drain(t->executor);
  if (record.step == 0) {
    if (fsdp_trainer_is_first(t)) printf("done:      nothing is left of %" PRId64 " steps\n", t->total_steps);
    return FSDP_OK;
  }
  if (!finished) finish_step(t, &record, &sum);
  if (status != FSDP_OK) return status;
  status = fsdp_train_checkpoints_finish(&t->checkpoints, t->executor, &t->feed, record.step, error);
  if (fsdp_trainer_is_first(t)) {
    if (*stop_signal)
      printf("stopped by %s after step %" PRId64 "\n", fsdp_stop_name(*stop_signal), record.step);
    fsdp_train_print_summary(t, &record, &sum);
  }
  return status;
}
