// A training run's checkpoints: its folder, which checkpoint it resumes from, and when it saves.
//
//   open ─► (device, executor) ─► restore ─► [ step ─► after_step ] ... ─► close
//
// Without an experiment nothing happens and all ranks agree on it. Every function but the queries is called
// by all ranks.
#pragma once

#include "launcher/options/options.h"
#include "launcher/setup/setup.h"
#include "launcher/train/checkpointer.h"
#include "launcher/train/feed.h"
#include "launcher/train/resume.h"
#include "launcher/train/train_files.h"
#include "runtime/checkpoint/checkpoint_lock.h"

typedef struct fsdp_train_checkpoints {
  fsdp_world *world;
  const fsdp_options *options;
  const fsdp_setup *setup;
  fsdp_executor *executor; // from restore on
  fsdp_feed *feed;
  char folder[2048];         // the experiment's, "" if there is none
  bool made, made_above;     // by this run: it, and the one above it
  fsdp_checkpoint_lock lock; // rank 0's
  bool saves;
  bool restarts;           // the schedule that the checkpoint was saved with
  bool says_its_beginning; // rank 0: run.yaml has what is given of --resume and --resume-schedule
  fsdp_resume *resume;
  fsdp_checkpointer *checkpointer;             // NULL: nothing is saved
  uint64_t data_fingerprint, eval_fingerprint; // the latter of --eval-data, 0: there is none
  bool changed;                    // an option, or the data, since the checkpoint that was resumed from
  bool due, postponed;             // a save after the newest step; one that waits for a step that counts
  fsdp_checkpoint_results results; // of the newest step, which a save of it says
  double lost_ms;                  // by the steps since they were last asked for, waiting for saves
} fsdp_train_checkpoints;

// Makes and locks the experiment's folder and looks for the checkpoint to resume from. FSDP_ERR_INPUT. Close
// it in either case.
fsdp_status fsdp_train_checkpoints_open(fsdp_train_checkpoints *self, fsdp_error *error);
void fsdp_train_checkpoints_close(fsdp_train_checkpoints *self);

// Whether there is a checkpoint to resume from.
bool fsdp_train_checkpoints_found(const fsdp_train_checkpoints *self);

// Once the executor is there: fills its state from the checkpoint, sets the feed behind its last step, and
// prints what was resumed. Leaves the state alone if there is nothing to resume from. Then prepares
// to save.
fsdp_status fsdp_train_checkpoints_restore(fsdp_train_checkpoints *self, fsdp_executor *executor,
                                           fsdp_feed *feed, fsdp_error *error);

// Rank 0, before the first step: writes run.yaml (fsdp_train_write_options). FSDP_ERR_INPUT.
fsdp_status fsdp_train_checkpoints_write_options(fsdp_train_checkpoints *self, fsdp_error *error);

// Before the first step: removes what --overwrite says, and says so.
void fsdp_train_checkpoints_overwrite(fsdp_train_checkpoints *self);

// Whether step `step` is saved when it is complete; asked once after each. A save that is due after a skipped
// step waits for one that counts: what is kept are states from which a step could be made.
bool fsdp_train_checkpoints_is_due(fsdp_train_checkpoints *self, int64_t step, bool skipped);

// After step `step`: takes the save under way further if `all_can_settle`, and starts one if --ckpt-freq says
// so, but for the run's last step. A save that fails is warned of, and the run continues; but
// FSDP_ERR_NOT_FINITE, on all ranks alike, if a save found the state to be not finite.
fsdp_status fsdp_train_checkpoints_after_step(fsdp_train_checkpoints *self, int64_t step, bool all_can_settle,
                                              fsdp_error *error);

// Before the first step: saves the state that was resumed from with the results that it now has, and waits
// until it is. A failure is warned of.
void fsdp_train_checkpoints_save_again(fsdp_train_checkpoints *self);

// At the end of the run: saves the last step unless it is saved already, and waits until it is.
// FSDP_ERR_INPUT.
fsdp_status fsdp_train_checkpoints_finish(fsdp_train_checkpoints *self, int64_t step, fsdp_error *error);

// Milliseconds that steps have waited for saves since the last call.
double fsdp_train_checkpoints_take_ms(fsdp_train_checkpoints *self);
