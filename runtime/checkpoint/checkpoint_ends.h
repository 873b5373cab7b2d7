// What frames the data of a rank's file: the header before it, and behind it the checksums of its chunks.
// Private to runtime/checkpoint.
//
//   | length, header |  data: chunks of 16 KiB, the last one shorter  | XXH3-64 of each | XXH3-128 |
//
// The last one is of the save, the rank, the header and the checksums: a file that is damaged, of another
// save or of another rank does not match. In files of versions 4 and 5 it stood in the manifest, and was of
// the header and the checksums alone.
#pragma once

#include "runtime/checkpoint/checkpoint.h"

typedef struct fsdp_checkpoint_ends {
  const fsdp_checkpoint *checkpoint;
  int rank;
  int64_t header_bytes, data_bytes;
} fsdp_checkpoint_ends;

// The data's chunks; checksums of 8 bytes behind the data, in all; bytes of the file.
int64_t fsdp_checkpoint_ends_chunks(const fsdp_checkpoint_ends *ends);
int64_t fsdp_checkpoint_ends_sums(const fsdp_checkpoint_ends *ends);
int64_t fsdp_checkpoint_ends_file_bytes(const fsdp_checkpoint_ends *ends);

// The whole file's checksum, upper half first.
void fsdp_checkpoint_ends_hash(const fsdp_checkpoint_ends *ends, const void *header, const uint64_t *sums,
                               uint64_t checksum[2]);

// Of an open file of the checkpoint: its sizes (FSDP_ERR_INPUT if it is no regular file or has another
// size), and its checksums, once they match (FSDP_ERR_INPUT). The caller frees *sums.
fsdp_status fsdp_checkpoint_ends_measure(const char *path, int descriptor, fsdp_checkpoint_ends *ends,
                                         fsdp_error *error);
fsdp_status fsdp_checkpoint_ends_read(const char *path, int descriptor, const fsdp_checkpoint_ends *ends,
                                      uint64_t **sums, fsdp_error *error);
