// TensorBoard's event files: scalars by step, which TensorBoard shows while the file grows.
//
//   file    = record*
//   record  = length (8 bytes) | masked CRC of these | event | masked CRC of the event    (TFRecord)
//   event   = protobuf: wall_time (1, double), step (2, int64), file_version (3) or summary (5)
//   summary = value (1)*;  value = tag (1), simple_value (2, float)
#pragma once

#include "runtime/base/status.h"

#include <stdint.h>

typedef struct fsdp_event_file fsdp_event_file;

typedef struct fsdp_event_scalar {
  const char *tag;
  double value; // left out if it is not finite
} fsdp_event_scalar;

// Creates FOLDER, with those above it, and a new file in it. FSDP_ERR_INPUT. The caller closes *file.
fsdp_status fsdp_event_file_open(const char *folder, fsdp_event_file **file, fsdp_error *error);

// Removes the file if it has no step, and FOLDER if it was created for it. NULL is allowed.
void fsdp_event_file_close(fsdp_event_file *file);

// Appends the scalars of `step` as one record, in one write. FSDP_ERR_INPUT if the disk is full or fails;
// nothing of the record is left then, and later ones may succeed.
fsdp_status fsdp_event_file_write(fsdp_event_file *file, int64_t step, const fsdp_event_scalar *scalars,
                                  int count, fsdp_error *error);
