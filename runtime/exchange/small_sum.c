#include "runtime/exchange/small_sum.h"

#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

struct fsdp_small_sum {
  fsdp_peers block, firsts; // this rank's block; the blocks' first ranks
  int *ranks;               // of the block, and behind them those of the blocks' first
  fsdp_comm_sum *sum;
  char *slots;     // of the block, from this rank's on
  float *own, *in; // sums of blocks
  int64_t numel;   // of the call
};

fsdp_small_sum *fsdp_small_sum_create(const fsdp_link *link, int rank, int size, fsdp_comm_sum *sum) {
  enum { BLOCK = FSDP_SMALL_SUM_BLOCK };
  fsdp_small_sum *self = fsdp_alloc_zeroed(1, sizeof *self);
  int begin = rank / BLOCK * BLOCK, count = size - begin < BLOCK ? size - begin : BLOCK;
  int blocks = (size + BLOCK - 1) / BLOCK;
  self->sum = sum;
  self->ranks = fsdp_alloc((size_t)(count + blocks) * sizeof *self->ranks);
  for (int i = 0; i < count; i++) self->ranks[i] = begin + i;
  for (int b = 0; b < blocks; b++) self->ranks[count + b] = b * BLOCK;
  self->block = (fsdp_peers){.link = link, .ranks = self->ranks, .place = rank - begin, .size = count};
  self->firsts = (fsdp_peers){
      .link = link, .ranks = self->ranks + count, .place = rank == begin ? rank / BLOCK : -1, .size = blocks};
  self->slots = fsdp_alloc((size_t)(count * FSDP_SMALL_SUM_BYTES));
  // bf16 values have sums of twice their bytes.
  self->own = fsdp_alloc(2 * (size_t)FSDP_SMALL_SUM_BYTES);
  self->in = fsdp_alloc(2 * (size_t)FSDP_SMALL_SUM_BYTES);
  return self;
}

void fsdp_small_sum_destroy(fsdp_small_sum *self) {
  if (!self) return;
  free(self->ranks);
  free(self->slots);
  free(self->own);
  free(self->in);
  free(self);
}

static void add_block(void *owner, void *own, const void *other) {
  fsdp_small_sum *self = owner;
  fsdp_comm_sum_add(self->sum, true, own, self->numel, FSDP_F32);
  fsdp_comm_sum_add(self->sum, false, other, self->numel, FSDP_F32);
  fsdp_comm_sum_store(self->sum, own, self->numel, FSDP_F32);
}

void fsdp_small_sum_run(fsdp_small_sum *self, void *values, int64_t numel, fsdp_dtype dtype) {
  int64_t bytes = numel * fsdp_dtype_bytes(dtype);
  int count = self->block.size;
  FSDP_CHECK(bytes <= FSDP_SMALL_SUM_BYTES, "%lld bytes of few values", (long long)bytes);
  memcpy(self->slots, values, (size_t)bytes);
  fsdp_exchange_gather_behind(&self->block, self->slots, bytes);
  for (int i = 0; i < count; i++) {
    int slot = (i - self->block.place + count) % count;
    fsdp_comm_sum_add(self->sum, i == 0, self->slots + slot * bytes, numel, dtype);
  }
  if (self->firsts.size > 1) {
    self->numel = numel;
    fsdp_comm_sum_store(self->sum, self->own, numel, FSDP_F32);
    fsdp_exchange_combine(&self->firsts, self->own, self->in, numel * (int64_t)sizeof *self->own, add_block,
                          self);
    fsdp_exchange_broadcast(&self->block, 0, self->own, numel * (int64_t)sizeof *self->own);
    fsdp_comm_sum_add(self->sum, true, self->own, numel, FSDP_F32);
  }
  fsdp_comm_sum_store(self->sum, values, numel, dtype);
}
