#include "launcher/train/train_checkpoints.h"

#include "launcher/train/resume_changes.h"
#include "runtime/base/clock.h"
#include "runtime/base/paths.h"
#include "runtime/base/random_rounds.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint_folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// How long to wait for a run that was just killed to let go of the folder.
#define LOCK_WAIT_MS 15000
// Of what `resumed:` says of the order of samples.
#define NOTE_BYTES 160

static bool is_first(const fsdp_train_checkpoints *self) {
  return self->world->rank == 0;
}

static void say_waiting(const char *folder, const char *holder, int wait_ms) {
  fprintf(stderr, "fsdp_train: note: %s is in use by %s: waiting up to %d s for it to end\n", folder, holder,
          wait_ms / 1000);
}

static bool starts_over(const fsdp_train_checkpoints *self) {
  return strcmp(self->options->resume, "off") == 0;
}

// Of an experiment that is there already --resume off would leave a mixture of two runs.
static fsdp_status refuse_to_overwrite(const fsdp_train_checkpoints *self, fsdp_error *error) {
  const fsdp_options *o = self->options;
  char log[FSDP_TRAIN_PATH_BYTES], what[64];
  fsdp_checkpoint_entry *entries;
  if (!starts_over(self)) return FSDP_OK;
  int count = fsdp_checkpoint_list(self->folder, &entries);
  snprintf(what, sizeof what, "%d checkpoint%s, the newest of step %" PRId64, count, fsdp_plural(count),
           count ? entries[0].step : 0);
  free(entries);
  fsdp_train_log_path(o, log);
  if (count == 0 && !fsdp_metrics_log_holds(log)) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--resume off (%s): %s has %s already: add --overwrite to remove what is there, use a "
                   "different -e, or leave --resume off out to go on",
                   fsdp_options_place(o, "resume"), self->folder, count ? what : "a log");
}

// Makes the experiment's folder if it is missing.
static fsdp_status make_folder(fsdp_train_checkpoints *self, fsdp_error *error) {
  const fsdp_options *o = self->options;
  const int bytes = (int)sizeof self->folder;
  int length = snprintf(self->folder, sizeof self->folder, "%s/%s", o->save_dir, o->experiment);
  if (length < 0 || length >= bytes - 16)
    return fsdp_fail(error, FSDP_ERR_INPUT, "--save-dir '%.200s...': the path is too long", o->save_dir);
  self->made_above = access(o->save_dir, F_OK) != 0;
  self->made = access(self->folder, F_OK) != 0;
  if (fsdp_make_folders(self->folder)) return FSDP_OK;
  return fsdp_fail(
      error, FSDP_ERR_INPUT,
      "the experiment's folder '%s' cannot be created (%s): use a --save-dir that you may write to",
      self->folder, strerror(errno));
}

static fsdp_status open_folder(fsdp_train_checkpoints *self, fsdp_checkpoint_gone_list *gone,
                               fsdp_error *error) {
  fsdp_status status = make_folder(self, error);
  if (status == FSDP_OK)
    status = fsdp_checkpoint_lock_take(self->folder, LOCK_WAIT_MS, say_waiting, &self->lock, error);
  if (status == FSDP_OK) fsdp_checkpoint_clean(self->folder, gone);
  if (status == FSDP_OK && !self->options->overwrite) status = refuse_to_overwrite(self, error);
  return status;
}

