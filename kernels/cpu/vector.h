// fp32 vectors as wide as the instruction set level's registers, and functions on them.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define FSDP_LANES 16
#elif defined(__AVX__)
#define FSDP_LANES 8
#else
#define FSDP_LANES 4
#endif

typedef float fsdp_vf __attribute__((vector_size(FSDP_LANES * 4)));
typedef int32_t fsdp_vi __attribute__((vector_size(FSDP_LANES * 4)));
typedef uint32_t fsdp_vu __attribute__((vector_size(FSDP_LANES * 4)));
typedef uint16_t fsdp_vh __attribute__((vector_size(FSDP_LANES * 2)));

#define FSDP_INLINE static inline __attribute__((always_inline))

FSDP_INLINE fsdp_vf vf_load(const float *source) {
  fsdp_vf v;
  memcpy(&v, source, sizeof v);
  return v;
}

FSDP_INLINE void vf_store(float *destination, fsdp_vf v) {
  memcpy(destination, &v, sizeof v);
}

// bf16 is the upper half of fp32.
FSDP_INLINE fsdp_vf vf_load_bf16(const uint16_t *source) {
  fsdp_vh halves;
  memcpy(&halves, source, sizeof halves);
  return (fsdp_vf)(__builtin_convertvector(halves, fsdp_vu) << 16);
}

FSDP_INLINE fsdp_vf vf_set(float x) {
  return x - (fsdp_vf){0};
}

// mask ? a : b, lane by lane; mask lanes are all ones or all zeros.
FSDP_INLINE fsdp_vf vf_select(fsdp_vi mask, fsdp_vf a, fsdp_vf b) {
  return (fsdp_vf)((mask & (fsdp_vi)a) | (~mask & (fsdp_vi)b));
}

// NaN in `a` is kept. Lane by lane, as the compiler knows one instruction for it; vf_select takes three.
FSDP_INLINE fsdp_vf vf_max(fsdp_vf a, fsdp_vf b) {
  fsdp_vf most;
  for (int i = 0; i < FSDP_LANES; i++) most[i] = a[i] < b[i] ? b[i] : a[i];
  return most;
}

FSDP_INLINE fsdp_vf vf_min(fsdp_vf a, fsdp_vf b) {
  fsdp_vf least;
  for (int i = 0; i < FSDP_LANES; i++) least[i] = a[i] > b[i] ? b[i] : a[i];
  return least;
}

// Adds lanes pairwise, so that the order is fixed and errors stay small.
FSDP_INLINE float vf_sum(fsdp_vf v) {
  float lanes[FSDP_LANES];
  vf_store(lanes, v);
  for (int width = FSDP_LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

FSDP_INLINE float vf_greatest(fsdp_vf v) {
  float lanes[FSDP_LANES], greatest;
  vf_store(lanes, v);
  greatest = lanes[0];
  for (int i = 1; i < FSDP_LANES; i++) greatest = greatest < lanes[i] ? lanes[i] : greatest;
  return greatest;
}

// exp(x): 0 below -87.3, exp(88) above 88, NaN for NaN. Range reduction by ln 2 in two parts and the
// polynomial of Cephes' expf; within 2 units in the last place.
FSDP_INLINE fsdp_vf vf_exp(fsdp_vf x) {
  const fsdp_vf high = vf_set(88.0f),
                magic = vf_set(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer
  fsdp_vi vanishes = (fsdp_vi)(x < vf_set(-87.3f));
  x = vf_min(x, high);
  fsdp_vf shifted = x * 1.44269504f + magic, n = shifted - magic;
  fsdp_vu scale_bits = ((fsdp_vu)shifted << 23) + 0x3f800000u; // wraps if x vanishes
  fsdp_vf r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  fsdp_vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return (fsdp_vf)(~vanishes & (fsdp_vi)(p * (fsdp_vf)scale_bits));
}

// Sum of x[i] over four independent accumulators.
FSDP_INLINE float vf_total(const float *x, int64_t count) {
  fsdp_vf sums[4] = {{0}, {0}, {0}, {0}};
  int64_t i = 0;
  for (; i + 4 * FSDP_LANES <= count; i += 4 * FSDP_LANES)
    for (int lane = 0; lane < 4; lane++) sums[lane] += vf_load(x + i + lane * FSDP_LANES);
  for (; i + FSDP_LANES <= count; i += FSDP_LANES) sums[0] += vf_load(x + i);
  float rest = 0;
  for (; i < count; i++) rest += x[i];
  return vf_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

// Sum of x[i] * y[i] over four independent accumulators.
FSDP_INLINE float vf_dot(const float *x, const float *y, int64_t count) {
  fsdp_vf sums[4] = {{0}, {0}, {0}, {0}};
  int64_t i = 0;
  for (; i + 4 * FSDP_LANES <= count; i += 4 * FSDP_LANES)
    for (int lane = 0; lane < 4; lane++)
      sums[lane] += vf_load(x + i + lane * FSDP_LANES) * vf_load(y + i + lane * FSDP_LANES);
  for (; i + FSDP_LANES <= count; i += FSDP_LANES) sums[0] += vf_load(x + i) * vf_load(y + i);
  float rest = 0;
  for (; i < count; i++) rest += x[i] * y[i];
  return vf_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}
