// What the parts of the trainer share: its state, and what each part does with it.
//
//   train.c        the run as a list of stages     train_agree.c   what ranks compare first
//   train_data.c   what is read and written        train_state.c   the state that a run starts from
//   train_steps.c  the loop of steps               train_print.c   what a person sees
//   train_trace.c  --trace                         train_notes.c   what is worth knowing at the start
//   train_files.c  log and run.yaml                train_evaluate.c   fsdp_eval, samples
#pragma once

#include "launcher/report/progress.h"
#include "launcher/setup/setup.h"
#include "launcher/setup/tokenizer.h"
#include "launcher/text/sample.h"
#include "launcher/train/binding.h"
#include "launcher/train/feed.h"
#include "launcher/train/train_checkpoints.h"
#include "launcher/train/train_files.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/exec/session.h"

typedef struct fsdp_trainer {
  fsdp_world *world;
  fsdp_program_kind program; // fsdp_train or fsdp_eval
  const fsdp_options *options;
  const fsdp_binding *binding;
  const fsdp_gpu *gpu;
  const char *why_cpu;    // if there is no GPU
  fsdp_setup_ranks ranks; // with the least memory that any of them has
  fsdp_setup setup;
  fsdp_data_paths data_paths, eval_paths; // of --data and --eval-data
  fsdp_dataset *dataset, *eval_dataset;   // the latter NULL without --eval-data
  fsdp_train_tokenizer tokenizer;
  fsdp_sample *sample;    // without a prompt: nothing to sample
  fsdp_text_codec *codec; // of rank 0
  char *sampled;          // after the newest step, not printed yet; of rank 0
  fsdp_weights *weights;
  fsdp_train_log log; // of rank 0
  fsdp_session session;
  fsdp_pool *init_pool;  // while the first weights are drawn
  int64_t used_bytes;    // of the device, when last asked
  int64_t weights_bytes; // read of the folder's weights, by all ranks
  fsdp_feed feed;
  fsdp_routing *record_routing, *replay_routing; // NULL: not
  fsdp_train_checkpoints checkpoints;
  int64_t total_steps, steps_per_epoch, step_tokens;
  int64_t skipped, skipped_in_row; // steps of this run, and up to the newest one
  int64_t checked_step;            // after which replicas were last compared
  bool measures;                   // what --set measure says, if there is room for what it records
  int64_t next_agreement;          // the step after which ranks next ask each other whether to stop
  int stop_signal;                 // that ended the run early, or 0
  double start_eval_loss;          // 0: there was no evaluation before the first step
  fsdp_step_record record;         // of the newest step of this run; step 0: none
  float *loads;                    // its, by layer with experts
  bool recorded;                   // it is written to the log
  bool traced;                     // --trace is written
  fsdp_progress_tally line, run;   // since the last line on the terminal, since the start
} fsdp_trainer;

static inline bool fsdp_trainer_is_first(const fsdp_trainer *t) {
  return t->world->rank == 0;
}

// CPU threads of this rank.
static inline int fsdp_trainer_threads(const fsdp_trainer *t) {
  return t->options->threads ? (int)t->options->threads : t->binding->core_count;
}

