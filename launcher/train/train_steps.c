#include "launcher/train/replicas.h"
#include "launcher/train/stop.h"
#include "launcher/train/trainer.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/text.h"
#include "runtime/data/mapped_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// How often ranks ask each other whether to stop.
#define AGREEMENT_MS 200

// The driver's count, asked for in the first steps, until after the libraries' lasting allocations, and then
// from time to time.
static int64_t count_device_bytes(fsdp_trainer *t, int64_t local) {
  fsdp_device *device = t->session.device;
  bool due = device->table->used_bytes && (local <= 3 || local % 100 == 0);
  if (due) t->used_bytes = device->table->used_bytes(device);
  return t->used_bytes;
}

// Of all ranks' GPUs together; 0 if it is not known.
static double peak_flops(const fsdp_trainer *t) {
  if (!t->gpu->present) return 0;
  double one = fsdp_gpu_peak_flops(t->gpu->name, t->setup.plan->config.param_dtype);
  return one * t->world->size / t->gpu->sharers;
}

// Of rank 0.
static void print_sample(fsdp_trainer *t) {
  char ending[FSDP_SAMPLE_ENDING_BYTES];
  printf("sample after step %" PRId64 ", %" PRId64 " token%s%s:\n%s\n", t->record.step, t->sample->new_count,
         fsdp_plural(t->sample->new_count), fsdp_sample_ending(t->sample, ending),
         fsdp_sample_shown(t->sampled));
  fflush(stdout);
  free(t->sampled);
  t->sampled = NULL;
}

// Completes the record of a step and hands it out. Its figures are asked for while the next step runs, which
// does not wait for them, but before a save of that step: what is resumed from a checkpoint continues after
// its step's line, whenever the run was killed.
static void finish_step(fsdp_trainer *t) {
  fsdp_step_record *record = &t->record;
  char message[512];
  int64_t local = record->step - t->feed.first_step; // the executor counts its own
  bool sound = fsdp_executor_step_stats(t->session.executor, local, &record->stats, message, sizeof message);
  FSDP_CHECK(sound, "step %" PRId64 ": %s", record->step, message);
  t->recorded = true;
  record->measured = t->measures;
  // Rank 0 counts for all: what is fed is a function of the step.
  if (fsdp_trainer_is_first(t))
    fsdp_feed_count(&t->feed, record->step - 1, &record->real_tokens, &record->learned_tokens);
  record->peak_flops = peak_flops(t);
  record->device_used_bytes = count_device_bytes(t, local);
  record->data_ms = fsdp_feed_take_ms(&t->feed, record->step - 1);
  fsdp_progress_add(&t->line, record);
  fsdp_progress_add(&t->run, record);
  record->running_loss = t->line.losses > 0 ? t->line.loss / (double)t->line.losses : NAN;
  fsdp_train_log_write(&t->log, record, t->setup.plan);
  bool shown = record->step % t->options->log_freq == 0 || local == 1 || record->step == t->total_steps ||
               record->evaluated || record->skipped || t->sampled;
  if (!shown) return;
  if (fsdp_trainer_is_first(t)) fsdp_progress_print(record, t->setup.plan, &t->line, stdout);
  if (fsdp_trainer_is_first(t) && record->evaluated) fsdp_progress_print_evaluation(record, stdout);
  if (t->sampled) print_sample(t);
  t->line = (fsdp_progress_tally){0};
}

// Losses of the router and loads of experts, from what a step publishes.
static void record_routing(fsdp_trainer *t, const fsdp_step_result *result, fsdp_step_record *record) {
  const fsdp_graph *graph = t->setup.plan->graph;
  const fsdp_model_config *model = &t->setup.plan->config.model;
  const float *counts = result->losses + graph->loss_count;
  record->aux_loss = record->z_loss = NAN;
  if (!model->experts) return;
  const double aux = (double)result->losses[graph->loss_count > 3 ? 3 : 1]; // that of sequences is the last
  if (model->router_aux_coef > 0) record->aux_loss = aux / model->router_aux_coef;
  if (model->router_z_coef > 0) record->z_loss = (double)result->losses[2];
  record->load_count = fsdp_model_expert_layers(model);
  const int64_t behind = graph->statistic_numel - record->load_count * model->experts;
  if (!t->loads) t->loads = fsdp_alloc_zeroed((size_t)(record->load_count + behind + 1), sizeof *t->loads);
  if (behind) {
    record->overflow = t->loads + record->load_count;
    memcpy(t->loads + record->load_count, counts + record->load_count * model->experts,
           (size_t)behind * sizeof *t->loads);
  }
  record->loads = t->loads;
  for (int64_t layer = 0; layer < record->load_count; layer++) {
    const float *rows = counts + layer * model->experts;
    float greatest = 0, sum = 0;
    for (int64_t e = 0; e < model->experts; e++) {
      greatest = fmaxf(greatest, rows[e]);
      sum += rows[e];
    }
    t->loads[layer] = greatest * (float)model->experts / sum;
  }
  record->imbalance = fsdp_graph_imbalance(graph, counts);
}

