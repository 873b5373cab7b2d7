// What a checkpoint is: its manifest, and where every element of every slot lies.
//
//   FOLDER/step-00000500/
//     checkpoint.json               this manifest: mesh, units, slots, progress, options, its own checksum
//     rank-00000.safetensors ...    one per rank (checkpoint_file.h); of more than 256 ranks 256 in a folder:
//     ranks-00256/rank-00300.safetensors
//     model/config.json ...         small files of the model's folder, carried along
//
// A checkpoint's parts are named (parameter, slot of the optimizer) and stored as boxes in the parameter's
// own coordinates. No box is listed: which ones a rank's file holds follows from the stored mesh, units and
// cuts by the rule of boxes.h, so a loading rank, on any mesh and with any units, intersects what it needs
// with them. With F ranks over a unit's shard axes and R over its replica axes, the rank at place f of the
// first and d of the second holds slice d of shard f of the unit's flat buffer. The remaining axes cut the
// unit's parameters, so that ranks apart on them have buffers of their own. Every element is written once, by
// one rank.
//
//   unit's flat buffer   |        shard 0        |        shard 1        | ...    F shards
//                        | slice 0   | slice 1   | slice 0   | slice 1   |        R slices per shard
#pragma once

#include "models/model.h"
#include "runtime/base/status.h"
#include "runtime/plan/mesh/boxes.h"
#include "runtime/plan/plan.h"

#include <jansson.h>

#define FSDP_CHECKPOINT_MANIFEST   "checkpoint.json"
#define FSDP_CHECKPOINT_CARRIED    "model" // folder of the carried files
#define FSDP_CHECKPOINT_NAME_BYTES 96
#define FSDP_CHECKPOINT_FILE_BYTES 4352 // of a rank's file, with its folder
// Ranks' files in one folder: more make every access to it slow on shared file systems.
#define FSDP_CHECKPOINT_FOLDER_FILES 256
#define FSDP_CHECKPOINT_RANK_FILE    "rank-%05d.safetensors"
#define FSDP_CHECKPOINT_RANK_FOLDER  "ranks-%05d" // its first rank

// Smaller chunks: fewer bytes are read by several ranks. Greater chunks: a smaller table.
#define FSDP_CHECKPOINT_CHUNK_BYTES ((int64_t)16 << 10)

// A slot of the optimizer that saved; the bytes of a file are in the order of slots.
typedef struct fsdp_checkpoint_slot {
  char name[16];
  fsdp_dtype dtype;
} fsdp_checkpoint_slot;

typedef struct fsdp_checkpoint_param {
  char name[FSDP_NAME_BYTES]; // several may be parts of one tensor: blocks of experts (fsdp_cut)
  int dims;
  int64_t shape[FSDP_MAX_DIMS];
  int64_t numel;
  fsdp_cut cut;
  int64_t local[FSDP_MAX_DIMS]; // shape of a rank's piece
  int64_t local_numel;
  int unit;
  int64_t offset; // of its piece in the unit's flat buffer
} fsdp_checkpoint_param;

typedef struct fsdp_checkpoint_unit {
  char path[FSDP_NAME_BYTES];
  fsdp_axis_set shard_axes, replica_axes;
  int64_t padded_numel; // a multiple of 16 F
} fsdp_checkpoint_unit;

// A carried file, or a rank's of versions 4 and 5, whose manifests list them.
typedef struct fsdp_checkpoint_file {
  char name[FSDP_CHECKPOINT_NAME_BYTES];
  int64_t bytes;
  int64_t header_bytes; // before the data; 0 of carried files
  uint64_t checksum[2]; // XXH3-128, upper half first
} fsdp_checkpoint_file;

// How well the run did when it was saved; 0: not known.
typedef struct fsdp_checkpoint_results {
  double loss, eval_loss;         // of the step, and of the evaluation after it
  double best_eval_loss;          // the least of the run's evaluations
  int64_t evaluations_since_best; // that were no better
  int64_t evaluated_from;         // the step behind which evaluations are like the newest: of the same data,
                                  // and the same mean
  bool owes_evaluation; // a signal stopped the run before the evaluation that was due after the step
  int64_t saved_s;      // when, in seconds since 1970
} fsdp_checkpoint_results;

// Whether an option was given; older checkpoints do not tell.
typedef enum fsdp_checkpoint_given {
  FSDP_GIVEN_UNKNOWN,
  FSDP_GIVEN_NO,
  FSDP_GIVEN_YES
} fsdp_checkpoint_given;

