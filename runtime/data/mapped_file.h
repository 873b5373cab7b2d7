// A file's bytes, mapped read-only: only accessed pages are read, and ranks of one machine share them.
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
