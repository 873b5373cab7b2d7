#include "launcher/setup/rank_memory.h"

#include "launcher/setup/capacity.h"
#include "runtime/exec/gpu_choice.h"

fsdp_status fsdp_rank_memory_find(fsdp_world *world, const fsdp_gpu *gpu, fsdp_setup_ranks *ranks,
                                  fsdp_error *error) {
  *ranks = (fsdp_setup_ranks){.ranks = world->size,
                              .ranks_per_node = world->local_size,
                              .fills_nodes = world->even_nodes,
                              .machine_bytes = fsdp_capacity_machine_bytes(),
                              .gpu = gpu->present};
  if (ranks->gpu) fsdp_gpu_open(gpu, &ranks->gpu_bytes, &ranks->target, error);
  if (fsdp_world_share_error(world, error) != FSDP_OK) return error->status;
  const int64_t share = fsdp_world_min(world, ranks->machine_bytes / world->local_size);
  ranks->machine_bytes = share * world->local_size;
  ranks->gpu_bytes = fsdp_world_min(world, ranks->gpu_bytes);
  if (ranks->gpu) fsdp_gpu_agree(world, &ranks->target);
  return FSDP_OK;
}
