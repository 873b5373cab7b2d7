// The header of one safetensors file: reading it and checking all of it. Private to safetensors.c.
#pragma once

#include "runtime/base/status.h"
#include "runtime/checkpoint/safetensors_tensor.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct fsdp_safetensors_list {
  fsdp_safetensors_tensor *tensors; // names are owned
  int count, capacity;
} fsdp_safetensors_list;

typedef struct fsdp_safetensors_source {
  const char *path;
  int descriptor, file;
} fsdp_safetensors_source;

// Appends the file's tensors to `list`, in the order of their bytes; *header_bytes: those read. Buffers
// (fsdp_model_is_buffer) are left out. FSDP_ERR_INPUT; what was appended until then stays in the list.
fsdp_status fsdp_safetensors_header_read(const fsdp_safetensors_source *source, fsdp_safetensors_list *list,
                                         int64_t *header_bytes, fsdp_error *error);

// "F32", ... as the format names it.
const char *fsdp_safetensors_dtype_name(fsdp_dtype dtype);