// Whether all ranks read the same configuration and profile, before a plan is made of them; whether their
// data, tokenizer and weights are the same files, before any of them is acted on; whether the same samples
// and steps came of them. FSDP_ERR_INPUT (the last: FSDP_ERR_OPTION, for the programs differ), naming two
// ranks, on every rank.
fsdp_status fsdp_train_agree_on_model(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_agree_on_profile(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_agree_on_files(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_agree_on_schedule(fsdp_trainer *t, fsdp_error *error);

// What was asked for by --print-model, --print-program and --dry-run. Called on rank 0 alone.
void fsdp_train_print_asked_for(const fsdp_trainer *t);

// The header's first part: what runs where, and the memory that it takes; the header, before the first step.
// Called on rank 0 alone.
void fsdp_train_print_place(const fsdp_trainer *t);
void fsdp_train_print_start(const fsdp_trainer *t);

// Behind the plan of --dry-run: data, steps, what was not looked at, and notes; of fsdp_eval the line of its
// data alone. Called on rank 0 alone.
void fsdp_train_print_checked(const fsdp_trainer *t);
void fsdp_train_eval_print_data(const fsdp_trainer *t);

// Notes and warnings behind the header. Called on rank 0 alone.
void fsdp_train_print_notes(const fsdp_trainer *t);

// The last lines, and the one about memory: `measured` is NULL if it was not. Called on rank 0 alone.
void fsdp_train_print_summary(const fsdp_trainer *t);
void fsdp_train_print_memory(const fsdp_trainer *t, const fsdp_measurement *measured);

// What the run reads and writes, so that what is missing is known before memory is taken: the model's folder;
// the names of the data's files; data, logs and other files. They may fail on one rank alone.
fsdp_status fsdp_train_open_model(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_find_data(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_open_files(fsdp_trainer *t, fsdp_error *error);

// --data as a run opens it, a sample at a time; and what of its feed plan and rank say, but for the data.
fsdp_dataset_config fsdp_train_dataset_config(const fsdp_trainer *t);
fsdp_feed_config fsdp_train_feed_config(const fsdp_trainer *t);

// Of a dry run: opens --data and --eval-data by their headers, if one is given, and writes nothing. It may
// fail on one rank alone.
fsdp_status fsdp_train_check_data(fsdp_trainer *t, fsdp_error *error);

// Sets the number of steps and of those in an epoch, from the feed's position in the data on.
fsdp_status fsdp_train_count_steps(fsdp_trainer *t, fsdp_error *error);

// New weights, by all the cores of a rank, for a model of 8 billion elements takes one core minutes: elements
// [first, first + numel) of a parameter's initialisation, the same values whatever the number of threads.
void fsdp_init_param(fsdp_pool *pool, const fsdp_param *param, uint64_t seed, int64_t first, int64_t numel,
                     float *out);

// New weights or the folder's, each of which is drawn or read by one of the ranks that share it; nothing if
// there is a checkpoint. Then the checkpoint, if there is one: state, feed and number of steps are where the
// run continues. Every rank returns the same status.
fsdp_status fsdp_train_start_state(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_resume(fsdp_trainer *t, fsdp_error *error);

// Once nothing but the steps can fail: writes --memory-profile, removes what --overwrite says, cuts the log
// back to the run's first step and writes run.yaml. Every rank returns the same status.
fsdp_status fsdp_train_begin(fsdp_trainer *t, fsdp_error *error);

// Trains from the feed's position to the last step, or to a signal. Then the last comparison of replicas, the
// last save and the summary. Every rank returns the same status.
fsdp_status fsdp_train_run_steps(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_finish(fsdp_trainer *t, fsdp_error *error);

// --trace: the timelines of all ranks, on rank 0's clock, as one file. check: whether the run has the steps
// that are to be traced; FSDP_ERR_OPTION, on every rank alike. write: once the last of them is recorded, and
// once only; every rank calls it after the same step. Returns the nanoseconds that it took. What cannot be
// written is a warning: the training goes on.
fsdp_status fsdp_train_trace_check(fsdp_trainer *t, fsdp_error *error);
int64_t fsdp_train_trace_write(fsdp_trainer *t);

// Samples between steps. *text is what a person is shown, on rank 0, which frees it; else NULL. Every rank
// returns the same status.
fsdp_status fsdp_train_sample(fsdp_trainer *t, char **text, fsdp_error *error);

// What fsdp_eval does in place of steps: the checkpoint of -e, data, state and header; then the evaluation,
// the sample, and what came of them. open_files may fail on one rank alone.
fsdp_status fsdp_train_eval_find_checkpoint(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_eval_open_files(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_eval_load(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_eval_print_start(fsdp_trainer *t, fsdp_error *error);
fsdp_status fsdp_train_eval_run(fsdp_trainer *t, fsdp_error *error);
