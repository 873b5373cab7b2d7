// Saving checkpoints while training continues.
//
//   begin ─► snapshot section ─► writer thread: this rank's file ─► settle: all ranks learn of it
//               │                               ─► rank 0's writer thread: manifest, rename, old ones renamed
//               │                               ─► finish, or the next begin: each rank removes its old files
//   next step: forward, backward, updates: each waits for the copies of what it changes
//
// The snapshot is part of the plan (fsdp_plan_config.snapshot): copies on a stream of their own, into host
// memory that the plan keeps for them, behind which waits for updates are proved.
//
// If the plan has none, all of it happens in begin. Rank 0 prints a line for each complete checkpoint. A save
// that fails leaves nothing behind; the run continues, and the next one may succeed. Functions marked "all
// ranks" are called by all of them after the same step.
#pragma once

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/comm/world.h"
#include "runtime/exec/executor.h"

typedef struct fsdp_checkpointer fsdp_checkpointer;

typedef struct fsdp_checkpointer_config {
  fsdp_world *world;
  fsdp_executor *executor;     // its streams are idle in begin
  const char *folder;          // of the experiment; it is there
  fsdp_checkpoint_model model; // what an export carries along
  const char *model_name;
  const char *options; // fsdp_options_describe
  fsdp_checkpoint_keep keep;
  void (*saved)(void *context); // rank 0, not NULL: after each complete checkpoint, on its writer's thread
  void *context;
} fsdp_checkpointer_config;

// What the configuration points to outlives it, but for `options`. Never NULL.
fsdp_checkpointer *fsdp_checkpointer_create(const fsdp_checkpointer_config *config);

// All ranks; ends what is under way. NULL is allowed.
void fsdp_checkpointer_destroy(fsdp_checkpointer *checkpointer);

// All ranks. Finishes a save under way, warning if it failed, then starts to write the state after
// `progress->step`, which the next step may change. FSDP_ERR_INPUT, on every rank alike, if
// the folder cannot be written; without a snapshot, if the save failed.
fsdp_status fsdp_checkpointer_begin(fsdp_checkpointer *checkpointer, const fsdp_checkpoint_progress *progress,
                                    fsdp_error *error);

// Whether this rank has nothing left to do for what is under way: its file is on the disk or failed; then, on
// rank 0, the checkpoint is complete or failed. False too while nothing is under way, and of NULL.
bool fsdp_checkpointer_can_settle(fsdp_checkpointer *checkpointer);

// All ranks, and only if fsdp_checkpointer_can_settle on every one: exchanges what was written and lets rank
// 0 complete the checkpoint, or exchanges how that ended. Warns of what failed.
void fsdp_checkpointer_settle(fsdp_checkpointer *checkpointer);

// Warns on standard error, once and from rank 0, if the last save failed.
void fsdp_checkpointer_warn(fsdp_checkpointer *checkpointer);

// All ranks. Waits until what is under way is complete; FSDP_ERR_INPUT, on every rank alike, if the last
// save failed.
fsdp_status fsdp_checkpointer_finish(fsdp_checkpointer *checkpointer, fsdp_error *error);

// FSDP_ERR_NOT_FINITE, on all ranks alike once they have exchanged it, if a save found a value of the
// state that is not finite: no later one would be any better.
fsdp_status fsdp_checkpointer_not_finite(const fsdp_checkpointer *checkpointer, fsdp_error *error);

// The step of the last save that was begun, 0 if none was.
int64_t fsdp_checkpointer_step(const fsdp_checkpointer *checkpointer);
