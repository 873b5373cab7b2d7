#include "runtime/checkpoint/safetensors_tensor.h"

#include <stdio.h>

const char *fsdp_safetensors_shape_text(int dims, const int64_t *shape, char buffer[96]) {
  int used = snprintf(buffer, 96, "(");
  for (int i = 0; i < dims; i++)
    used += snprintf(buffer + used, 96 - (size_t)used, "%s%lld", i ? ", " : "", (long long)shape[i]);
  snprintf(buffer + used, 96 - (size_t)used, ")");
  return buffer;
}
