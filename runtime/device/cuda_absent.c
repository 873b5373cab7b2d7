// What a build without CUDA answers in place of gpu_cuda.c, device_cuda.c and comm_nccl.c.
#include "runtime/comm/comm_nccl.h"
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

fsdp_status fsdp_gpu_choose(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error) {
  (void)world, (void)allow_shared;
  *gpu = (fsdp_gpu){.present = false};
  return fail_absent(error);
}

fsdp_status fsdp_gpu_free_bytes(const fsdp_gpu *gpu, int64_t *bytes, fsdp_error *error) {
  (void)gpu, (void)bytes;
  return fail_absent(error);
}

const fsdp_device_table *fsdp_device_cuda(void) {
  return NULL;
}

fsdp_status fsdp_nccl_comms(fsdp_world *world, const fsdp_nccl_config *config, fsdp_comms *comms,
                            fsdp_error *error) {
  (void)world, (void)config, (void)comms;
  return fail_absent(error);
}

fsdp_comm *fsdp_cuda_comm_self(void) {
  return NULL;
}
