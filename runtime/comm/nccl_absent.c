// What a build without NCCL answers in place of comm_nccl.c.
#include "runtime/comm/comm_nccl.h"

#include <stddef.h>

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
  (void)world, (void)config, (void)comms;
  return fsdp_nccl_load(error);
}

void *fsdp_nccl_alloc(int64_t bytes) {
  (void)bytes;
  return NULL;
}

void fsdp_nccl_free(void *memory) {
  (void)memory;
}
