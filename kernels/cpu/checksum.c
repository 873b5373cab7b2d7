// The digest of a range: its bytes as 64-bit words (the last one padded with zeros), each mixed with its
// index and summed modulo 2^64. Integers, so any order and any number of threads give the same digest; a mix
// is a bijection of its word, so a range that differs in one word always has a different digest.
//
// The mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014), of word + (index + 1) times its constant.
#include "kernels/cpu/operand.h"

#include <stdatomic.h>

enum { BLOCK = 8192 }; // words of a task

typedef struct digest {
  const unsigned char *data;
  int64_t words;
  _Atomic uint64_t sum;
} digest;

static inline uint64_t mix(uint64_t word, uint64_t index) {
  uint64_t x = word + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static void sum_block(void *argument, int64_t index, void *scratch) {
  digest *k = argument;
  (void)scratch;
  int64_t end = fsdp_min_i64(k->words, (index + 1) * BLOCK);
  uint64_t sum = 0;
  for (int64_t i = index * BLOCK; i < end; i++) {
    uint64_t word;
    memcpy(&word, k->data + 8 * i, sizeof word);
    sum += mix(word, (uint64_t)i);
  }
  atomic_fetch_add_explicit(&k->sum, sum, memory_order_relaxed);
}

void FSDP_CPU(checksum)(const fsdp_kernel_call *call) {
  const fsdp_view *source = &open_operands(call, 0)[0], *out = &call->operands[1];
  int64_t bytes = source->numel * fsdp_dtype_bytes(source->dtype), rest = bytes % 8;
  digest k = {.data = source->data, .words = bytes / 8};
  fsdp_pool_run(call->pool, blocks_of(k.words, BLOCK), sum_block, &k);
  uint64_t last = 0, sum = atomic_load(&k.sum);
  memcpy(&last, k.data + 8 * k.words, (size_t)rest);
  if (rest > 0) sum += mix(last, (uint64_t)k.words);
  memcpy(out->data, &sum, sizeof sum);
}
