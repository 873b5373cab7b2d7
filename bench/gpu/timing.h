// Calls of kernels on a GPU, timed by events: shared by the programs that need one.
//
// A set is the operands of one call in memory of its own. A small call has several, which launches take in
// turn, so that its operands do not stay in the cache.
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/cuda_check.h"
#include "runtime/plan/program/program.h"

#define GPU_SETS_MAX     16
#define GPU_OPERANDS_MAX (FSDP_OP_MAX_OPERANDS + 1)
#define GPU_REPEATS_MAX  31

typedef struct gpu_timer {
  int repeats;       // measurements of which the median counts
  double measure_ms; // that each takes at least
  cudaStream_t stream;
  cudaEvent_t begin, end;
} gpu_timer;

typedef struct gpu_set {
  fsdp_view views[GPU_OPERANDS_MAX];
  unsigned char *memory;
} gpu_set;

// On device 0, which becomes the current one.
gpu_timer gpu_timer_open(int repeats, double measure_ms);

// Opens the library of products, with scratch of its own; gpu_products_close releases it.
void *gpu_products_open(void);
void gpu_products_close(void *scratch);

// How many sets of so many bytes are several times any cache together.
int gpu_set_count(int64_t set_bytes);

// One zeroed allocation for all operands, each aligned to 256 bytes; freed by gpu_sets_destroy.
void gpu_set_create(gpu_set *set, const fsdp_operand *operands, int count);
void gpu_sets_destroy(gpu_set *sets, int count);

// Enqueues the call so many times, on one set after the other.
void gpu_launch(const gpu_timer *timer, fsdp_kernel_call *call, const gpu_set *sets, int set_count,
                int launches);

// Seconds of a launch: the median of the measurements, after a warm-up.
double gpu_median_s(const gpu_timer *timer, fsdp_kernel_call *call, const gpu_set *sets, int set_count);

int gpu_compare_floats(const void *left, const void *right); // for qsort
