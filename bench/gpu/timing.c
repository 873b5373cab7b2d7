#include "bench/gpu/timing.h"

#include "runtime/base/size.h"

#include <math.h>
#include <stdlib.h>

#define SETS_BYTES ((int64_t)512 << 20) // of all the sets together
#define ALIGNMENT  256

gpu_timer gpu_timer_open(int repeats, double measure_ms) {
  gpu_timer timer = {.repeats = repeats, .measure_ms = measure_ms};
  CALL_CUDA(cudaSetDevice(0));
  CALL_CUDA(cudaStreamCreateWithPriority(&timer.stream, cudaStreamNonBlocking, 0));
  CALL_CUDA(cudaEventCreateWithFlags(&timer.begin, cudaEventDefault));
  CALL_CUDA(cudaEventCreateWithFlags(&timer.end, cudaEventDefault));
  return timer;
}

void *gpu_products_open(void) {
  void *scratch = NULL;
  CALL_CUDA(cudaMalloc(&scratch, (size_t)FSDP_CUDA_GEMM_WORKSPACE_BYTES));
  fsdp_cuda_gemm_open(scratch);
  return scratch;
}

void gpu_products_close(void *scratch) {
  fsdp_cuda_gemm_close();
  CALL_CUDA(cudaFree(scratch));
}

int gpu_set_count(int64_t set_bytes) {
  return (int)fsdp_min_i64(GPU_SETS_MAX, 1 + SETS_BYTES / set_bytes);
}

void gpu_set_create(gpu_set *set, const fsdp_operand *operands, int count) {
  int64_t bytes = 0;
  for (int i = 0; i < count; i++) bytes += fsdp_round_up(operands[i].size_bytes, ALIGNMENT);
  void *memory = NULL;
  CALL_CUDA(cudaMalloc(&memory, (size_t)bytes));
  CALL_CUDA(cudaMemset(memory, 0, (size_t)bytes));
  set->memory = memory;
  int64_t at = 0;
  for (int i = 0; i < count; i++) {
    const fsdp_operand *o = &operands[i];
    set->views[i] =
        (fsdp_view){set->memory + at, o->size_bytes / fsdp_dtype_bytes(o->dtype), o->dtype, o->access};
    at += fsdp_round_up(o->size_bytes, ALIGNMENT);
  }
}

void gpu_sets_destroy(gpu_set *sets, int count) {
  for (int i = 0; i < count; i++) CALL_CUDA(cudaFree(sets[i].memory));
}

void gpu_launch(const gpu_timer *timer, fsdp_kernel_call *call, const gpu_set *sets, int set_count,
                int launches) {
  for (int i = 0; i < launches; i++) {
    call->operands = sets[i % set_count].views;
    call->stream = timer->stream;
    fsdp_cuda_kernels()->kernels[call->kind](call);
  }
}

static float time_ms(const gpu_timer *timer, fsdp_kernel_call *call, const gpu_set *sets, int set_count,
                     int launches) {
  float ms = 0;
  CALL_CUDA(cudaEventRecord(timer->begin, timer->stream));
  gpu_launch(timer, call, sets, set_count, launches);
  CALL_CUDA(cudaEventRecord(timer->end, timer->stream));
  CALL_CUDA(cudaEventSynchronize(timer->end));
  CALL_CUDA(cudaEventElapsedTime(&ms, timer->begin, timer->end));
  return ms / (float)launches;
}

int gpu_compare_floats(const void *left, const void *right) {
  float a = *(const float *)left, b = *(const float *)right;
  return (a > b) - (a < b);
}

double gpu_median_s(const gpu_timer *timer, fsdp_kernel_call *call, const gpu_set *sets, int set_count) {
  float times[GPU_REPEATS_MAX];
  gpu_launch(timer, call, sets, set_count, 2 * set_count);
  float once = time_ms(timer, call, sets, set_count, set_count);
  int launches = (int)fsdp_max_i64(set_count, (int64_t)(timer->measure_ms / fmax((double)once, 1e-3)));
  for (int i = 0; i < timer->repeats; i++) times[i] = time_ms(timer, call, sets, set_count, launches);
  qsort(times, (size_t)timer->repeats, sizeof *times, gpu_compare_floats);
  return (double)times[timer->repeats / 2] / 1e3;
}
