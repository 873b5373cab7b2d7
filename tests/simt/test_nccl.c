// Communicators over the emulated NCCL, on ranks of mpirun:
//
//   roots     started by one root and by several: the emulated call refuses ids that are not the same on all
//             ranks, or of one rank twice
//   windows   which buffers NCCL is told of, and by whom collectives are then made: gathers between buffers
//             in a symmetric window are copies, if their communicator makes nothing else; reductions find
//             both of theirs in it too
//   older     the same by a library that has no such windows
#include "runtime/base/check.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

// ---- Roots

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
  fsdp_comm_run(comm, FSDP_ALL_REDUCE, &call);
  cudaStreamSynchronize(stream);
  cudaMemcpy(&sum, values, sizeof sum, cudaMemcpyDeviceToHost);
  cudaFree(values);
  cudaStreamDestroy(stream);
  if (sum != wanted) fprintf(stderr, "rank %d: the sum is %g, not %g\n", world->rank, sum, wanted);
  return sum != wanted;
}

static int run_roots(fsdp_world *world, int root_ranks, int roots) {
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

static int test_roots(fsdp_world *world) {
  int wrong = 0;
  for (int root_ranks = 0; root_ranks <= 5; root_ranks++)
    wrong |= run_roots(world, root_ranks, root_ranks ? (world->size + root_ranks - 1) / root_ranks : 1);
  return wrong;
}

// ---- Windows

#define NUMEL 8

// Gathers each rank's number on the first communicator and sums all on the second; whether a sum is wrong.
static int run_collectives(const fsdp_world *world, const fsdp_comms *comms, float *arena) {
  cudaStream_t stream;
  int low, high, wrong = 0;
  float host[NUMEL], *own = arena + world->rank * NUMEL;
  cudaDeviceGetStreamPriorityRange(&low, &high);
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high);
  for (int i = 0; i < NUMEL; i++) host[i] = (float)(world->rank + 1);
  cudaMemcpy(own, host, sizeof host, cudaMemcpyHostToDevice);
  cudaDeviceSynchronize(); // a copy from pageable memory may still be under way
  const fsdp_collective gather = {
      .input = own, .output = arena, .numel = NUMEL, .dtype = FSDP_F32, .stream = stream};
  const fsdp_collective reduce = {
      .input = arena, .output = own, .numel = NUMEL, .dtype = FSDP_F32, .stream = stream};
  fsdp_comm_run(comms->comm[0], FSDP_ALL_GATHER, &gather);
  fsdp_comm_run(comms->comm[1], FSDP_REDUCE_SCATTER, &reduce);
  cudaStreamSynchronize(stream);
  cudaMemcpy(host, own, sizeof host, cudaMemcpyDeviceToHost);
  for (int i = 0; i < NUMEL; i++) wrong |= host[i] != 2 * (float)(world->rank + 1);
  cudaStreamDestroy(stream);
  return wrong;
}

typedef struct expectation {
  fsdp_nccl_wish wish;
  bool registers, windows;
  int copied, symmetric; // collectives
  const char *words;     // of the line that says it
} expectation;

static int run_wish(fsdp_world *world, const expectation *e) {
  const fsdp_nccl_use use = fsdp_nccl_choose(world, &e->wish);
  const int64_t bytes = 2 * NUMEL * (int64_t)sizeof(float);
  void *memory = use.registers ? fsdp_nccl_alloc(bytes) : NULL;
  if (!memory) cudaMalloc(&memory, (size_t)bytes);
  fsdp_arenas arenas = {0};
  arenas.memory[FSDP_SPACE_DEVICE] = memory;
  arenas.bytes[FSDP_SPACE_DEVICE] = bytes;
  const fsdp_comm_group all = {.color = 0, .rank = world->rank, .size = world->size};
  fsdp_comm_group groups[2] = {all, all};
  groups[0].moves = true;
  fsdp_comms comms;
  fsdp_error error;
  const fsdp_nccl_config config = {
      .groups = groups, .group_count = 2, .arenas = &arenas, .timeout_s = 60, .use = use};
  FSDP_CHECK(fsdp_nccl_comms(world, &config, &comms, &error) == FSDP_OK, "%s", error.message);
  const int copied = simt_nccl_copied(), symmetric = simt_nccl_symmetric();
  int wrong = run_collectives(world, &comms, memory);
  wrong |= simt_nccl_copied() - copied != e->copied || simt_nccl_symmetric() - symmetric != e->symmetric;
  wrong |= use.registers != e->registers || use.windows != e->windows || !strstr(use.text, e->words);
  if (wrong) fprintf(stderr, "rank %d, '%s': %s\n", world->rank, e->words, use.text);
  fsdp_comms_destroy(&comms);
  if (use.registers) {
    fsdp_nccl_free(memory);
  } else {
    cudaFree(memory);
  }
  return wrong;
}

static const expectation newest[] = {
    {{FSDP_NCCL_REGISTER_AUTO, FSDP_NCCL_CTAS_AUTO, false},
     true,
     true,
     1,
     1,
     "NCCL 2.28.9, the arena a symmetric window, gathers by copy engines, other collectives by few"},
    {{FSDP_NCCL_REGISTER_AUTO, FSDP_NCCL_CTAS_DEFAULT, false}, true, true, 0, 2, "a symmetric window"},
    {{FSDP_NCCL_REGISTER_ON, FSDP_NCCL_CTAS_AUTO, true},
     true,
     false,
     0,
     0,
     "the arena registered (no symmetric window: ranks share a GPU), by few multiprocessors"},
    {{FSDP_NCCL_REGISTER_OFF, FSDP_NCCL_CTAS_AUTO, false},
     false,
     false,
     0,
     0,
     "buffers not registered (no symmetric window: --nccl-register is off)"},
};
static const expectation older[] = {
    {{FSDP_NCCL_REGISTER_AUTO, FSDP_NCCL_CTAS_AUTO, false},
     false,
     false,
     0,
     0,
     "NCCL 2.27.3, buffers not registered (no symmetric window: a rank's NCCL is older than 2.28)"},
    {{FSDP_NCCL_REGISTER_ON, FSDP_NCCL_CTAS_AUTO, false},
     true,
     false,
     0,
     0,
     "NCCL 2.27.3, the arena registered (no symmetric window: a rank's NCCL is older than 2.28)"},
};

static int test_wishes(fsdp_world *world, const expectation *wishes, size_t count) {
  int wrong = 0;
  for (size_t i = 0; i < count; i++) wrong |= run_wish(world, &wishes[i]);
  return wrong;
}

int main(int argc, char **argv) {
  fsdp_world *world;
  fsdp_error error;
  fsdp_gpu gpu = {0};
  FSDP_CHECK(fsdp_world_create(&argc, &argv, &world, &error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(fsdp_gpu_find(world->local_rank, &gpu, &error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(fsdp_nccl_load(&error) == FSDP_OK, "%s", error.message);
  const char *what = argc == 2 ? argv[1] : "";
  int wrong = 2;
  if (strcmp(what, "roots") == 0) wrong = test_roots(world);
  if (strcmp(what, "windows") == 0) wrong = test_wishes(world, newest, sizeof newest / sizeof *newest);
  if (strcmp(what, "older") == 0) wrong = test_wishes(world, older, sizeof older / sizeof *older);
  fsdp_world_destroy(world);
  return wrong;
}
