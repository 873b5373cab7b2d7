// What a build without CUDA answers in place of comm_nccl.c and comm_cuda_self.c.
#include "runtime/comm/comm_nccl.h"

#include <stddef.h>

fsdp_status fsdp_nccl_load(fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_PEER,
                   "this build has no communicators of GPUs: build with -DFSDP_CUDA=on");
}

fsdp_nccl_use fsdp_nccl_choose(fsdp_world *world, const fsdp_nccl_wish *wish) {
  (void)world, (void)wish;
  return (fsdp_nccl_use){.registers = false};
}

fsdp_status fsdp_nccl_comms(fsdp_world *world, const fsdp_nccl_config *config, fsdp_comms *comms,
                            fsdp_error *error) {
  (void)world, (void)config, (void)comms;
  return fsdp_nccl_load(error);
}

fsdp_comm *fsdp_cuda_comm_self(void) {
  return NULL;
}

void *fsdp_nccl_alloc(int64_t bytes) {
  (void)bytes;
  return NULL;
}

void fsdp_nccl_free(void *memory) {
  (void)memory;
}