fsdp_status fsdp_train_checkpoints_open(fsdp_train_checkpoints *self, fsdp_error *error) {
  const fsdp_options *o = self->options;
  self->lock = FSDP_CHECKPOINT_UNLOCKED;
  if (!o->experiment) return FSDP_OK;
  self->saves = o->ckpt_freq > 0;
  fsdp_checkpoint_gone_list gone = {0}; // what crashes left
  if (is_first(self)) open_folder(self, &gone, error);
  if (fsdp_world_share_error(self->world, error) != FSDP_OK) return error->status;
  fsdp_world_broadcast(self->world, self->folder, (int64_t)sizeof self->folder);
  fsdp_world_broadcast(self->world, &gone, (int64_t)sizeof gone);
  fsdp_checkpoint_remove_files(self->folder, &gone, self->world->rank, self->world->size);
  if (is_first(self)) fsdp_checkpoint_remove_rest(self->folder, &gone);
  if (starts_over(self)) return FSDP_OK;
  fsdp_resume_config config = {.world = self->world,
                               .plan = self->setup->plan,
                               .path = o->resume,
                               .folder = self->folder,
                               .place = fsdp_options_place(o, "resume")};
  return fsdp_resume_create(&config, &self->resume, error);
}

void fsdp_train_checkpoints_close(fsdp_train_checkpoints *self) {
  fsdp_checkpointer_destroy(self->checkpointer);
  fsdp_resume_destroy(self->resume);
  if (!*self->folder || !is_first(self)) return;
  fsdp_checkpoint_lock_release(self->folder, &self->lock);
  // What was made and nothing was written to: a start that fails leaves no empty folder.
  if (self->made && rmdir(self->folder) == 0 && self->made_above) rmdir(self->options->save_dir);
}

bool fsdp_train_checkpoints_found(const fsdp_train_checkpoints *self) {
  return fsdp_resume_checkpoint(self->resume) != NULL;
}

// ---- Resuming

// The options as they are saved: --document-mask is what the data made of it, not whether it was given.
static fsdp_options effective(const fsdp_train_checkpoints *self) {
  fsdp_options effective = *self->options;
  effective.document_mask = self->setup->plan->config.documents;
  return effective;
}

static char *describe(const fsdp_train_checkpoints *self) {
  const fsdp_options described = effective(self);
  return fsdp_options_describe(&described);
}

// Whether an option is otherwise than the checkpoint says, which may not know it.
static bool is_changed(const fsdp_train_checkpoints *self, const fsdp_checkpoint *c, const char *name) {
  const fsdp_options now = effective(self);
  const char *saved = json_string_value(json_object_get(c->options, name));
  char *value = fsdp_options_value(&now, fsdp_option_find(name));
  const bool changed = saved && strcmp(saved, value) != 0;
  free(value);
  return changed;
}

