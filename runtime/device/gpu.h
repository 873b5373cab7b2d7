// GPUs: which one a rank uses.
//
//   ranks of a node   0   1   2   3        a rank that is shown one GPU by its launcher uses that one; else
//   GPUs shown        0   1   2   3        local rank r uses GPU r
//
// Two ranks on the same GPU, wherever each of them counts it, are found by its UUID (exec/gpu_choice.h). This
// rank's threads and memory then go next to it (launcher/train/binding.h).
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_gpu {
  bool present;           // false: no GPU is used
  int shown;              // GPUs that this process is shown
  int ordinal;            // among those that this process is shown
  char name[64];          // "NVIDIA H200"
  char bus[32];           // PCI address, "0000:3b:00.0"
  unsigned char uuid[16]; // the same in every process
  int capability;         // 90 is 9.0
  int sharers;            // ranks on this GPU, this one included
  int processors;         // multiprocessors
  int64_t total_bytes;
  char driver[48]; // "13.0, 580.65.06": the CUDA version that it serves, and its own
} fsdp_gpu;

#define FSDP_GPU_KIND_BYTES 192

// What kernels' speed and results may depend on: "NVIDIA H200, compute capability 9.0, 132 multiprocessors,
// driver 13.0, 580.65.06".
const char *fsdp_gpu_kind(const fsdp_gpu *gpu, char out[FSDP_GPU_KIND_BYTES]);

// Whether this build has the CUDA device at all.
bool fsdp_gpu_is_built(void);

// Sets what CUDA and NCCL read from the environment; what the user has set stays. `main` calls it
// first: an MPI library that knows GPUs may start CUDA.
void fsdp_gpu_set_environment(void);

// The GPU of this process, the one of `local_rank` on its node, among those that it is shown. FSDP_ERR_PEER
// if there is no driver, one older than the runtime, no GPU, or one that the kernels were not built for.
// Creates no context on any GPU.
fsdp_status fsdp_gpu_find(int local_rank, fsdp_gpu *gpu, fsdp_error *error);

// Bytes that are free on the GPU now, divided by its sharers; creates this process's context there.
// FSDP_ERR_PEER if the executable holds no code that this GPU can run. `probe` checks that: it loads a kernel
// on the current device and returns the error, 0 for none.
fsdp_status fsdp_gpu_free_bytes(const fsdp_gpu *gpu, int (*probe)(void), int64_t *bytes, fsdp_error *error);

// FLOP/s that a GPU of this name reaches in gemms of `dtype` by its data sheet: the peak that MFU is relative
// to. 0 if the name is not in the list (gpu.c).
double fsdp_gpu_peak_flops(const char *name, fsdp_dtype dtype);
