// What a checkpoint is: its manifest, and where every element of every part lies.
//
//   FOLDER/step-00000500/
//     checkpoint.json               this manifest: layout, mesh, progress, options, a checksum of each file
//                                   and its own
//     rank-00000.safetensors ...    one per rank (checkpoint_file.h)
//     model/config.json ...         small files of the model's folder, carried along
//
// Parts (masters, first and second moments) are kept as the flat buffers of the run's units
// (units.h), so that a rank's file is its shards as they lie in memory. With F ranks in a shard
// group and R replicas the file of rank (f, d) holds slice d of shard f of every unit: every element is
// written once, by one rank.
//
//   unit's flat buffer   |        shard 0        |        shard 1        | ...    F shards
//                        | slice 0   | slice 1   | slice 0   | slice 1   |        R slices per shard
//                          rank 0      rank F      rank 1      rank F+1
#pragma once

#include "models/model.h"
#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

#include <jansson.h>

#define FSDP_CHECKPOINT_MANIFEST   "checkpoint.json"
#define FSDP_CHECKPOINT_CARRIED    "model" // folder of the carried files
#define FSDP_CHECKPOINT_NAME_BYTES 96

// In the order of fsdp_state_part (runtime/exec/state.h) and of the bytes of a file.
enum { FSDP_CHECKPOINT_MASTER, FSDP_CHECKPOINT_MOMENT1, FSDP_CHECKPOINT_MOMENT2, FSDP_CHECKPOINT_PARTS };

typedef struct fsdp_checkpoint_param {
  char name[FSDP_NAME_BYTES];
  int dims;
  int64_t shape[FSDP_MAX_DIMS];
  int64_t numel;
  int unit;
  int64_t offset; // of its first element in the unit's flat buffer
} fsdp_checkpoint_param;

typedef struct fsdp_checkpoint_unit {
  char path[FSDP_NAME_BYTES];
  int64_t padded_numel; // a multiple of 16 F
} fsdp_checkpoint_unit;

typedef struct fsdp_checkpoint_file {
  char name[FSDP_CHECKPOINT_NAME_BYTES];
  int64_t bytes;
  int64_t header_bytes; // before the data; 0 of carried files
  uint64_t checksum[2]; // XXH3-128, upper half first
} fsdp_checkpoint_file;

// How far the run was.
typedef struct fsdp_checkpoint_progress {
  int64_t step;                 // steps done
  int64_t updates;              // of them not skipped: the optimizer's t
  int64_t epoch, epoch_samples; // where the next step starts: whole epochs, samples of this one
  int64_t seed; // of data order and stochastic rounding, whose counters are the numbers of the
                // step and of the update
  int64_t global_batch, sample_count, held_out;
  uint64_t data_fingerprint; // fsdp_dataset_fingerprint
  int64_t schedule_start;    // the step at which the learning-rate schedule began
} fsdp_checkpoint_progress;

typedef struct fsdp_checkpoint {
  fsdp_model_config model;
  char model_name[FSDP_CHECKPOINT_NAME_BYTES], strategy[16];
  fsdp_mesh mesh;
  fsdp_dtype dtype[FSDP_CHECKPOINT_PARTS];
  fsdp_checkpoint_unit *units;
  fsdp_checkpoint_param *params; // units in order, parameters in the order of their offsets
  int unit_count, param_count;
  fsdp_checkpoint_file *files; // of ranks, by rank
  int file_count;
  fsdp_checkpoint_file *carried;
  int carried_count;
  fsdp_checkpoint_progress progress;
  int64_t sequence; // counts the checkpoints of an experiment: the greatest is the newest
  json_t *options;  // name: value, both as text
} fsdp_checkpoint;

// The layout of a plan, without files, progress and options. The caller owns the result.
fsdp_checkpoint *fsdp_checkpoint_create(const fsdp_plan *plan, const char *model_name);
void fsdp_checkpoint_destroy(fsdp_checkpoint *checkpoint); // NULL is allowed

// The manifest as text, its own checksum included; the caller frees it.
char *fsdp_checkpoint_print(const fsdp_checkpoint *checkpoint);

// Reads the manifest `text` of the file `path` and checks its checksum and everything that it says.
// FSDP_ERR_INPUT. The caller owns *checkpoint.
fsdp_status fsdp_checkpoint_parse(const char *path, const char *text, fsdp_checkpoint **checkpoint,
                                  fsdp_error *error);

// The same, from FOLDER/checkpoint.json.
fsdp_status fsdp_checkpoint_read_manifest(const char *folder, fsdp_checkpoint **checkpoint,
                                          fsdp_error *error);

// A rank's piece of a unit: elements [*first, *first + *elems) of the flat buffer.
void fsdp_checkpoint_piece(const fsdp_checkpoint *checkpoint, int rank, int unit, int64_t *first,
                           int64_t *elems);

// The piece that holds element `element` of the unit's flat buffer: its rank.
int fsdp_checkpoint_holder(const fsdp_checkpoint *checkpoint, int unit, int64_t element);

// Bytes of all pieces of one part of a rank.
int64_t fsdp_checkpoint_part_bytes(const fsdp_checkpoint *checkpoint, int rank, int part);

// Elements of all parameters together.
int64_t fsdp_checkpoint_numel(const fsdp_checkpoint *checkpoint);

// The parameter's index, or -1.
int fsdp_checkpoint_find(const fsdp_checkpoint *checkpoint, const char *name);

// "master", "moment1", "moment2".
const char *fsdp_checkpoint_part_name(int part);
