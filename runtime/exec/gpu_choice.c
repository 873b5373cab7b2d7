#include "runtime/exec/gpu_choice.h"

#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/job.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/exec/kernel_check.h"

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
                     "--set allow-shared-gpu=on",
                     world->local_size, world->host, gpu->shown);
  }
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "ranks %d and %d on %s have the same GPU %s (%s): there are more ranks than GPUs; start at "
      "most one rank per GPU, or try sharing with --set allow-shared-gpu=on",
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

fsdp_status fsdp_gpu_open(const fsdp_gpu *gpu, int64_t *free_bytes, fsdp_op_gpu *target, fsdp_error *error) {
  const fsdp_kernel_backend *backend = fsdp_cuda_backend();
  *target = (fsdp_op_gpu){.capability = gpu->capability,
                          .multiprocessors = gpu->processors,
                          .attention_missing = ~backend->attention_kernels()};
  if (backend->load(error) != FSDP_OK) return error->status;
  if (fsdp_gpu_free_bytes(gpu, backend->probe, free_bytes, error) != FSDP_OK) return error->status;
  if (fsdp_kernel_check(gpu, target, error) != FSDP_OK) return error->status;
  return fsdp_gpu_free_bytes(gpu, backend->probe, free_bytes, error); // beside the kernels that were loaded
}

void fsdp_gpu_agree(fsdp_world *world, fsdp_op_gpu *target) {
  enum { SETS = 3, KERNELS = FSDP_ATTENTION_KERNEL_COUNT };
  _Static_assert((int)FSDP_GROUPED_KERNEL_COUNT <= (int)KERNELS, "kernels of a set");
  static bool said;
  unsigned *const sets[SETS] = {&target->attention_missing, &target->attention_distrusted,
                                &target->grouped_distrusted};
  int64_t least[2 + SETS * KERNELS] = {target->capability, target->multiprocessors};
  for (int i = 0; i < SETS * KERNELS; i++) least[2 + i] = -(int64_t)(*sets[i / KERNELS] >> i % KERNELS & 1);
  fsdp_world_reduce(world, FSDP_REDUCE_MIN, least, 2 + SETS * KERNELS);
  target->capability = (int)least[0];
  target->multiprocessors = (int)least[1];
  for (int i = 0; i < SETS * KERNELS; i++)
    if (least[2 + i]) *sets[i / KERNELS] |= 1u << i % KERNELS;
  const char *finding = fsdp_kernel_check_finding();
  const int speaker = (int)fsdp_world_min(world, finding[0] ? world->rank : world->size);
  if (speaker == world->rank && !said) fsdp_job_note("%s: every rank uses the next kernel", finding);
  said = true;
}