static fsdp_step_record make_record(fsdp_trainer *t, const fsdp_step_result *result, double total_ms) {
  int64_t done = t->feed.first_step + result->step - 1, position = done + t->feed.sample_shift;
  t->checkpoints.results.loss = isfinite(result->loss) ? (double)result->loss : 0;
  t->checkpoints.results.eval_loss = 0;
  t->checkpoints.results.owes_evaluation = false;
  fsdp_step_record record = {.step = done + 1,
                             .total_steps = t->total_steps,
                             .epoch = position / t->steps_per_epoch,
                             .epoch_step = position % t->steps_per_epoch + 1,
                             .steps_per_epoch = t->steps_per_epoch,
                             .loss = (double)result->loss,
                             .lr = fsdp_learning_rate_at(&t->feed.config.rate, done),
                             .grad_norm = (double)result->grad_norm,
                             .skipped = fsdp_feed_skips(&t->feed, result->grad_norm),
                             .updates = t->feed.updates,
                             .total_ms = total_ms,
                             .checkpoint_ms = fsdp_train_checkpoints_take_ms(&t->checkpoints),
                             .start_eval_loss = result->step == 1 ? t->start_eval_loss : 0,
                             .tokens = t->step_tokens};
  record_routing(t, result, &record);
  return record;
}

// Whether data is gone under any rank (mapped_file.h): what was trained since is of zeros. All ranks call it.
static fsdp_status check_data(fsdp_trainer *t, fsdp_error *error) {
  error->status = FSDP_OK;
  fsdp_mapped_file_lost(error);
  return fsdp_world_share_error(t->world, error);
}

// After step `step`: what every rank knows then is the greatest of the signals that ranks have received (0:
// none), whether all have done their part of a save and can read their data, and after which step to
// ask again. One exchange, so that all stop after the same step; as it costs up to a millisecond if ranks
// share cores, it is made a few times a second and not in every short step. FSDP_ERR_PEER if ranks have
// skipped different steps: their sums of the norm are not the same bits.
static fsdp_status agree_to_stop(fsdp_trainer *t, bool *all_can_settle, fsdp_error *error) {
  const fsdp_step_record *record = &t->record;
  *all_can_settle = false;
  if (record->step < t->next_agreement) return FSDP_OK;
  // The greatest of each: what should be the same is there twice.
  enum { SIGNAL, STEP_US, CANNOT_SETTLE, LOST_DATA, UPDATES, UPDATES_NEGATED, COUNT };
  int64_t most[COUNT] = {[SIGNAL] = fsdp_stop_signal(),
                         [STEP_US] = (int64_t)(record->total_ms * 1e3),
                         [CANNOT_SETTLE] = !fsdp_checkpointer_can_settle(t->checkpoints.checkpointer),
                         [LOST_DATA] = fsdp_mapped_file_lost(NULL) != FSDP_OK,
                         [UPDATES] = record->updates,
                         [UPDATES_NEGATED] = -record->updates};
  fsdp_world_reduce(t->world, FSDP_REDUCE_MAX, most, COUNT);
  if (most[SIGNAL] > t->stop_signal) t->stop_signal = (int)most[SIGNAL];
  *all_can_settle = !most[CANNOT_SETTLE];
  double longest_ms = fmax((double)most[STEP_US] / 1e3, 1e-3);
  t->next_agreement = record->step + (int64_t)fmin(1000, fmax(1, AGREEMENT_MS / longest_ms));
  if (most[LOST_DATA] && check_data(t, error) != FSDP_OK) return error->status;
  if (most[UPDATES] == -most[UPDATES_NEGATED]) return FSDP_OK;
  int other;
  uint64_t own = (uint64_t)record->updates;
  fsdp_world_compare(t->world, &own, 1, &other);
  int64_t updates[2] = {record->updates, record->updates};
  fsdp_world_broadcast_from(t->world, 0, &updates[0], (int64_t)sizeof updates[0]);
  fsdp_world_broadcast_from(t->world, other, &updates[1], (int64_t)sizeof updates[1]);
  return fsdp_fail(error, FSDP_ERR_PEER,
                   "after step %" PRId64 " rank 0 has made %" PRId64 " updates and rank %d %" PRId64
                   ": the gradient's norm is not the same on all ranks; restart from the last checkpoint",
                   record->step, updates[0], other, updates[1]);
}

