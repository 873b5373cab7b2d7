#include "runtime/device/gpu.h"

#include <stdio.h>

const char *fsdp_gpu_kind(const fsdp_gpu *gpu, char out[FSDP_GPU_KIND_BYTES]) {
  snprintf(out, FSDP_GPU_KIND_BYTES, "%s, compute capability %d.%d, %d multiprocessors, driver %s", gpu->name,
           gpu->capability / 10, gpu->capability % 10, gpu->processors, gpu->driver);
  return out;
}
