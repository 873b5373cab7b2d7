// The generator's arithmetic, in C and in CUDA C++: random.c's functions are loops over these, and the
// kernel that draws weights on a GPU calls the same ones.
//
// The same bits everywhere: integers, and IEEE doubles with one rounding per operation. No function of a
// mathematical library is used, since these differ in the last bit. Nothing is fused: each operation is a
// function of its own, which compilers do not contract (GCC in ISO C, clang across expressions). On a GPU it
// is the intrinsic.
#pragma once

#include "runtime/base/random_rounds.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDA_ARCH__
#define FSDP_RANDOM_CODE __device__ __forceinline__

// One rounding each.
FSDP_RANDOM_CODE double fsdp_times(double a, double b) {
  return __dmul_rn(a, b);
}
FSDP_RANDOM_CODE double fsdp_plus(double a, double b) {
  return __dadd_rn(a, b);
}
FSDP_RANDOM_CODE double fsdp_over(double a, double b) {
  return __ddiv_rn(a, b);
}
FSDP_RANDOM_CODE double fsdp_root(double a) {
  return __dsqrt_rn(a);
}
FSDP_RANDOM_CODE float fsdp_scale_shift(float x, float scale, float shift) {
  return __fadd_rn(__fmul_rn(x, scale), shift);
}
#else
#ifdef __CUDACC__
#define FSDP_RANDOM_CODE static __host__ __device__ inline // nvcc's pass for the host
#else
#define FSDP_RANDOM_CODE static inline
#endif

// One rounding each.
FSDP_RANDOM_CODE double fsdp_times(double a, double b) {
  return a * b;
}
FSDP_RANDOM_CODE double fsdp_plus(double a, double b) {
  return a + b;
}
FSDP_RANDOM_CODE double fsdp_over(double a, double b) {
  return a / b;
}
FSDP_RANDOM_CODE double fsdp_root(double a) {
  return sqrt(a); // correctly rounded, as IEEE 754 has it
}
FSDP_RANDOM_CODE float fsdp_scale_shift(float x, float scale, float shift) {
  const float scaled = x * scale;
  return scaled + shift;
}
#endif

// Philox-4x32: the words of counter `index`, after a number of rounds that the compiler sees.
FSDP_RANDOM_CODE void fsdp_philox(int rounds, uint64_t seed, uint64_t stream, uint64_t index,
                                  uint32_t words[4]) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
  uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < rounds; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// One step of Horner's rule.
FSDP_RANDOM_CODE double fsdp_horner(double sum, double x, double coefficient) {
  return fsdp_plus(fsdp_times(sum, x), coefficient);
}

// ln((word + 1) / 2^32), in (-22.2, 0]: the number is m 2^e with m within a factor sqrt(2) of 1, and with s
// = (m - 1) / (m + 1), |s| < 0.172, ln m = 2 (s + s^3/3 + s^5/5 + ...); what follows s^21/21 is below
// 2^-55.
FSDP_RANDOM_CODE double fsdp_log_uniform(uint32_t word) {
  double m = fsdp_plus((double)word, 1.0); // exact
  uint64_t bits;
  memcpy(&bits, &m, sizeof bits);
  int exponent = (int)(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) {
    m = fsdp_times(m, 0.5);
    exponent++;
  }
  const double s = fsdp_over(fsdp_plus(m, -1.0), fsdp_plus(m, 1.0)), z = fsdp_times(s, s);
  double sum = 1.0 / 21;
  sum = fsdp_horner(sum, z, 1.0 / 19);
  sum = fsdp_horner(sum, z, 1.0 / 17);
  sum = fsdp_horner(sum, z, 1.0 / 15);
  sum = fsdp_horner(sum, z, 1.0 / 13);
  sum = fsdp_horner(sum, z, 1.0 / 11);
  sum = fsdp_horner(sum, z, 1.0 / 9);
  sum = fsdp_horner(sum, z, 1.0 / 7);
  sum = fsdp_horner(sum, z, 1.0 / 5);
  sum = fsdp_horner(sum, z, 1.0 / 3);
  sum = fsdp_horner(sum, z, 1.0);
  return fsdp_plus(fsdp_times((double)(exponent - 32), 0.6931471805599453),
                   fsdp_times(fsdp_times(2.0, s), sum));
}