// How the run ends over numbers that are not finite, or too large.
static fsdp_status fail_not_finite(const fsdp_trainer *t, fsdp_error *error) {
  const fsdp_step_record *record = &t->record;
  const fsdp_options *o = t->options;
  char what[256], lr[96];
  snprintf(lr, sizeof lr, "lower --lr %g (%s), raise --warmup-steps", o->lr, fsdp_options_place(o, "lr"));
  snprintf(what, sizeof what,
           "the gradient's norm is %g and the loss %g at step %" PRId64 " (learning rate %g)",
           fabs(record->grad_norm), record->loss, record->step, record->lr);
  if (!record->skipped) {
    return fsdp_fail(error, FSDP_ERR_NOT_FINITE,
                     "%s, and the step was applied: nothing of it is saved; %s%s, or check the data", what,
                     lr, o->grad_clip > 0 ? "" : ", give a --grad-clip, with which such a step is skipped");
  }
  // The first norm after a checkpoint depends on its weights and the data alone, not on the learning rate.
  bool from_start = record->step - t->feed.first_step == t->skipped_in_row;
  if (from_start && t->feed.first_step > 0 && !isfinite(record->grad_norm)) {
    return fsdp_fail(error, FSDP_ERR_NOT_FINITE,
                     "%s: all %" PRId64 " step%s since the checkpoint of step %" PRId64
                     " skipped (--max-skipped %" PRId64
                     ", %s), so its weights have most likely diverged already; "
                     "resume from an earlier one with --resume PATH, or restart with --resume off; if "
                     "it diverges again, %s, or check the data",
                     what, t->skipped_in_row, fsdp_plural(t->skipped_in_row), t->feed.first_step,
                     o->max_skipped, fsdp_options_place(o, "max-skipped"), lr);
  }
  return fsdp_fail(error, FSDP_ERR_NOT_FINITE,
                   "%s: %" PRId64 " step%s in a row skipped (--max-skipped %" PRId64
                   ", %s); %s%s, or check the data",
                   what, t->skipped_in_row, fsdp_plural(t->skipped_in_row), o->max_skipped,
                   fsdp_options_place(o, "max-skipped"), lr,
                   isfinite(record->grad_norm) ? ", raise --skip-grad-norm" : "");
}

// A step whose norm is not finite, or above --skip-grad-norm, has updated nothing: --max-skipped of them in a
// row end the run. What is not finite elsewhere, or without clipping, is in the state already: the run ends
// at once.
static fsdp_status judge(fsdp_trainer *t, fsdp_error *error) {
  const fsdp_step_record *record = &t->record;
  if (record->skipped) {
    t->skipped++;
    t->skipped_in_row++;
    if (t->skipped_in_row < t->options->max_skipped) return FSDP_OK;
  } else {
    t->skipped_in_row = 0;
    if (isfinite(record->loss) && isfinite(record->grad_norm)) return FSDP_OK;
  }
  return check_data(t, error) != FSDP_OK ? error->status : fail_not_finite(t, error);
}

// Compares replicas after the record's step. Adds its time, which no step's includes, to *before_ns.
static fsdp_status check_replicas(fsdp_trainer *t, int64_t *before_ns, fsdp_error *error) {
  fsdp_step_record *record = &t->record;
  if (t->checked_step == record->step || !fsdp_replicas_present(t->setup.plan)) return FSDP_OK;
  fsdp_executor_drain(t->session.executor); // the updates' time is the step's
  int64_t began_ns = fsdp_now_ns();
  fsdp_status status = fsdp_replicas_check(t->world, t->session.executor, record->step, error);
  t->checked_step = record->step;
  record->checked = true;
  const int64_t took_ns = fsdp_now_ns() - began_ns;
  *before_ns += took_ns;
  record->check_ms = (double)took_ns / 1e6;
  return status;
}

// Evaluates after step `step`.
static void run_evaluation(fsdp_trainer *t, int64_t step, fsdp_step_record *record) {
  int64_t began_ns = fsdp_now_ns();
  fsdp_board_enter(FSDP_ACTIVITY_EVALUATING);
  record->step = step;
  record->eval_loss = fsdp_feed_evaluate(&t->feed, t->session.executor, t->world);
  fsdp_board_enter(FSDP_ACTIVITY_TRAINING);
  record->evaluated = true;
  record->eval_ms = (double)(fsdp_now_ns() - began_ns) / 1e6;
}

