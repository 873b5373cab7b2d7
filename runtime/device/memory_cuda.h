// Memory of the CUDA device: the only place that asks the driver for it.
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

// Device memory, and pinned host memory that the device can read; NULL if none is left, with the reason in
// *status.
void *fsdp_cuda_alloc(int64_t bytes, cudaError_t *status);
void *fsdp_cuda_alloc_pinned(int64_t bytes, cudaError_t *status);

// NULL is allowed.
void fsdp_cuda_free(void *memory);
void fsdp_cuda_free_pinned(void *memory);
