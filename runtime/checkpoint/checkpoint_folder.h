// Checkpoints of one experiment in its folder: listing, writing and pruning them.
//
//   step-00000500.tmp/   being written or removed; leftovers of a crash are removed at the next start
//   step-00000500/       complete: renamed to this only after everything in it was on the disk
//   step-00000500.old/   complete too, while its successor of the same step takes its name
//
// One process changes the folder at a time (it holds the lock, checkpoint_lock.h); others of the same run write into the
// temporary one.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

#define FSDP_CHECKPOINT_PATH_BYTES 4096

typedef struct fsdp_checkpoint_entry {
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  int64_t step, sequence; // sequence 0: the manifest cannot be read
} fsdp_checkpoint_entry;

// Removes leftovers of crashes.
void fsdp_checkpoint_clean(const char *folder);

// The complete checkpoints, newest first; those with an unreadable manifest, whose age is unknown, come
// first. Returns their number; the caller frees *entries.
int fsdp_checkpoint_list(const char *folder, fsdp_checkpoint_entry **entries);

// The folder that checkpoint `step` is written into, and its final one.
void fsdp_checkpoint_paths(const char *folder, int64_t step, char temporary[FSDP_CHECKPOINT_PATH_BYTES],
                           char final[FSDP_CHECKPOINT_PATH_BYTES]);

// Creates the temporary folder, empty. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_begin(const char *folder, int64_t step, fsdp_error *error);

// Called once every rank's file is in the temporary folder. Copies the files of `model_folder` (may be NULL)
// other than weights, assigns the next sequence number, writes the manifest, makes everything durable and
// gives the folder its final name, replacing one of the same step. On FSDP_ERR_INPUT the temporary folder is
// removed.
fsdp_status fsdp_checkpoint_commit(const char *folder, const char *model_folder, fsdp_checkpoint *checkpoint,
                                   fsdp_error *error);

// Removes the temporary folder of `step`.
void fsdp_checkpoint_abandon(const char *folder, int64_t step);

// Removes all complete checkpoints but the newest `keep`; unreadable ones count as the oldest. 0 keeps all.
void fsdp_checkpoint_prune(const char *folder, int keep);

// Removes a folder and all that is in it.
void fsdp_checkpoint_remove_tree(const char *path);

// Makes the names in a folder durable. False with the reason in errno.
bool fsdp_checkpoint_sync_folder(const char *folder);

// Copies a file and makes it durable; `checksum` (may be NULL) is XXH3-128 of it. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_copy_file(const char *from, const char *to, uint64_t checksum[2],
                                      fsdp_error *error);