// Takes the evaluation after the newest step into what its checkpoint says.
static void keep_result(fsdp_trainer *t, fsdp_step_record *record) {
  fsdp_checkpoint_results *results = &t->checkpoints.results;
  const double loss = record->eval_loss;
  results->owes_evaluation = false;
  results->eval_loss = isfinite(loss) ? loss : 0;
  record->best = isfinite(loss) && (results->best_eval_loss == 0 || loss < results->best_eval_loss);
  results->evaluations_since_best = record->best ? 0 : results->evaluations_since_best + 1;
  if (record->best) results->best_eval_loss = loss;
}

// Before the first step: --eval-at-start, and what a signal left undone, with which the checkpoint is saved
// again, also of a run that has all its steps.
static void evaluate_start(fsdp_trainer *t) {
  fsdp_step_record record = {0};
  const bool owed = t->checkpoints.results.owes_evaluation && t->feed.config.eval_dataset;
  if (!owed && (!t->options->eval_at_start || t->feed.first_step >= t->total_steps)) return;
  run_evaluation(t, t->feed.first_step, &record);
  t->start_eval_loss = record.eval_loss;
  if (owed) keep_result(t, &record);
  // Later ones have to be better than this one to be the best.
  if (t->checkpoints.results.best_eval_loss == 0 && isfinite(record.eval_loss))
    t->checkpoints.results.best_eval_loss = record.eval_loss;
  if (fsdp_trainer_is_first(t)) fsdp_progress_print_evaluation(&record, stdout);
  if (owed) fsdp_train_checkpoints_save_again(&t->checkpoints);
}

// Whether an evaluation is due after the record's step.
static bool evaluates(const fsdp_trainer *t) {
  const int64_t frequency = t->options->eval_freq, step = t->record.step;
  return t->feed.config.eval_dataset && (step == t->total_steps || (frequency > 0 && step % frequency == 0));
}

// Evaluates if it is due.
static void evaluate(fsdp_trainer *t) {
  fsdp_step_record *record = &t->record;
  if (!evaluates(t)) return;
  run_evaluation(t, record->step, record);
  keep_result(t, record);
  // It changes nothing: the steps decide how the run ends.
  if (!isfinite(record->eval_loss) && fsdp_trainer_is_first(t)) {
    fprintf(stderr, "fsdp_train: warning: the evaluation's loss after step %" PRId64 " is %g\n", record->step,
            fabs(record->eval_loss));
  }
}

// Samples if it is due after the record's step.
static void sample(fsdp_trainer *t) {
  const int64_t step = t->record.step, frequency = t->options->sample_every;
  if (frequency == 0 || (step != t->total_steps && step % frequency != 0)) return;
  fsdp_error error = {0};
  fsdp_board_enter(FSDP_ACTIVITY_EVALUATING);
  fsdp_status status = fsdp_train_sample(t, &t->sampled, &error);
  fsdp_board_enter(FSDP_ACTIVITY_TRAINING);
  // It changes nothing: the steps decide how the run ends.
  if (status != FSDP_OK && fsdp_trainer_is_first(t))
    fprintf(stderr, "fsdp_train: warning: no sample after step %" PRId64 ": %s\n", step, error.message);
}

// After a step that counts: evaluation, a sample, the comparison of replicas, a save. Adds the time of the
// first three, which no step's includes, to *before_ns.
static fsdp_status after_step(fsdp_trainer *t, bool all_can_settle, int64_t *before_ns, fsdp_error *error) {
  const int64_t every = t->options->check_replicas, step = t->record.step, began_ns = fsdp_now_ns();
  evaluate(t);
  sample(t);
  *before_ns += fsdp_now_ns() - began_ns;
  bool due = fsdp_train_checkpoints_is_due(&t->checkpoints, step, t->record.skipped);
  fsdp_status status = FSDP_OK;
  if (due) status = check_data(t, error);
  if (status == FSDP_OK && (due || (every > 0 && step % every == 0)))
    status = check_replicas(t, before_ns, error);
  if (status != FSDP_OK) return status;
  if (due) finish_step(t);
  return fsdp_train_checkpoints_after_step(&t->checkpoints, step, all_can_settle, error);
}

// What routers chose has been written, or could not be, which costs the training nothing.
static void end_record(fsdp_trainer *t) {
  fsdp_error error;
  if (!t->record_routing) return;
  int64_t failure = fsdp_routing_failure(t->record_routing);
  fsdp_world_reduce(t->world, FSDP_REDUCE_MAX, &failure, 1);
  if (fsdp_trainer_is_first(t) && fsdp_routing_end_record(t->record_routing, (int)failure, &error) != FSDP_OK)
    fprintf(stderr, "fsdp_train: warning: --routing-record %s\n", error.message);
}

