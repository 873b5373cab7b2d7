#include "runtime/base/random.h"

#include "runtime/base/check.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

uint64_t fsdp_random_stream(const char *name) {
  return XXH64(name, strlen(name), 0);
}

void fsdp_random_words(uint64_t seed, uint64_t stream, uint64_t index, uint32_t words[4]) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
  uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// Two uniform words to two standard normals. The first word is mapped to (0, 1] so that its logarithm is
// finite.
static void box_muller(uint32_t a, uint32_t b, float out[2]) {
  double radius = sqrt(-2.0 * log(((double)a + 1.0) * 0x1p-32));
  double angle = 6.283185307179586 * ((double)b * 0x1p-32);
  out[0] = (float)(radius * cos(angle));
  out[1] = (float)(radius * sin(angle));
}

void fsdp_random_normal(uint64_t seed, uint64_t stream, int64_t first, int64_t count, float mean,
                        float deviation, float *out) {
  float normals[4] = {0};
  int64_t block = -1;
  for (int64_t i = 0; i < count; i++) {
    int64_t index = first + i;
    if (index / 4 != block) {
      uint32_t words[4];
      block = index / 4;
      fsdp_random_words(seed, stream, (uint64_t)block, words);
      box_muller(words[0], words[1], normals);
      box_muller(words[2], words[3], normals + 2);
    }
    out[i] = mean + deviation * normals[index % 4];
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