// The progress of the run.
typedef struct fsdp_checkpoint_progress {
  int64_t step;                 // steps done
  int64_t updates;              // updates not skipped: the optimizer's t
  int64_t epoch, epoch_samples; // where the next step starts: whole epochs, samples of this one
  int64_t seed; // of data order and stochastic rounding, whose counters are the numbers of the
                // step and of the update
  int64_t global_batch, sample_count, held_out;
  uint64_t data_fingerprint;           // fsdp_dataset_fingerprint
  uint64_t eval_fingerprint;           // of separate evaluation data; 0: none, or not known
  bool knows_ends;                     // of a text of the data: the token that it
  int64_t first_token;                 // begins with, -1: none,
  int64_t last_token;                  // and ends with, -1: none
  fsdp_checkpoint_given document_mask; // of --document-mask, whose saved value is what the run had
  int64_t schedule_start;              // the step at which the learning-rate schedule began
  char rounding[24]; // generator of the bits that bf16 states are rounded with (random_rounds.h)
  fsdp_checkpoint_results results;
} fsdp_checkpoint_progress;

typedef struct fsdp_checkpoint {
  fsdp_model_config model;
  char model_name[FSDP_CHECKPOINT_NAME_BYTES], strategy[16];
  fsdp_mesh mesh;
  char optimizer[16];
  fsdp_checkpoint_slot slots[FSDP_SLOTS_MAX]; // the parameters first
  int slot_count;
  fsdp_checkpoint_unit *units;
  fsdp_checkpoint_param *params; // units in order, parameters in the order of their offsets
  int unit_count, param_count;
  int file_count;              // of ranks: the mesh's
  int64_t files_bytes;         // of all of them
  uint64_t save;               // drawn for each save; tells its files from others'
  fsdp_checkpoint_file *files; // of versions 4 and 5, by rank; NULL: names and sizes follow from the rest
  fsdp_checkpoint_file *carried;
  int carried_count;
  bool carries_tokenizer; // --tokenizer's file is among them; older checkpoints have the model folder's
  fsdp_checkpoint_progress progress;
  int64_t sequence; // counts the checkpoints of an experiment: the greatest is the newest
  json_t *options;  // name: value, both as text
} fsdp_checkpoint;

// The layout of a plan, without files, progress and options. The caller owns the result.
fsdp_checkpoint *fsdp_checkpoint_create(const fsdp_plan *plan, const char *model_name);
void fsdp_checkpoint_destroy(fsdp_checkpoint *checkpoint); // NULL is allowed

// The path of a rank's file in the checkpoint's folder `folder`. Returns `path`.
const char *fsdp_checkpoint_file_path(const fsdp_checkpoint *checkpoint, const char *folder, int rank,
                                      char path[FSDP_CHECKPOINT_FILE_BYTES]);

// The manifest as text, its own checksum included; the caller frees it.
char *fsdp_checkpoint_print(const fsdp_checkpoint *checkpoint);

// Reads the manifest `text` of the file `path` and checks its checksum and everything that it says.
// FSDP_ERR_INPUT. The caller owns *checkpoint.
fsdp_status fsdp_checkpoint_parse(const char *path, const char *text, fsdp_checkpoint **checkpoint,
                                  fsdp_error *error);

// The same, from FOLDER/checkpoint.json.
fsdp_status fsdp_checkpoint_read_manifest(const char *folder, fsdp_checkpoint **checkpoint,
                                          fsdp_error *error);

// A rank's piece of a unit: elements [*first, *first + *numel) of the flat buffer.
void fsdp_checkpoint_piece(const fsdp_checkpoint *checkpoint, int rank, int unit, int64_t *first,
                           int64_t *numel);

// The rank whose piece holds element `element` of the flat buffer that `rank` has of the unit.
int fsdp_checkpoint_holder(const fsdp_checkpoint *checkpoint, int unit, int rank, int64_t element);

// Appends the boxes of a parameter in the flat buffer that `rank` has of its unit, in order; their offsets
// count from the buffer's begin, and their number is the rank.
void fsdp_checkpoint_boxes(const fsdp_checkpoint *checkpoint, int param, int rank, fsdp_box_list *list);

// The parameter, and the index in it (flattened), of element `element` of the flat buffer that `rank` has of
// the unit; -1 for padding.
int fsdp_checkpoint_element(const fsdp_checkpoint *checkpoint, int unit, int rank, int64_t element,
                            int64_t *index);

// Bytes of the data of a rank's file: of all slots.
int64_t fsdp_checkpoint_data_bytes(const fsdp_checkpoint *checkpoint, int rank);

// Elements of all parameters together, and how many parameters these are: those in parts count once.
int fsdp_checkpoint_count_params(const fsdp_checkpoint *checkpoint);
int64_t fsdp_checkpoint_numel(const fsdp_checkpoint *checkpoint);

// The parameter's index, or that of its first part; -1: there is none.
int fsdp_checkpoint_find(const fsdp_checkpoint *checkpoint, const char *name);

// The slot's index, or -1.
int fsdp_checkpoint_find_slot(const fsdp_checkpoint *checkpoint, const char *name);

// Lays the parameters of each unit out in its flat buffer: sets pieces, offsets and padded sizes from mesh,
// axes, shapes and cuts. False if a size does not fit.
bool fsdp_checkpoint_lay_out(fsdp_checkpoint *checkpoint);
