// What a build without NCCL answers in place of comm_nccl.c: GPUs of one rank, if it has CUDA.
#include "runtime/base/check.h"
#include "runtime/comm/comm_nccl.h"

fsdp_status fsdp_nccl_load(fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "this build has no NCCL, so several ranks cannot train on GPUs: build where nccl.h is found, use one "
      "rank, or --backend cpu");
}

fsdp_nccl_use fsdp_nccl_choose(fsdp_world *world, const fsdp_nccl_wish *wish) {
  (void)world, (void)wish;
  return (fsdp_nccl_use){.registers = false};
}

fsdp_status fsdp_nccl_comms(fsdp_world *world, const fsdp_nccl_config *config, fsdp_comms *comms,
                            fsdp_error *error) {
  FSDP_CHECK(world->size == 1, "call fsdp_nccl_load first");
  (void)error;
  *comms = (fsdp_comms){.count = config->group_count};
  for (int g = 0; g < comms->count; g++) comms->comm[g] = fsdp_cuda_comm_self();
  return FSDP_OK;
}

void *fsdp_nccl_alloc(int64_t bytes) {
  (void)bytes;
  return NULL;
}

void fsdp_nccl_free(void *memory) {
  (void)memory;
}
