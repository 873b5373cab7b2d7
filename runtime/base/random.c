#include "runtime/base/random.h"

#include "runtime/base/check.h"
#include "runtime/base/random_math.h"

#include <string.h>
#include <xxhash.h>

uint64_t fsdp_random_stream(const char *name) {
  return XXH64(name, strlen(name), 0);
}

void fsdp_random_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t words[4]) {
  fsdp_philox(FSDP_RANDOM_ROUNDS, seed, stream, index, words);
}

void fsdp_random_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float mean,
                        float deviation, float *out) {
  float normals[4] = {0};
  int64_t block = -1;
  for (int64_t i = 0; i < count; i++) {
    int64_t index = first + i;
    if (index / 4 != block) {
      block = index / 4;
      fsdp_normal_block(seed, stream, (uint64_t)block, normals);
    }
    out[i] = fsdp_scale_shift(normals[index % 4], deviation, mean);
  }
}

int64_t fsdp_random_permute(uint64_t seed, uint64_t stream, int64_t size, int64_t index) {
  FSDP_CHECK(index >= 0 && index < size, "index %lld of %lld", (long long)index, (long long)size);
  int half_bits = 1;
  while (half_bits < 31 && ((int64_t)1 << (2 * half_bits)) < size) half_bits++;
  uint32_t mask = (uint32_t)(((uint64_t)1 << half_bits) - 1);
  uint64_t value = (uint64_t)index;
  do {
    uint32_t left = (uint32_t)(value >> half_bits) & mask, right = (uint32_t)value & mask;
    for (uint64_t round = 0; round < 4; round++) {
      uint32_t words[4];
      fsdp_random_words(seed, stream ^ (round << 61), right, words);
      uint32_t next = left ^ (words[0] & mask);
      left = right, right = next;
    }
    value = (uint64_t)left << half_bits | right;
  } while (value >= (uint64_t)size);
  return (int64_t)value;
}

void fsdp_dropout_row(uint64_t seed, int64_t step, int64_t sequence, int64_t position,
                      int32_t words[FSDP_DROPOUT_WORDS]) {
  uint32_t drawn[4];
  fsdp_random_words(seed, fsdp_random_stream("dropout") + (uint64_t)step,
                    (uint64_t)sequence << 32 | (uint64_t)position, drawn);
  words[0] = (int32_t)(drawn[0] | 1);
  words[1] = (int32_t)drawn[1];
}
