// Checkpoints of one experiment in its folder: what is there, how one comes to be, how old ones go.
//
//   step-00000500.tmp/   being written or removed; whatever is left of a crash goes at the next start
//   step-00000500/       complete, for it got this name only after everything in it was on the disk
//   step-00000500.old/   complete too, while its successor of the same step takes its name
//
// One process changes the folder at a time (it holds the lock); others of the same run write into the
// temporary one.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

#define FSDP_CHECKPOINT_PATH_BYTES 4096

typedef struct fsdp_checkpoint_entry {
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  int64_t step, sequence; // sequence 0: the manifest cannot be read
} fsdp_checkpoint_entry;

// Told, once, that another run has the folder, before it is waited for; `holder` is "process 123 on host a",
// or "another run" where that is not known.
typedef void (*fsdp_checkpoint_wait)(const char *folder, const char *holder, int wait_ms);

// Locks the folder against other runs, waiting up to `wait_ms` for one that is just ending, and leaves a file
// that says who has it. FSDP_ERR_INPUT where another run keeps it. On file systems without locks *lock is -1.
fsdp_status fsdp_checkpoint_lock(const char *folder, int wait_ms, fsdp_checkpoint_wait waiting, int *lock,
                                 fsdp_error *error);

// Lets go of the folder. A run that is killed does so too, but for the file.
void fsdp_checkpoint_unlock(const char *folder, int lock);

// Removes what crashes have left.
void fsdp_checkpoint_clean(const char *folder);

// The complete checkpoints, newest first; those with an unreadable manifest, whose age nobody knows, before
// all others. Returns their number; the caller frees *entries.
int fsdp_checkpoint_list(const char *folder, fsdp_checkpoint_entry **entries);

// The folder that checkpoint `step` is written into, and its final one.
void fsdp_checkpoint_paths(const char *folder, int64_t step, char temporary[FSDP_CHECKPOINT_PATH_BYTES],
                           char final[FSDP_CHECKPOINT_PATH_BYTES]);

// Makes the temporary folder, empty. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_begin(const char *folder, int64_t step, fsdp_error *error);

// Once every rank's file is in the temporary folder: copies what of `model_folder` (may be NULL) belongs to a
// model beside its weights, gives the checkpoint the next sequence number, writes the manifest, makes all
// durable and gives the folder its name, in the place of one of the same step. FSDP_ERR_INPUT; the temporary
// folder is removed then.
fsdp_status fsdp_checkpoint_commit(const char *folder, const char *model_folder, fsdp_checkpoint *checkpoint,
                                   fsdp_error *error);

// Removes the temporary folder of `step`.
void fsdp_checkpoint_abandon(const char *folder, int64_t step);

// Removes complete checkpoints but the newest `keep`; unreadable ones count as the oldest. 0 keeps all.
void fsdp_checkpoint_prune(const char *folder, int keep);

// Removes a folder and all that is in it.
void fsdp_checkpoint_remove_tree(const char *path);

// Makes the names in a folder durable. False with the reason in errno.
bool fsdp_checkpoint_sync_folder(const char *folder);

// Copies a file and makes it durable; `checksum` (may be NULL) is XXH3-128 of it. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_copy_file(const char *from, const char *to, uint64_t checksum[2],
                                      fsdp_error *error);
