// Memory of the CUDA device: the only place that asks the driver for it.
//
// Pinned memory of many gigabytes is mapped here and registered with the driver, which would otherwise map it
// page by page, 4 KiB each, on the calling thread: 0.3 s a gigabyte. Here pages are of 2 MiB where the system
// grants it, and threads on this rank's processors touch them, each a part.
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

// Device memory, and pinned host memory that the device can read; NULL if none is left, with the reason in
// *status.
void *fsdp_cuda_alloc(int64_t bytes, cudaError_t *status);
void *fsdp_cuda_alloc_pinned(int64_t bytes, cudaError_t *status);

// NULL is allowed.
void fsdp_cuda_free(void *memory);
void fsdp_cuda_free_pinned(void *memory);

// Pinned host memory that is copied from and to; memory is NULL if there is none.
typedef struct fsdp_pinned_memory {
  void *memory;
  int64_t mapped_bytes; // 0: the driver's own
} fsdp_pinned_memory;

// Maps `bytes` > 0, of unspecified contents, or NaNs if `poisoned`. False if the system has not as many, with
// *reason. A driver that refuses to register memory allocates it in its own way, and a note says so.
bool fsdp_cuda_map_pinned(int64_t bytes, bool poisoned, fsdp_pinned_memory *pinned, const char **reason);
void fsdp_cuda_unmap_pinned(fsdp_pinned_memory *pinned);
