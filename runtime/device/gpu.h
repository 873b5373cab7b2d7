// GPUs: which one a rank uses.
//
//   ranks of a node   0   1   2   3        a rank that is shown one GPU by its launcher uses that one; else
//   GPUs shown        0   1   2   3        local rank r uses GPU r
//
// Two ranks on the same GPU, wherever each of them counts it, are found by its UUID. This rank's threads and
// memory then go next to it (launcher/train/placement.h).
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/comm/world.h"

typedef struct fsdp_gpu {
  bool present;           // false: no GPU is used
  int shown;              // GPUs that this process is shown
  int ordinal;            // among those that this process is shown
  char name[64];          // "NVIDIA H200"
  char bus[32];           // PCI address, "0000:3b:00.0"
  unsigned char uuid[16]; // the same in every process
  int capability;         // 90 is 9.0
  int sharers;            // ranks on this GPU, this one included
  int64_t total_bytes;
} fsdp_gpu;

// Whether this build has the CUDA device at all.
bool fsdp_gpu_is_built(void);

// Sets what CUDA and NCCL read from the environment; what the user has set stays. `main` calls it
// first: an MPI library that knows GPUs may start CUDA.
void fsdp_gpu_set_environment(void);

// Chooses this rank's GPU; every rank must call it, and all return the same. FSDP_ERR_PEER where there is no
// driver, one older than the runtime, no GPU, too few of them, or one that the kernels were not built for.
// With `allow_shared` ranks may share a GPU: for tests, as the communication library must then be told that
// each is a machine of its own. Creates no context on any GPU.
fsdp_status fsdp_gpu_choose(fsdp_world *world, bool allow_shared, fsdp_gpu *gpu, fsdp_error *error);

// Bytes that are free on the GPU now, divided by its sharers; creates this process's context there.
// FSDP_ERR_PEER where the program holds no code that this GPU can run.
fsdp_status fsdp_gpu_free_bytes(const fsdp_gpu *gpu, int64_t *bytes, fsdp_error *error);

// FLOP/s that a GPU of this name can reach in products of `dtype` by its maker's data sheet, what MFU is a
// share of; 0 where the name is not in the list (gpu_peak.c).
double fsdp_gpu_peak_flops(const char *name, fsdp_dtype dtype);
