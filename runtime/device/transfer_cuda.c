#include "runtime/device/transfer_cuda.h"

#include "runtime/base/cuda_check.h"
#include "runtime/base/size.h"
#include "runtime/device/memory_cuda.h"

#include <stdbool.h>
#include <string.h>

typedef struct half {
  void *memory; // pinned; NULL: none
  cudaEvent_t over;
} half;

struct fsdp_transfer {
  cudaStream_t stream;
  half halves[2];
  int next;
};

fsdp_transfer *fsdp_transfer_create(void) {
  fsdp_transfer *self = fsdp_alloc_zeroed(1, sizeof *self);
  CALL_CUDA(cudaStreamCreateWithPriority(&self->stream, cudaStreamNonBlocking, 0));
  for (int i = 0; i < 2; i++)
    CALL_CUDA(cudaEventCreateWithFlags(&self->halves[i].over, cudaEventDisableTiming));
  return self;
}

void fsdp_transfer_destroy(fsdp_transfer *self) {
  if (!self) return;
  fsdp_transfer_flush(self);
  for (int i = 0; i < 2; i++) CALL_CUDA(cudaEventDestroy(self->halves[i].over));
  CALL_CUDA(cudaStreamDestroy(self->stream));
  free(self);
}

// The half whose turn it is, free again.
static half *take_half(fsdp_transfer *self) {
  half *mine = &self->halves[self->next];
  self->next = 1 - self->next;
  if (mine->memory) {
    CALL_CUDA(cudaEventSynchronize(mine->over));
  } else {
    cudaError_t status;
    mine->memory = fsdp_cuda_alloc_pinned(FSDP_TRANSFER_PIECE_BYTES, &status);
    CALL_CUDA(status);
  }
  return mine;
}

void fsdp_transfer_put(fsdp_transfer *self, void *destination, const void *source, int64_t bytes) {
  for (int64_t done = 0; done < bytes; done += FSDP_TRANSFER_PIECE_BYTES) {
    size_t piece = (size_t)fsdp_min_i64(FSDP_TRANSFER_PIECE_BYTES, bytes - done);
    half *mine = take_half(self);
    memcpy(mine->memory, (const char *)source + done, piece);
    CALL_CUDA(
        cudaMemcpyAsync((char *)destination + done, mine->memory, piece, cudaMemcpyDefault, self->stream));
    CALL_CUDA(cudaEventRecord(mine->over, self->stream));
  }
}

void fsdp_transfer_clear(fsdp_transfer *self, void *destination, int64_t bytes) {
  CALL_CUDA(cudaMemsetAsync(destination, 0, (size_t)bytes, self->stream));
}

void *fsdp_transfer_stream(fsdp_transfer *self) {
  return self->stream;
}

void fsdp_transfer_flush(fsdp_transfer *self) {
  CALL_CUDA(cudaStreamSynchronize(self->stream));
  for (int i = 0; i < 2; i++) {
    fsdp_cuda_free_pinned(self->halves[i].memory);
    self->halves[i].memory = NULL;
  }
}
