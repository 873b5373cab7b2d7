// Which buffers NCCL is told of, and by whom collectives are then made: on two ranks, by wish and by the
// library's version. Gathers between buffers in a symmetric window are copies, if their communicator makes
// nothing else; reductions find both of theirs in it too. With an argument the library is an older one.
#include "runtime/base/check.h"
#include "runtime/comm/comm_nccl.h"
#include "runtime/device/device.h"
#include "runtime/device/gpu.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <string.h>

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
  comms->comm[0]->table->all_gather(comms->comm[0], &gather);
  comms->comm[1]->table->reduce_scatter(comms->comm[1], &reduce);
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

static int run(fsdp_world *world, const expectation *e) {
  const fsdp_nccl_use use = fsdp_nccl_choose(world, &e->wish);
  const int64_t bytes = 2 * NUMEL * (int64_t)sizeof(float);
  void *memory = use.registers ? fsdp_nccl_alloc(bytes) : NULL;
  if (!memory) cudaMalloc(&memory, (size_t)bytes);
  fsdp_arenas arenas = {0};
  arenas.memory[FSDP_SPACE_DEVICE] = memory;
  arenas.bytes[FSDP_SPACE_DEVICE] = bytes;
  const fsdp_comm_group all = {.color = 0, .rank = world->rank, .size = world->size};
  fsdp_comm_group groups[2] = {all, all};
  groups[0].gathers = true;
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

int main(int argc, char **argv) {
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
  fsdp_world *world;
  fsdp_error error;
  fsdp_gpu gpu = {0};
  FSDP_CHECK(fsdp_world_create(&argc, &argv, &world, &error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(fsdp_gpu_find(world->local_rank, &gpu, &error) == FSDP_OK, "%s", error.message);
  FSDP_CHECK(fsdp_nccl_load(&error) == FSDP_OK, "%s", error.message);
  const bool is_older = argc > 1;
  const int count = is_older ? (int)(sizeof older / sizeof *older) : (int)(sizeof newest / sizeof *newest);
  int wrong = 0;
  for (int i = 0; i < count; i++) wrong |= run(world, is_older ? &older[i] : &newest[i]);
  fsdp_world_destroy(world);
  return wrong;
}
