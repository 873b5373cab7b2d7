#include "runtime/device/memory_cuda.h"

#include "runtime/base/cuda_check.h"
#include "runtime/base/size.h"
#include "runtime/device/pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum {
  PAGE_BYTES = 4096, // the least there is
  HUGE_PAGE_BYTES = 2 << 20,
  // More do not fill memory faster.
  TOUCH_THREADS_MAX = 16
};

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

// Whole huge pages from the start, for large memory; NULL with errno.
static void *map(size_t bytes) {
  const size_t spare = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
  char *start = mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return NULL;
  const size_t before = spare ? (HUGE_PAGE_BYTES - (uintptr_t)start % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES : 0;
  if (before) munmap(start, before);
  if (spare > before) munmap(start + before + bytes, spare - before);
  madvise(start + before, bytes, MADV_HUGEPAGE); // a hint: small pages are only slower
  return start + before;
}

typedef struct touching {
  char *memory;
  int64_t bytes;
  bool poisoned;
} touching;

static void touch_piece(void *argument, int64_t index, void *scratch) {
  (void)scratch;
  const touching *t = argument;
  const int64_t begin = index * HUGE_PAGE_BYTES, end = fsdp_min_i64(t->bytes, begin + HUGE_PAGE_BYTES);
  if (t->poisoned)
    memset(t->memory + begin, 0xff, (size_t)(end - begin)); // NaNs
  else
    for (int64_t at = begin; at < end; at += PAGE_BYTES) t->memory[at] = 0;
}

// The pool's threads run where this one may: its rank's processors.
static void touch(void *memory, int64_t bytes, bool poisoned) {
  touching t = {.memory = memory, .bytes = bytes, .poisoned = poisoned};
  const int64_t pieces = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES;
  const int64_t threads = fsdp_min_i64(fsdp_pool_processors(), fsdp_min_i64(pieces, TOUCH_THREADS_MAX));
  fsdp_pool *pool = fsdp_pool_create((int)threads);
  fsdp_pool_run(pool, pieces, touch_piece, &t);
  fsdp_pool_destroy(pool);
}

bool fsdp_cuda_map_pinned(int64_t bytes, bool poisoned, fsdp_pinned_memory *pinned, const char **reason) {
  const int64_t mapped_bytes = fsdp_round_up(bytes, PAGE_BYTES);
  *pinned = (fsdp_pinned_memory){.memory = map((size_t)mapped_bytes), .mapped_bytes = mapped_bytes};
  if (!pinned->memory) {
    *reason = strerror(errno);
    return false;
  }
  touch(pinned->memory, mapped_bytes, poisoned);
  cudaError_t status = cudaHostRegister(pinned->memory, (size_t)mapped_bytes, cudaHostRegisterDefault);
  if (status == cudaSuccess) return true;
  cudaGetLastError(); // the next call would report it
  fsdp_job_note("cudaHostRegister is refused (%s): the driver allocates pinned memory itself, which takes "
                "longer",
                cudaGetErrorString(status));
  munmap(pinned->memory, (size_t)mapped_bytes);
  *pinned = (fsdp_pinned_memory){.memory = fsdp_cuda_alloc_pinned(bytes, &status)};
  *reason = cudaGetErrorString(status);
  if (pinned->memory && poisoned) memset(pinned->memory, 0xff, (size_t)bytes);
  return pinned->memory != NULL;
}

void fsdp_cuda_unmap_pinned(fsdp_pinned_memory *pinned) {
  if (pinned->memory && pinned->mapped_bytes) {
    CALL_CUDA(cudaHostUnregister(pinned->memory));
    munmap(pinned->memory, (size_t)pinned->mapped_bytes);
  } else {
    fsdp_cuda_free_pinned(pinned->memory);
  }
  *pinned = (fsdp_pinned_memory){0};
}
