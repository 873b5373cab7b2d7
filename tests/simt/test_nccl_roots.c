// The start of NCCL's communicators by one root and by several: the emulated call refuses ids that are not
// the same on all ranks, or of one rank twice. Collectives then work.
#include "runtime/base/check.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>

// The sum of all ranks; whether it is wrong.
static int sum_ranks(const fsdp_world *world, fsdp_comm *comm) {
  float *values, sum = 0, wanted = 0;
  cudaStream_t stream;
  int low, high;
  for (int r = 0; r < comm->size; r++) wanted += (float)(r + 1);
  cudaDeviceGetStreamPriorityRange(&low, &high);
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high);
  cudaMalloc((void **)&values, sizeof *values);
  const float mine = (float)(world->rank + 1);
  cudaMemcpy(values, &mine, sizeof mine, cudaMemcpyHostToDevice);
  fsdp_collective call = {.output = values, .numel = 1, .dtype = FSDP_F32, .stream = stream};
  comm->table->all_reduce(comm, &call);
  cudaStreamSynchronize(stream);
  cudaMemcpy(&sum, values, sizeof sum, cudaMemcpyDeviceToHost);
  cudaFree(values);
  cudaStreamDestroy(stream);
  if (sum != wanted) fprintf(stderr, "rank %d: the sum is %g, not %g\n", world->rank, sum, wanted);
  return sum != wanted;
}

static int run(fsdp_world *world, int root_ranks, int roots) {
  const fsdp_comm_group all = {.color = 0, .rank = world->rank, .size = world->size};
  const fsdp_comm_group groups[2] = {all, all}; // the second one is split from the first
  fsdp_arenas arenas = {0};
  fsdp_comms comms;
  fsdp_error error;
  fsdp_nccl_config config = {
      .groups = groups, .group_count = 2, .arenas = &arenas, .timeout_s = 60, .root_ranks = root_ranks};
  const int before = simt_nccl_scalable_calls();
  fsdp_status status = fsdp_nccl_comms(world, &config, &comms, &error);
  FSDP_CHECK(status == FSDP_OK, "%s", error.message);
  int wrong = simt_nccl_scalable_calls() - before != (roots > 1);
  if (wrong) fprintf(stderr, "rank %d: %d ranks a root\n", world->rank, root_ranks);
  for (int g = 0; g < 2; g++) {
    wrong |= comms.comm[g]->size != groups[g].size || comms.comm[g]->rank != groups[g].rank;
    wrong |= sum_ranks(world, comms.comm[g]);
  }
  fsdp_comms_destroy(&comms);
  return wrong;
}

int main(int argc, char **argv) {
  fsdp_world *world;
  fsdp_error error;
  fsdp_gpu gpu = {0};
  FSDP_CHECK(fsdp_world_create(&argc, &argv, &world, &error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(fsdp_gpu_find(world->local_rank, &gpu, &error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(fsdp_nccl_load(&error) == FSDP_OK, "%s", error.message);
  int wrong = 0;
  for (int root_ranks = 0; root_ranks <= 5; root_ranks++)
    wrong |= run(world, root_ranks, root_ranks ? (world->size + root_ranks - 1) / root_ranks : 1);
  fsdp_world_destroy(world);
  return wrong;
}