// The first option that is changed and decides how rows are made of the data; NULL: none.
static const char *makes_rows_otherwise(const fsdp_train_checkpoints *self, const fsdp_checkpoint *c) {
  static const char *const names[] = {"seq-length", "packing", "long-documents", "document-mask",
                                      "document-separator"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (is_changed(self, c, names[i])) return names[i];
  return NULL;
}

static bool is_other_data(const fsdp_train_checkpoints *self, const fsdp_checkpoint_progress *p,
                          const fsdp_sampler *sampler) {
  return p->data_fingerprint != self->data_fingerprint || p->sample_count != sampler->sample_count;
}

// Where the order of samples resumes: in steps of this run's global batch since the data's start. `note` says
// what is not as it was, or is empty. `rows`: what makes rows otherwise, of data that is the same.
static int64_t find_position(const fsdp_train_checkpoints *self, const fsdp_checkpoint_progress *p,
                             const fsdp_sampler *sampler, const char *rows, char note[NOTE_BYTES]) {
  int64_t steps = fsdp_sampler_steps_per_epoch(sampler);
  *note = 0;
  if (is_other_data(self, p, sampler)) {
    snprintf(note, NOTE_BYTES, "; %s%s: restarting from its first sample",
             rows ? "other rows are made of the data by --" : "the data changed", rows ? rows : "");
    return 0;
  }
  if (p->seed != (int64_t)sampler->seed || p->held_out != sampler->held_out) {
    snprintf(note, NOTE_BYTES, "; --seed or the held-out part changed, so the order of samples changes");
  } else if (p->global_batch != sampler->global_batch) {
    snprintf(note, NOTE_BYTES, "; the global batch was %" PRId64 " and is %" PRId64, p->global_batch,
             sampler->global_batch);
  }
  return p->epoch * steps + fsdp_min_i64(p->epoch_samples / sampler->global_batch, steps);
}

// States that were rounded with other bits go on with this build's.
static void note_rounding(const fsdp_checkpoint_progress *p, const fsdp_plan_config *plan) {
  bool rounds = plan->master_dtype == FSDP_BF16 || plan->moment_dtype == FSDP_BF16;
  if (!rounds || strcmp(p->rounding, FSDP_ROUNDING_GENERATOR) == 0) return;
  printf(
      "note:      bf16 states are rounded with bits of " FSDP_ROUNDING_GENERATOR
      "; the build that wrote this checkpoint drew them from %s, so its run would continue with other last "
      "bits\n",
      p->rounding);
}

static void print_resumed(const fsdp_train_checkpoints *self, const char *note, const char *changes) {
  const fsdp_checkpoint *c = fsdp_resume_checkpoint(self->resume);
  const fsdp_mesh saved = fsdp_factored_whole(&c->mesh);
  char mesh[FSDP_MESH_TEXT_BYTES];
  printf("resumed:   %s, step %" PRId64 ", saved by %d rank%s (%s) under %s; %s read by %d rank%s%s\n",
         fsdp_resume_path(self->resume), c->progress.step, c->file_count, fsdp_plural(c->file_count),
         fsdp_mesh_print(&saved, ", ", mesh), c->strategy,
         fsdp_print_bytes(fsdp_resume_bytes_read(self->resume)).text, self->world->size,
         fsdp_plural(self->world->size), note);
  int64_t named = fsdp_checkpoint_named_step(fsdp_resume_path(self->resume));
  if (named >= 0 && named != c->progress.step)
    printf("note:      %s holds step %" PRId64 ": its folder was renamed\n", fsdp_resume_path(self->resume),
           c->progress.step);
  if (*changes) printf("changed:   %s\n", changes);
  if (fsdp_options_given(self->options, "init") && is_changed(self, c, "init"))
    printf("note:      --init (%s) has no effect: the weights are the checkpoint's\n",
           fsdp_options_place(self->options, "init"));
  note_rounding(&c->progress, &self->setup->plan->config);
  fflush(stdout);
}

// Where the learning-rate schedule begins. A restart is made once: what resumes the run that made it, with
// the same options and data, continues its schedule.
static int64_t find_schedule_start(fsdp_train_checkpoints *self, const fsdp_checkpoint *c) {
  const char *saved = json_string_value(json_object_get(c->options, "resume-schedule"));
  bool made = saved && strcmp(saved, "restart") == 0 && !self->changed;
  self->restarts = self->options->resume_schedule == FSDP_SCHEDULE_RESTART && !made;
  return self->restarts ? c->progress.step : c->progress.schedule_start;
}

// What differs from the checkpoint's of what evaluation losses are of, as "--loss-mean"; NULL: nothing.
static const char *evaluates_otherwise(const fsdp_train_checkpoints *self, const fsdp_checkpoint *c,
                                       bool other_data) {
  static const char *const names[] = {"eval-data",      "eval-split",    "seq-length",         "packing",
                                      "long-documents", "document-mask", "document-separator", "loss-mean",
                                      "tokenizer",      "seed"};
  const bool held_out = self->options->eval_split > 0; // of the data, by the seed
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if ((held_out || strcmp(names[i], "seed") != 0) && is_changed(self, c, names[i])) return names[i];
  const uint64_t was = c->progress.eval_fingerprint; // older checkpoints do not tell
  if (was && self->eval_fingerprint && was != self->eval_fingerprint) return "eval-data";
  return held_out && other_data ? "data" : NULL;
}

// The best of the evaluation losses is of those that can be compared.
static void take_results(fsdp_train_checkpoints *self, const fsdp_checkpoint *c, bool other_data) {
  const fsdp_checkpoint_results *was = &c->progress.results;
  const char *option = evaluates_otherwise(self, c, other_data);
  self->results = *was;
  if (!option) return;
  self->results.best_eval_loss = 0;
  self->results.evaluations_since_best = 0;
  self->results.evaluated_from = c->progress.step;
  if (is_first(self) && was->best_eval_loss > 0 && fsdp_options_evaluate(self->options))
    printf("note:      --%s changed, so evaluation losses are others than before (the best was %.4f): the "
           "best one is sought anew\n",
           option, was->best_eval_loss);
}

static fsdp_status load(fsdp_train_checkpoints *self, fsdp_error *error) {
  fsdp_feed *feed = self->feed;
  char note[NOTE_BYTES];
  fsdp_status status = fsdp_resume_load(self->resume, self->executor, error);
  if (status != FSDP_OK) return status;
  const fsdp_checkpoint *c = fsdp_resume_checkpoint(self->resume);
  const fsdp_checkpoint_progress *p = &c->progress;
  const bool other_data = is_other_data(self, p, &feed->config.sampler);
  // The fingerprint counts rows, too.
  const bool same_contents = p->data_fingerprint == self->data_fingerprint || !is_changed(self, c, "data");
  const char *rows = same_contents ? makes_rows_otherwise(self, c) : NULL;
  int64_t position = find_position(self, p, &feed->config.sampler, rows, note);
  char changes[2048], *options = describe(self);
  self->changed = fsdp_resume_changes(c->options, options, other_data && !rows, changes, sizeof changes);
  free(options);
  feed->config.rate.first_step = find_schedule_start(self, c);
  fsdp_feed_seek(feed, p->step, p->updates, position - p->step);
  if (is_first(self)) print_resumed(self, note, changes);
  take_results(self, c, other_data);
  fflush(stdout);
  return FSDP_OK;
}

void fsdp_train_checkpoints_overwrite(fsdp_train_checkpoints *self) {
  fsdp_checkpoint_gone_list gone = {0};
  if (!self->options->overwrite) return;
  if (is_first(self)) fsdp_checkpoint_drop(self->folder, &gone);
  fsdp_world_broadcast(self->world, &gone, (int64_t)sizeof gone);
  fsdp_checkpoint_remove_files(self->folder, &gone, self->world->rank, self->world->size);
  if (!is_first(self) || gone.count == 0) return;
  printf("removed:  ");
  for (int64_t i = 0; i < gone.count; i++) printf(" step-%08" PRId64, gone.items[i].step);
  printf(" of %s (--overwrite)\n", self->folder);
  fflush(stdout);
  fsdp_checkpoint_remove_rest(self->folder, &gone);
}

fsdp_status fsdp_train_checkpoints_write_options(fsdp_train_checkpoints *self, fsdp_error *error) {
  const fsdp_options *o = self->options;
  const bool named = strcmp(o->resume, "auto") != 0;
  const bool trains = self->feed->first_step < self->feed->config.rate.total_steps;
  self->says_its_beginning = trains && fsdp_train_checkpoints_found(self) && (named || self->restarts);
  if (!self->says_its_beginning) return fsdp_train_write_options(o, self->world->size, NULL, error);
  const char *from = named ? fsdp_resume_path(self->resume) : o->resume;
  // Its own one by its step, for the folder may be moved.
  char step[32];
  const size_t length = strlen(self->folder);
  const bool own = named && strncmp(from, self->folder, length) == 0 && from[length] == '/';
  if (own && fsdp_checkpoint_named_step(from) >= 0) {
    snprintf(step, sizeof step, "step-%" PRId64, fsdp_checkpoint_named_step(from));
    from = step;
  }
  return fsdp_train_write_options(o, self->world->size, from, error);
}

// Once the run has a checkpoint of this start, that is where to begin, and its schedule is begun.
static void forget_start(void *context) {
  fsdp_train_checkpoints *self = context;
  fsdp_error error = {0};
  if (!self->says_its_beginning) return;
  self->says_its_beginning = false;
  if (fsdp_train_write_options(self->options, self->world->size, NULL, &error) != FSDP_OK)
    fprintf(stderr, "fsdp_train: warning: %s\n", error.message);
}

fsdp_status fsdp_train_checkpoints_restore(fsdp_train_checkpoints *self, fsdp_executor *executor,
                                           fsdp_feed *feed, fsdp_error *error) {
  bool found = fsdp_train_checkpoints_found(self);
  self->executor = executor;
  self->feed = feed;
  const bool routes = self->options->routing_record || self->options->routing_replay; // of this data alone
  if (!found && !self->saves && !routes) return FSDP_OK;
  // It may read all of the data.
  uint64_t fingerprints[2] = {0};
  if (is_first(self)) {
    fingerprints[0] = fsdp_dataset_fingerprint(feed->config.dataset);
    if (self->options->eval_data) fingerprints[1] = fsdp_dataset_fingerprint(feed->config.eval_dataset);
  }
  fsdp_world_broadcast(self->world, fingerprints, (int64_t)sizeof fingerprints);
  self->data_fingerprint = fingerprints[0];
  self->eval_fingerprint = fingerprints[1];
  fsdp_status status = found ? load(self, error) : FSDP_OK;
  if (status != FSDP_OK || !self->saves) return status;
  char *options = describe(self);
  const char *tokenizer = self->options->tokenizer;
  const bool of_file = tokenizer && strcmp(tokenizer, "bytes") != 0;
  fsdp_checkpointer_config config = {
      .world = self->world,
      .executor = executor,
      .folder = self->folder,
      .model = {.folder = self->setup->folder, .tokenizer = of_file ? tokenizer : NULL},
      .model_name = self->setup->model_name,
      .options = options,
      .keep = {.newest = (int)self->options->ckpt_keep,
               .best = self->options->ckpt_best != FSDP_CKPT_BEST_OFF},
      .saved = forget_start,
      .context = self};
  config.model.chat_template =
      fsdp_dataset_chat_template(feed->config.dataset, &config.model.chat_template_bytes);
  self->checkpointer = fsdp_checkpointer_create(&config);
  free(options);
  return fsdp_world_share_error(self->world, error);
}

// ---- Saving

static fsdp_status save(fsdp_train_checkpoints *self, int64_t step, fsdp_error *error) {
  const fsdp_feed *feed = self->feed;
  const fsdp_sampler *sampler = &feed->config.sampler;
  int64_t steps = fsdp_sampler_steps_per_epoch(sampler), position = step + feed->sample_shift;
  const fsdp_token_ends ends = fsdp_dataset_ends(feed->config.dataset);
  const bool masked = fsdp_options_given(self->options, "document-mask");
  fsdp_checkpoint_progress progress = {.step = step,
                                       .updates = feed->updates,
                                       .epoch = position / steps,
                                       .epoch_samples = position % steps * sampler->global_batch,
                                       .seed = (int64_t)sampler->seed,
                                       .global_batch = sampler->global_batch,
                                       .sample_count = sampler->sample_count,
                                       .held_out = sampler->held_out,
                                       .data_fingerprint = self->data_fingerprint,
                                       .eval_fingerprint = self->eval_fingerprint,
                                       .knows_ends = ends.known,
                                       .first_token = ends.first,
                                       .last_token = ends.last,
                                       .document_mask = masked ? FSDP_GIVEN_YES : FSDP_GIVEN_NO,
                                       .schedule_start = feed->config.rate.first_step,
                                       .rounding = FSDP_ROUNDING_GENERATOR,
                                       .results = self->results};
  fsdp_executor_drain(self->executor);
  return fsdp_checkpointer_begin(self->checkpointer, &progress, error);
}

bool fsdp_train_checkpoints_is_due(fsdp_train_checkpoints *self, int64_t step, bool skipped) {
  if (!self->checkpointer) return false;
  const fsdp_checkpoint_results *results = &self->results;
  bool best = self->options->ckpt_best != FSDP_CKPT_BEST_OFF && results->eval_loss > 0 &&
              results->evaluations_since_best == 0;
  bool asked = self->postponed || step % self->options->ckpt_freq == 0 || best;
  self->due = asked && !skipped;
  self->postponed = asked && skipped;
  return self->due;
}

fsdp_status fsdp_train_checkpoints_after_step(fsdp_train_checkpoints *self, int64_t step, bool all_can_settle,
                                              fsdp_error *error) {
  if (!self->checkpointer) return FSDP_OK;
  // The run's last step is saved by finish, which has the last word on a failure.
  bool due = self->due && step < self->feed->config.rate.total_steps;
  // The step's own updates may still run; that they end is no loss.
  if (due) fsdp_executor_drain(self->executor);
  if (!due && !all_can_settle) return FSDP_OK;
  int64_t began_ns = fsdp_now_ns();
  fsdp_error ignored = {0};
  fsdp_board_enter(FSDP_ACTIVITY_SAVING);
  if (all_can_settle) fsdp_checkpointer_settle(self->checkpointer);
  if (due && save(self, step, &ignored) != FSDP_OK) fsdp_checkpointer_warn(self->checkpointer);
  fsdp_board_enter(FSDP_ACTIVITY_TRAINING);
  self->lost_ms += (double)(fsdp_now_ns() - began_ns) / 1e6;
  return fsdp_checkpointer_not_finite(self->checkpointer, error);
}

void fsdp_train_checkpoints_save_again(fsdp_train_checkpoints *self) {
  fsdp_error ignored = {0};
  if (!self->checkpointer) return;
  fsdp_board_enter(FSDP_ACTIVITY_SAVING);
  if (save(self, self->feed->first_step, &ignored) == FSDP_OK)
    fsdp_checkpointer_finish(self->checkpointer, &ignored);
  fsdp_checkpointer_warn(self->checkpointer);
  fsdp_board_enter(FSDP_ACTIVITY_TRAINING);
}

// The run is trained, but its result is not on the disk.
static fsdp_status fail_last(const fsdp_train_checkpoints *self, int64_t step, const fsdp_error *reason,
                             fsdp_error *error) {
  fsdp_checkpoint_entry *entries;
  int count = fsdp_checkpoint_list(self->folder, &entries);
  char newest[FSDP_CHECKPOINT_PATH_BYTES] = "it has no checkpoint";
  if (count > 0) snprintf(newest, sizeof newest, "the newest checkpoint is %.3900s", entries[0].path);
  free(entries);
  return fsdp_fail(error, reason->status,
                   "training ended after step %" PRId64 ", but that step could not be saved: %.700s; %s",
                   step, reason->message, newest);
}

fsdp_status fsdp_train_checkpoints_finish(fsdp_train_checkpoints *self, int64_t step, fsdp_error *error) {
  if (!self->checkpointer) return FSDP_OK;
  fsdp_status status = FSDP_OK;
  fsdp_error failed = {0}; // *error may hold what rank 0 alone knows
  fsdp_board_enter(FSDP_ACTIVITY_SAVING);
  if (fsdp_checkpointer_step(self->checkpointer) != step && step > self->feed->first_step)
    status = save(self, step, &failed);
  if (status == FSDP_OK) status = fsdp_checkpointer_finish(self->checkpointer, &failed);
  return status == FSDP_OK ? status : fail_last(self, step, &failed, error);
}

double fsdp_train_checkpoints_take_ms(fsdp_train_checkpoints *self) {
  double lost_ms = self->lost_ms;
  self->lost_ms = 0;
  return lost_ms;
}