// Cosine and sine of 2 pi word / 2^32. Integers give the nearest quarter turn; a Taylor polynomial gives the
// rest, which is within pi/4 (up to x^16 and x^17; the next terms are below 2^-55).
FSDP_RANDOM_CODE void fsdp_turn(uint32_t word, double *cosine, double *sine) {
  const uint32_t shifted = word + ((uint32_t)1 << 29), quarter = shifted >> 30;
  const double part = (double)((int32_t)(shifted & 0x3fffffffu) - (1 << 29));
  const double x = fsdp_times(part, 6.283185307179586 / 4294967296.0), z = fsdp_times(x, x);
  double c = 1.0 / 20922789888000, s = 1.0 / 355687428096000; // 1/16!, 1/17!
  c = fsdp_horner(c, z, -1.0 / 87178291200);
  s = fsdp_horner(s, z, -1.0 / 1307674368000);
  c = fsdp_horner(c, z, 1.0 / 479001600);
  s = fsdp_horner(s, z, 1.0 / 6227020800);
  c = fsdp_horner(c, z, -1.0 / 3628800);
  s = fsdp_horner(s, z, -1.0 / 39916800);
  c = fsdp_horner(c, z, 1.0 / 40320);
  s = fsdp_horner(s, z, 1.0 / 362880);
  c = fsdp_horner(c, z, -1.0 / 720);
  s = fsdp_horner(s, z, -1.0 / 5040);
  c = fsdp_horner(c, z, 1.0 / 24);
  s = fsdp_horner(s, z, 1.0 / 120);
  c = fsdp_horner(c, z, -1.0 / 2);
  s = fsdp_horner(s, z, -1.0 / 6);
  c = fsdp_horner(c, z, 1.0);
  s = fsdp_horner(s, z, 1.0);
  s = fsdp_times(x, s);
  *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
  *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

// Two uniform words to two standard normals (Box and Muller 1958). The first word is mapped to (0, 1], so
// that its logarithm is finite.
FSDP_RANDOM_CODE void fsdp_normal_pair(uint32_t a, uint32_t b, float out[2]) {
  double cosine, sine;
  const double radius = fsdp_root(fsdp_times(-2.0, fsdp_log_uniform(a)));
  fsdp_turn(b, &cosine, &sine);
  out[0] = (float)fsdp_times(radius, cosine);
  out[1] = (float)fsdp_times(radius, sine);
}

// Standard normals 4 block .. 4 block + 3 of a stream.
FSDP_RANDOM_CODE void fsdp_normal_block(uint64_t seed, uint64_t stream, uint64_t block, float out[4]) {
  uint32_t words[4];
  fsdp_philox(FSDP_RANDOM_ROUNDS, seed, stream, block, words);
  fsdp_normal_pair(words[0], words[1], out);
  fsdp_normal_pair(words[2], words[3], out + 2);
}

// ---- Dropout (random.h)

// Of a rate in [0, 1): words below it drop.
FSDP_RANDOM_CODE uint32_t fsdp_dropout_limit(float rate) {
  return (uint32_t)((double)rate * 4294967296.0);
}

// What is not dropped is multiplied by it, so that an element's expectation stays.
FSDP_RANDOM_CODE float fsdp_dropout_scale(float rate) {
  return 1.0f / (1.0f - rate);
}

// The key of a row for an op; `first` and `second` are the row's words.
FSDP_RANDOM_CODE uint64_t fsdp_dropout_key(uint64_t op, int32_t first, int32_t second) {
  return op ^ ((uint64_t)(uint32_t)second << 32 | (uint32_t)first);
}

// The words of columns 4 group to 4 group + 3.
FSDP_RANDOM_CODE void fsdp_dropout_words(uint64_t key, int64_t head, int64_t group, uint32_t words[4]) {
  fsdp_philox(FSDP_DROPOUT_ROUNDS, key, (uint64_t)head, (uint64_t)group, words);
}
