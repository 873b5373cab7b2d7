// Checkpoints of one experiment in its folder: listing, writing and pruning them.
//
//   step-00000500.tmp/   being written; leftovers of a crash are removed at the next start
//   step-00000500/       complete: renamed to this only after everything in it was on the disk
//   step-00000500.old/   complete too, while its successor of the same step takes its name
//   step-00000500.gone/  no checkpoint any more: every rank removes its part of the files in it
//
// One process changes the folder at a time (it holds the lock, checkpoint_lock.h); others of the same run
// write into the temporary one.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

#define FSDP_CHECKPOINT_PATH_BYTES 4096

typedef struct fsdp_checkpoint_entry {
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  int64_t step, sequence;           // sequence 0: the manifest cannot be read
  int64_t inode, bytes, changed_ns; // of its manifest
  double eval_loss;                 // 0: it was not evaluated
  int64_t evaluated_from;           // fsdp_checkpoint_results
} fsdp_checkpoint_entry;

// What a folder held when it was last listed, so that a manifest that has not changed is read once. Zeros at
// first; the caller frees the entries.
typedef struct fsdp_checkpoint_index {
  fsdp_checkpoint_entry *entries; // newest first
  int count;
} fsdp_checkpoint_index;

// Folders that are checkpoints no more, by step, and how many ranks' files they have at most.
#define FSDP_CHECKPOINT_GONE_MAX 64
typedef struct fsdp_checkpoint_gone {
  int64_t step;
  int32_t file_count;
  int32_t in_folders; // as of more than FSDP_CHECKPOINT_FOLDER_FILES ranks
} fsdp_checkpoint_gone;
typedef struct fsdp_checkpoint_gone_list {
  int64_t count;
  fsdp_checkpoint_gone items[FSDP_CHECKPOINT_GONE_MAX];
} fsdp_checkpoint_gone_list;

// Gives what crashes left the name of what is gone, and the checkpoint that had stepped aside for one that
// was never completed its own. Appends to `gone`.
void fsdp_checkpoint_clean(const char *folder, fsdp_checkpoint_gone_list *gone);

// Removes part `part` of `parts` of the ranks' files in what is gone: with as many parts as ranks, a rank
// removes the file that it wrote. A file that is not there is nothing.
void fsdp_checkpoint_remove_files(const char *folder, const fsdp_checkpoint_gone_list *gone, int part,
                                  int parts);
// Removes what is gone with all that is left in it, and empties the list.
void fsdp_checkpoint_remove_rest(const char *folder, fsdp_checkpoint_gone_list *gone);

// The complete checkpoints, newest first; those with an unreadable manifest, whose age is unknown, come
// first.
void fsdp_checkpoint_refresh(const char *folder, fsdp_checkpoint_index *index);
// The same, once. Returns their number; the caller frees *entries.
int fsdp_checkpoint_list(const char *folder, fsdp_checkpoint_entry **entries);

// The complete checkpoints below other names than step-N, as a user renames or copies them: no run counts or
// removes them. By name; the caller frees *entries, of which only the paths are set.
int fsdp_checkpoint_list_kept(const char *folder, fsdp_checkpoint_entry **entries);

// The step that a checkpoint's folder is named by; -1 if it has another name.
int64_t fsdp_checkpoint_named_step(const char *path);

// The one of these, newest first, with the least evaluation loss among those that were evaluated as the
// newest such one was; the newer of equals; -1 if none was evaluated.
int fsdp_checkpoint_best(const fsdp_checkpoint_entry *entries, int count);

// The checkpoint of the experiment `folder` that a word means: "step-60" or "60", with or without zeros
// before the number, "best", or the name of one below another name. False if it has none.
bool fsdp_checkpoint_named(const char *folder, const char *word, char path[FSDP_CHECKPOINT_PATH_BYTES]);

// The same of a path EXPERIMENT/WORD.
bool fsdp_checkpoint_below(const char *path, char found[FSDP_CHECKPOINT_PATH_BYTES]);

// The checkpoint that a path means: the folder itself, EXPERIMENT/WORD as above, or the newest one in it.
// False if there is none.
bool fsdp_checkpoint_at(const char *path, char found[FSDP_CHECKPOINT_PATH_BYTES]);

// Which checkpoints the experiment has, for a message: " has step-8, step-4, mine" or " has none". Returns
// `out`.
enum { FSDP_CHECKPOINT_NAMES_BYTES = 256 };
const char *fsdp_checkpoint_print_names(const char *folder, char out[FSDP_CHECKPOINT_NAMES_BYTES]);

// The folder of checkpoint `step`: its final one (""), or the one that it is written into. Returns `path`.
#define FSDP_CHECKPOINT_UNFINISHED ".tmp"
const char *fsdp_checkpoint_path(const char *folder, int64_t step, const char *ending,
                                 char path[FSDP_CHECKPOINT_PATH_BYTES]);

// Creates the temporary folder, empty but for a mark of the save. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_begin(const char *folder, int64_t step, uint64_t save, fsdp_error *error);

// Whether that mark is there: a rank whose folder of this name is a different one must not write into it.
// FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_find_mark(const char *folder, int64_t step, uint64_t save, fsdp_error *error);

// Where the model came from, for what an export carries along.
typedef struct fsdp_checkpoint_model {
  const char *folder;        // its small files are copied; NULL: it has none
  const char *tokenizer;     // a tokenizer.json, in place of the folder's and with what lies beside it; NULL:
                             // the folder's
  const char *chat_template; // of the data, in place of the folder's; NULL: the folder's
  int64_t chat_template_bytes;
} fsdp_checkpoint_model;

// Called once every rank's file is in the temporary folder. Copies the files of `model` (may be NULL) other
// than weights, assigns the next sequence number, writes the manifest, makes everything durable and
// gives the folder its final name; one of the same step is gone then. On FSDP_ERR_INPUT the temporary folder
// is removed.
fsdp_status fsdp_checkpoint_commit(const char *folder, const fsdp_checkpoint_model *model,
                                   fsdp_checkpoint *checkpoint, fsdp_checkpoint_index *index,
                                   fsdp_checkpoint_gone_list *gone, fsdp_error *error);

// Of a save that is given up: removes the rank's file; rank 0 removes the temporary folder.
void fsdp_checkpoint_abandon(const char *folder, const fsdp_checkpoint *checkpoint, int rank);

// Which checkpoints stay.
typedef struct fsdp_checkpoint_keep {
  int newest; // so many; 0: all
  bool best;  // the one with the least evaluation loss beside them
} fsdp_checkpoint_keep;

// All other complete checkpoints are gone; unreadable ones count as the oldest.
void fsdp_checkpoint_prune(const char *folder, const fsdp_checkpoint_keep *keep, fsdp_checkpoint_index *index,
                           fsdp_checkpoint_gone_list *gone);

// All complete checkpoints are gone.
void fsdp_checkpoint_drop(const char *folder, fsdp_checkpoint_gone_list *gone);

// Removes a folder and all that is in it.
void fsdp_checkpoint_remove_tree(const char *path);

// Where a model's folder has the carried file of this name: a path in it.
const char *fsdp_checkpoint_place(const char *name);

// Copies a file and makes it durable; `checksum` (may be NULL) is XXH3-128 of it. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_copy_file(const char *from, const char *to, uint64_t checksum[2],
                                      fsdp_error *error);
