// What a build without CUDA answers in place of gpu_cuda.c and device_cuda.c.
#include "runtime/device/device.h"
#include "runtime/device/gpu.h"

#include <stddef.h>

static fsdp_status fail_absent(fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "this build has no CUDA device: build with the CUDA toolkit and -DFSDP_CUDA=on, or use the "
      "CPU");
}

bool fsdp_gpu_is_built(void) {
  return false;
}

void fsdp_gpu_set_environment(void) {}

fsdp_status fsdp_gpu_find(int local_rank, fsdp_gpu *gpu, fsdp_error *error) {
  (void)local_rank;
  *gpu = (fsdp_gpu){.present = false};
  return fail_absent(error);
}

fsdp_status fsdp_gpu_free_bytes(const fsdp_gpu *gpu, int (*probe)(void), int64_t *bytes, fsdp_error *error) {
  (void)gpu, (void)probe, (void)bytes;
  return fail_absent(error);
}

const fsdp_device_table *fsdp_device_cuda(void) {
  return NULL;
}
