// A rank's file of a checkpoint, written as a stream and read by ranges, every byte read verified.
//
//   safetensors: "master/<unit>" ... "m/<unit>" ... "v/<unit>" ... "checksums"
//                |<- data: slots in order, units in order, this rank's piece of each ->|
//                |  chunk 0  |  chunk 1  | ...  of 16 KiB; "checksums" holds XXH3-64 of each, little-endian
//
// The file's checksum in the manifest is XXH3-128 of the header's bytes followed by those of "checksums": it
// covers every byte, and a range is verified by reading no more than the chunks that it lies in.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

// The smaller, the less do ranks read that others read too; the greater, the smaller is the table.
#define FSDP_CHECKPOINT_CHUNK_BYTES ((int64_t)16 << 10)

typedef struct fsdp_checkpoint_reader fsdp_checkpoint_reader;

// Elements [first_elem, first_elem + elems) of a unit's flat buffer.
typedef struct fsdp_checkpoint_range {
  int slot, unit;
  int64_t first_elem, numel;
  int64_t data_offset; // of its first byte in the file's data
} fsdp_checkpoint_range;

// Where the bytes of a range are, which must stay there until the next call.
typedef const void *(*fsdp_checkpoint_source)(void *context, const fsdp_checkpoint_range *range);

typedef struct fsdp_checkpoint_file_config {
  const fsdp_checkpoint *checkpoint; // the layout
  int rank;
  const char *folder;
  // Either all of the file's data, from a multiple of 4096 on: it is written from where it lies; or who gives
  // it, called in the order of the bytes, for at most piece_bytes at a time.
  const void *data;
  fsdp_checkpoint_source source;
  void *context;
  int64_t piece_bytes; // 0: no limit but the piece of a unit
} fsdp_checkpoint_file_config;

// Bytes of the data of a rank's file.
int64_t fsdp_checkpoint_data_bytes(const fsdp_checkpoint *checkpoint, int rank);

// Writes the file into the folder and makes it durable; `file` says what the manifest shall say of it.
// FSDP_ERR_INPUT where the disk is full or fails; FSDP_ERR_NOT_FINITE, naming slot and parameter, where a
// value is not finite. The file is not there then.
fsdp_status fsdp_checkpoint_file_write(const fsdp_checkpoint_file_config *config, fsdp_checkpoint_file *file,
                                       fsdp_error *error);

// Checks that every file of the manifest is in the folder and as long as it says, reading none.
// FSDP_ERR_INPUT.
fsdp_status fsdp_checkpoint_check_files(const fsdp_checkpoint *checkpoint, const char *folder,
                                        fsdp_error *error);

// Reads from the files in `folder`, each opened and its header verified when it is first needed. `checkpoint`
// outlives the reader.
fsdp_checkpoint_reader *fsdp_checkpoint_reader_create(const fsdp_checkpoint *checkpoint, const char *folder);
void fsdp_checkpoint_reader_destroy(fsdp_checkpoint_reader *reader); // NULL is allowed

// Reads elements [first, first + elems) of one slot of a parameter, flattened row-major, in the
// checkpoint's dtype of that slot, from whichever files hold boxes of them.
// FSDP_ERR_INPUT, naming the file, where a byte of it is not what was written or a value is not finite.
fsdp_status fsdp_checkpoint_read(fsdp_checkpoint_reader *reader, int slot, int param, int64_t first,
                                 int64_t numel, void *out, fsdp_error *error);

// Bytes read so far, headers and checksums included.
int64_t fsdp_checkpoint_reader_bytes(const fsdp_checkpoint_reader *reader);
