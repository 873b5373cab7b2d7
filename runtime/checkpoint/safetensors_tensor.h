// A tensor of a safetensors file, as its header describes it.
#pragma once

#include "runtime/base/dtype.h"

#include <stdint.h>

#define FSDP_SAFETENSORS_MAX_DIMS         4
#define FSDP_SAFETENSORS_MAX_HEADER_BYTES 100000000 // the format's own limit

typedef struct fsdp_safetensors_tensor {
  const char *name;
  fsdp_dtype dtype; // F32, BF16, F16 or I32
  int dims;         // 0 is a scalar
  int64_t shape[FSDP_SAFETENSORS_MAX_DIMS];
  int64_t numel;
  // Filled by opening, not read by the writer.
  int file;            // which of the opened files
  int64_t file_offset; // byte of that file at which the tensor begins
} fsdp_safetensors_tensor;