// Whether neither a signal nor --stop-after has ended the run.
static bool goes_on(const fsdp_trainer *t) {
  const int64_t most = t->options->stop_after;
  return !t->stop_signal && (most == 0 || t->checkpoints.results.evaluations_since_best < most);
}

fsdp_status fsdp_train_run_steps(fsdp_trainer *t, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  fsdp_board_start_steps(t->feed.first_step);
  evaluate_start(t);
  int64_t before_ns = fsdp_now_ns(), first = t->feed.first_step + 1;
  t->recorded = true;
  for (int64_t step = first; step <= t->total_steps && status == FSDP_OK && goes_on(t); step++) {
    fsdp_step_result result;
    bool all_can_settle;
    fsdp_executor_begin_step(t->session.executor);
    if (!t->recorded) finish_step(t); // the one before
    fsdp_executor_end_step(t->session.executor, &result);
    int64_t now_ns = fsdp_now_ns();
    const int64_t trace_ns = fsdp_train_trace_write(t);
    t->record = make_record(t, &result, (double)(now_ns - before_ns) / 1e6);
    t->recorded = false;
    before_ns = now_ns + trace_ns;
    status = agree_to_stop(t, &all_can_settle, error);
    if (status == FSDP_OK) status = judge(t, error);
    if (status == FSDP_OK && !t->stop_signal) status = after_step(t, all_can_settle, &before_ns, error);
    // There may be no time for it: the next start makes it up.
    if (t->stop_signal) t->checkpoints.results.owes_evaluation = evaluates(t);
  }
  fsdp_executor_drain(t->session.executor);
  end_record(t);
  if (status != FSDP_OK && !t->recorded) finish_step(t);
  return status;
}

// A run that made its model worse says so: no checkpoint of it is the best.
static void print_start_is_best(const fsdp_trainer *t) {
  const double start = t->start_eval_loss;
  if (!(start > 0) || start != t->checkpoints.results.best_eval_loss) return;
  if (t->checkpoints.results.evaluations_since_best == 0) return; // there was none after it
  printf("note:      no evaluation was better than that before step %" PRId64
         " (loss %.4f, --eval-at-start): the model that this start loaded is the best\n",
         t->feed.first_step + 1, start);
}

static void print_stopped_improving(const fsdp_trainer *t) {
  const fsdp_checkpoint_results *results = &t->checkpoints.results;
  printf("stopped after %" PRId64 " evaluation%s without improvement (--stop-after %" PRId64
         "): the best loss is %.4f\n",
         results->evaluations_since_best, fsdp_plural(results->evaluations_since_best),
         t->options->stop_after, results->best_eval_loss);
}

static void print_nothing_done(const fsdp_trainer *t) {
  const bool whole = t->feed.first_step >= t->total_steps;
  if (!whole) print_stopped_improving(t);
  const int64_t steps = t->feed.first_step;
  printf("done:      already finished: %" PRId64 " step%s", steps, fsdp_plural(steps));
  if (whole && steps > t->total_steps)
    printf(", and --max-steps and --num-epochs, which count from the run's first one, ask for %" PRId64,
           t->total_steps);
  putchar('\n');
}

fsdp_status fsdp_train_finish(fsdp_trainer *t, fsdp_error *error) {
  if (t->record.step == 0) {
    if (fsdp_trainer_is_first(t)) print_nothing_done(t);
    return FSDP_OK;
  }
  int64_t unused = 0;
  fsdp_status status = check_data(t, error);
  if (status == FSDP_OK && t->checkpoints.checkpointer) status = check_replicas(t, &unused, error);
  if (!t->recorded) finish_step(t);
  if (status != FSDP_OK) return status;
  fsdp_train_trace_write(t);
  status = fsdp_train_checkpoints_finish(&t->checkpoints, t->record.step, error);
  if (fsdp_trainer_is_first(t)) {
    if (t->stop_signal)
      printf("stopped by %s after step %" PRId64 "\n", fsdp_stop_name(t->stop_signal), t->record.step);
    else if (t->record.step < t->total_steps)
      print_stopped_improving(t);
    print_start_is_best(t);
    if (t->options->trace && !t->traced)
      fprintf(stderr,
              "fsdp_train: warning: --trace %s is not written: the run was stopped before step %" PRId64 "\n",
              t->options->trace, t->feed.first_step + t->options->trace_last);
    fsdp_train_print_summary(t);
  }
  return status;
}
