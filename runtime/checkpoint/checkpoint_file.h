// A rank's file of a checkpoint, written as a stream and read by ranges, every byte read verified.
//
//   safetensors: "master/<unit>" ... "m/<unit>" ... "v/<unit>" ... "checksums"
//                |<- data: slots in order, units in order, this rank's piece of each ->|
//                |  chunk 0  |  chunk 1  | ...  of 16 KiB; "checksums" holds XXH3-64 of each, little-endian,
//                                               and at its end XXH3-128 of save, rank, header and these
//
// So every byte is covered, a file of another save or rank does not match, and a range is verified by reading
// no more than the chunks that it lies in.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

typedef struct fsdp_checkpoint_reader fsdp_checkpoint_reader;

// Elements [first_elem, first_elem + numel) of a unit's flat buffer.
typedef struct fsdp_checkpoint_range {
  int slot, unit;
  int64_t first_elem, numel;
} fsdp_checkpoint_range;

// Returns the bytes of a range, which must stay valid until the next call.
typedef const void *(*fsdp_checkpoint_source)(void *context, const fsdp_checkpoint_range *range);

typedef struct fsdp_checkpoint_file_config {
  const fsdp_checkpoint *checkpoint; // the layout
  int rank;
  const char *folder;
  // Returns the file's data, called in the order of the bytes for at most piece_bytes at a time.
  fsdp_checkpoint_source source;
  void *context;
  int64_t piece_bytes; // 0: 4 MiB
} fsdp_checkpoint_file_config;

// Writes the file into the folder and makes it durable; *bytes is its size.
// FSDP_ERR_INPUT if the disk is full or fails; FSDP_ERR_NOT_FINITE, naming slot and parameter, if a value is
// not finite. The file is removed then.
fsdp_status fsdp_checkpoint_file_write(const fsdp_checkpoint_file_config *config, int64_t *bytes,
                                       fsdp_error *error);

// Checks that the checkpoint's files are in the folder and have their sizes; their data is not read. `parts`
// callers check each a part of the files, this one `part`. FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_check_files(const fsdp_checkpoint *checkpoint, const char *folder, int part,
                                        int parts, fsdp_error *error);

// Reads from the files in `folder`, each opened and its header verified when it is first needed. `checkpoint`
// outlives the reader.
fsdp_checkpoint_reader *fsdp_checkpoint_reader_create(const fsdp_checkpoint *checkpoint, const char *folder);
void fsdp_checkpoint_reader_destroy(fsdp_checkpoint_reader *reader); // NULL is allowed

// Reads elements [first, first + numel) of one slot of a parameter, flattened row-major, in the checkpoint's
// dtype of that slot, from whichever files hold boxes of them. FSDP_ERR_INPUT, naming the file, if a byte of
// it differs from what was written or a value is not finite.
fsdp_status fsdp_checkpoint_read(fsdp_checkpoint_reader *reader, int slot, int param, int64_t first,
                                 int64_t numel, void *out, fsdp_error *error);

// Bytes read so far, headers and checksums included.
int64_t fsdp_checkpoint_reader_bytes(const fsdp_checkpoint_reader *reader);
