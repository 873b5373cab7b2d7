#include "launcher/train/rank_memory.h"

#include "kernels/kernels.h"
#include "launcher/cli/capacity.h"

fsdp_status fsdp_rank_memory_find(const fsdp_world *world, const fsdp_gpu *gpu, fsdp_setup_ranks *ranks,
                                  fsdp_error *error) {
  *ranks = (fsdp_setup_ranks){.ranks = world->size,
                              .ranks_per_node = world->local_size,
                              .even_nodes = world->even_nodes,
                              .machine_bytes = fsdp_capacity_machine_bytes(),
                              .gpu = gpu->present,
                              .target = {.capability = gpu->capability, .multiprocessors = gpu->processors}};
  if (!ranks->gpu) return FSDP_OK;
  if (fsdp_cuda_backend()->load(error) != FSDP_OK) return error->status;
  return fsdp_gpu_free_bytes(gpu, fsdp_cuda_backend()->probe, &ranks->gpu_bytes, error);
}

void fsdp_rank_memory_agree(fsdp_world *world, fsdp_setup_ranks *ranks) {
  const int64_t share = fsdp_world_min(world, ranks->machine_bytes / world->local_size);
  ranks->machine_bytes = share * world->local_size;
  ranks->gpu_bytes = fsdp_world_min(world, ranks->gpu_bytes);
  ranks->target.capability = (int)fsdp_world_min(world, ranks->target.capability);
  ranks->target.multiprocessors = (int)fsdp_world_min(world, ranks->target.multiprocessors);
}
