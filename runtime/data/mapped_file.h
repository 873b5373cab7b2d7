// A file's bytes, mapped read-only: only accessed pages are read, and ranks of one machine share them.
//
// The file must not change while it is mapped. If it becomes shorter, or its disk fails, the kernel sends
// SIGBUS to the reader of a page that is gone. That is caught: the rest of the mapping becomes zeros, and
// fsdp_mapped_file_lost says which file it was, for who can end the run in order.
#pragma once

#include "runtime/base/status.h"

#include <stdint.h>

typedef struct fsdp_mapped_file {
  const unsigned char *bytes;
  int64_t count;
} fsdp_mapped_file;

// Maps the file at `path`. FSDP_ERR_INPUT if it is missing, empty, a folder or not a regular file. The caller
// closes *file.
fsdp_status fsdp_mapped_file_open(const char *path, fsdp_mapped_file *file, fsdp_error *error);
void fsdp_mapped_file_close(fsdp_mapped_file *file); // one of zeros is allowed

// FSDP_ERR_INPUT, naming the file, if a page of any that is or was mapped could not be read: what was read of
// it since is zeros. Callable from any thread.
fsdp_status fsdp_mapped_file_lost(fsdp_error *error);
