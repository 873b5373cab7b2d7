#include "runtime/device/memory_cuda.h"

#include "runtime/base/cuda_check.h"

void *fsdp_cuda_alloc(int64_t bytes, cudaError_t *status) {
  void *memory = NULL;
  *status = cudaMalloc(&memory, (size_t)bytes);
  return *status == cudaSuccess ? memory : NULL;
}

void *fsdp_cuda_alloc_pinned(int64_t bytes, cudaError_t *status) {
  void *memory = NULL;
  *status = cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocMapped);
  return *status == cudaSuccess ? memory : NULL;
}

void fsdp_cuda_free(void *memory) {
  if (memory) CALL_CUDA(cudaFree(memory));
}

void fsdp_cuda_free_pinned(void *memory) {
  if (memory) CALL_CUDA(cudaFreeHost(memory));
}
