#include "runtime/exec/gpu_choice.h"

#include "runtime/base/check.h"
#include "runtime/comm/comm_nccl.h"

#include <stdlib.h>
#include <string.h>

// Counts the ranks that share this rank's GPU, which are of its node.
static fsdp_status find_sharers(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error) {
  fsdp_gpu *all = fsdp_alloc((size_t)world->local_size * sizeof *all);
  fsdp_world_gather_node(world, gpu, (int64_t)sizeof *gpu, all);
  int other = world->rank;
  for (int i = world->local_size - 1; i >= 0; i--) {
    if (memcmp(all[i].uuid, gpu->uuid, sizeof gpu->uuid) != 0) continue;
    gpu->sharers++;
    if (i != world->local_rank) other = world->nodes.local_ranks[i];
  }
  free(all);
  if (gpu->sharers == 1 || allow_shared) return FSDP_OK;
  if (gpu->shown > 1 && gpu->shown < world->local_size) {
    return fsdp_fail(error, FSDP_ERR_PEER,
                     "%d ranks on %s, but %d GPUs: start at most one rank per GPU, or try sharing with "
                     "--allow-shared-gpu on",
                     world->local_size, world->host, gpu->shown);
  }
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "ranks %d and %d on %s have the same GPU %s (%s): there are more ranks than GPUs; start at "
      "most one rank per GPU, or try sharing with --allow-shared-gpu on",
      world->rank, other, world->host, gpu->bus, gpu->name);
}

// To NCCL, processes on one GPU must look like machines that have only sockets between them. What the user
// has set stays.
static void set_up_sharing(const fsdp_world *world) {
  char host[64];
  snprintf(host, sizeof host, "%.40s-%d", world->host, world->rank);
  setenv("NCCL_HOSTID", host, 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_NET", "Socket", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  setenv("NCCL_MNNVL_ENABLE", "0", 0);
  setenv("NCCL_ALGO", "Ring", 0);
  setenv("NCCL_PROTO", "Simple", 0);
}

fsdp_status fsdp_gpu_choose(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error) {
  memset(gpu, 0, sizeof *gpu);
  error->status = FSDP_OK;
  if (fsdp_gpu_find(world->local_rank, gpu, error) == FSDP_OK && world->size > 1) fsdp_nccl_load(error);
  if (fsdp_world_share_error(world, error) == FSDP_OK) {
    find_sharers(world, allow_shared, gpu, error);
    fsdp_world_share_error(world, error);
  }
  if (error->status != FSDP_OK) gpu->present = false;
  if (gpu->present && gpu->sharers > 1) set_up_sharing(world);
  return error->status;
}
