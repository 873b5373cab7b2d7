#include "launcher/train/rank_memory.h"

#include "kernels/kernels.h"
#include "launcher/cli/capacity.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>

fsdp_status fsdp_rank_memory_find(const fsdp_world *world, const fsdp_gpu *gpu, fsdp_setup_ranks *ranks,
                                  fsdp_error *error) {
  *ranks = (fsdp_setup_ranks){.ranks = world->size,
                              .ranks_per_node = world->local_size,
                              .even_nodes = world->even_nodes,
                              .machine_bytes = fsdp_capacity_machine_bytes(),
                              .gpu = gpu->present};
  if (!ranks->gpu) return FSDP_OK;
  if (fsdp_cuda_backend()->load(error) != FSDP_OK) return error->status;
  return fsdp_gpu_free_bytes(gpu, fsdp_cuda_backend()->probe, &ranks->gpu_bytes, error);
}

void fsdp_rank_memory_agree(fsdp_world *world, fsdp_setup_ranks *ranks) {
  enum { MACHINE_SHARE, GPU, COUNT };
  int64_t mine[COUNT] = {ranks->machine_bytes / world->local_size, ranks->gpu_bytes};
  int64_t *all = fsdp_alloc((size_t)world->size * sizeof mine);
  fsdp_world_gather(world, mine, (int64_t)sizeof mine, all);
  for (int r = 0; r < world->size; r++)
    for (int i = 0; i < COUNT; i++) mine[i] = fsdp_min_i64(mine[i], all[r * COUNT + i]);
  free(all);
  ranks->machine_bytes = mine[MACHINE_SHARE] * world->local_size;
  ranks->gpu_bytes = mine[GPU];
}
