// Saving checkpoints while training goes on.
//
//   begin ─► writer thread: snapshot, then this rank's file ─► settle: all ranks are told
//                              │              ─► rank 0's writer thread: manifest, rename, old ones removed
//   next step: forward, backward ... gate: its first update waits until the snapshot is taken
//
// A step changes masters and moments in its updates alone, so all before them runs beside the copying. Where
// the device cannot be read while it works (CUDA), begin takes the snapshot itself.
//
// Without a snapshot buffer all of it happens in begin. Rank 0 prints a line for each complete checkpoint. A
// save that fails leaves nothing behind; the run continues, and the next one may succeed. Functions marked
// "all ranks" are called by all of them after the same step.
#pragma once

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/comm/world.h"
#include "runtime/exec/executor.h"

typedef struct fsdp_saver fsdp_saver;

typedef struct fsdp_saver_config {
  fsdp_world *world;
  fsdp_executor *executor;  // its streams are idle in begin
  const char *folder;       // of the experiment; it is there
  const char *model_folder; // whose small files are carried along, or NULL
  const char *model_name;
  const char *options; // fsdp_options_describe
  int keep;            // newest checkpoints that stay, 0: all
  bool async;
} fsdp_saver_config;

// What a snapshot of a rank's state takes: its shards, over the replicas that share them. The greatest of all
// ranks.
int64_t fsdp_saver_snapshot_bytes(const fsdp_plan *plan);

// Allocates the snapshot (and touches it) where `config->async`; strings are copied. FSDP_ERR_CAPACITY where
// there is no memory for it.
fsdp_status fsdp_saver_create(const fsdp_saver_config *config, fsdp_saver **saver, fsdp_error *error);

// All ranks; ends what is under way. NULL is allowed.
void fsdp_saver_destroy(fsdp_saver *saver);

// All ranks. Finishes a save under way, warning where it failed, then starts to write the state after
// `progress->step`, which may change again behind fsdp_saver_gate. FSDP_ERR_INPUT, on every rank alike, where
// the folder cannot be written; without a snapshot, where the save failed.
fsdp_status fsdp_saver_begin(fsdp_saver *saver, const fsdp_checkpoint_progress *progress, fsdp_error *error);

// Before an update, on any thread: waits until the snapshot is taken.
void fsdp_saver_gate(fsdp_saver *saver);

// Milliseconds that updates have waited there since the last call.
double fsdp_saver_take_gate_ms(fsdp_saver *saver);

// Whether this rank's file is on the disk and nobody was told; false too while nothing is under way.
bool fsdp_saver_is_written(fsdp_saver *saver);

// All ranks, and only if fsdp_saver_is_written on every one: exchanges what was written and lets rank 0
// complete the checkpoint. Warns where a rank's file could not be written.
void fsdp_saver_settle(fsdp_saver *saver);

// Warns on standard error, once and from rank 0, where the last save failed.
void fsdp_saver_warn(fsdp_saver *saver);

// All ranks. Waits until what is under way is complete; FSDP_ERR_INPUT, on every rank alike, where the last
// save failed.
fsdp_status fsdp_saver_finish(fsdp_saver *saver, fsdp_error *error);

// FSDP_ERR_NOT_FINITE, on all ranks alike once they have exchanged it, where a save found a value of the
// state that is not finite: no later one would be any better.
fsdp_status fsdp_saver_not_finite(const fsdp_saver *saver, fsdp_error *error);

// The step of the last save that was begun, 0 where none was.
int64_t fsdp_saver_step(const fsdp_saver *saver);
