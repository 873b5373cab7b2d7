// Files that appear whole or not at all: written beside their name, then renamed over it. Devices and pipes
// are written to in place.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct fsdp_whole_file {
  FILE *out;
  const char *option, *path; // the caller's
  char *temporary;           // or, in place, the path
  bool in_place;
  int reason; // errno of the first write that failed, if the writer noted it
} fsdp_whole_file;

// Opens a file beside `path`, which the option names. FSDP_ERR_INPUT. Close it if it was opened.
fsdp_status fsdp_whole_file_open(const char *option, const char *path, fsdp_whole_file *file,
                                 fsdp_error *error);

// Writes what is left and gives the file its name. FSDP_ERR_INPUT if the disk is full or fails: an earlier
// file of the name is as it was then.
fsdp_status fsdp_whole_file_close(fsdp_whole_file *file, fsdp_error *error);

// FSDP_ERR_INPUT if no file can be written there.
fsdp_status fsdp_whole_file_try(const char *option, const char *path, fsdp_error *error);
