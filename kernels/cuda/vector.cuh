// Elements of fp32 or bf16 as floats in registers, in accesses of up to 16 bytes, and sums over warps and
// blocks in a fixed order.
#pragma once

#include "kernels/cuda/ptx.cuh"

#include <string.h>

typedef __nv_bfloat16 bf16;

constexpr int warp_lanes = 32;
constexpr uint32_t whole_warp = 0xffffffffu;

// Elements of a 16-byte access.
template <class T> constexpr int vector_numel = 16 / int(sizeof(T));

template <class T> __device__ __host__ __forceinline__ T least(T a, T b) {
  return a < b ? a : b;
}

// Two bf16 in one word, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &pair, sizeof word);
  return word;
}
__device__ __forceinline__ float low_bf16(uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ __forceinline__ float high_bf16(uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(bf16 x) {
  return __bfloat162float(x);
}
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// N elements from `source`, which is aligned to the smaller of 16 bytes and their size. N = 1 has no
// alignment requirement.
template <int N> __device__ __forceinline__ void load_floats(const float *source, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = global_load(source);
  } else {
    static_assert(N % 4 == 0, "whole 16-byte accesses");
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      float4 four = global_load(reinterpret_cast<const float4 *>(source + i));
      x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
  }
}
__device__ __forceinline__ void unpack_bf16(uint4 words, float *x) {
  x[0] = low_bf16(words.x), x[1] = high_bf16(words.x), x[2] = low_bf16(words.y), x[3] = high_bf16(words.y);
  x[4] = low_bf16(words.z), x[5] = high_bf16(words.z), x[6] = low_bf16(words.w), x[7] = high_bf16(words.w);
}
template <int N> __device__ __forceinline__ void load_floats(const bf16 *source, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = to_float(global_load(source));
  } else if constexpr (N == 4) {
    uint2 words = global_load(reinterpret_cast<const uint2 *>(source));
    x[0] = low_bf16(words.x), x[1] = high_bf16(words.x), x[2] = low_bf16(words.y), x[3] = high_bf16(words.y);
  } else {
    static_assert(N % 8 == 0, "whole 16-byte accesses");
#pragma unroll
    for (int i = 0; i < N; i += 8)
      unpack_bf16(global_load(reinterpret_cast<const uint4 *>(source + i)), x + i);
  }
}

// Adds N elements from `source` to x.
template <class T, int N> __device__ __forceinline__ void add_floats(const T *source, float (&x)[N]) {
  float added[N];
  load_floats<N>(source, added);
#pragma unroll
  for (int i = 0; i < N; i++) x[i] += added[i];
}

template <int N> __device__ __forceinline__ void store_floats(float *destination, const float (&x)[N]) {
  if constexpr (N == 1) {
    global_store(destination, x[0]);
  } else {
    static_assert(N % 4 == 0, "whole 16-byte accesses");
#pragma unroll
    for (int i = 0; i < N; i += 4)
      global_store(reinterpret_cast<float4 *>(destination + i), float4{x[i], x[i + 1], x[i + 2], x[i + 3]});
  }
}
template <int N> __device__ __forceinline__ void store_floats(bf16 *destination, const float (&x)[N]) {
  if constexpr (N == 1) {
    global_store(destination, from_float<bf16>(x[0]));
  } else if constexpr (N == 4) {
    global_store(reinterpret_cast<uint2 *>(destination), uint2{pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])});
  } else {
    static_assert(N % 8 == 0, "whole 16-byte accesses");
#pragma unroll
    for (int i = 0; i < N; i += 8)
      global_store(reinterpret_cast<uint4 *>(destination + i),
                   uint4{pack_bf16(x[i], x[i + 1]), pack_bf16(x[i + 2], x[i + 3]),
                         pack_bf16(x[i + 4], x[i + 5]), pack_bf16(x[i + 6], x[i + 7])});
  }
}

// One access's elements as they lie in memory, in registers: half the size of floats if T is bf16.
template <class T, int N> struct packed;
template <class T> struct packed<T, 1> { T value; };
template <> struct packed<float, 4> { float4 value; };
template <> struct packed<bf16, 8> { uint4 value; };
template <class T, int N> __device__ __forceinline__ void load_packed(const T *source, packed<T, N> *vector) {
  vector->value = global_load(reinterpret_cast<const decltype(vector->value) *>(source));
}
template <class T> __device__ __forceinline__ void unpack(const packed<T, 1> &vector, float (&x)[1]) {
  x[0] = to_float(vector.value);
}
__device__ __forceinline__ void unpack(const packed<float, 4> &vector, float (&x)[4]) {
  const float4 four = vector.value;
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
__device__ __forceinline__ void unpack(const packed<bf16, 8> &vector, float (&x)[8]) {
  unpack_bf16(vector.value, x);
}

// The sum over the lanes of a warp up to this one.
__device__ __forceinline__ int warp_sum_so_far(int x) {
#pragma unroll
  for (int distance = 1; distance < warp_lanes; distance *= 2) {
    const int other = __shfl_up_sync(whole_warp, x, unsigned(distance));
    if (int(threadIdx.x) % warp_lanes >= distance) x += other;
  }
  return x;
}

// The sum, or the greatest, over the lanes of a warp, in every lane.
template <class T> __device__ __forceinline__ T warp_sum(T x) {
#pragma unroll
  for (int bits = warp_lanes / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(whole_warp, x, bits);
  return x;
}
__device__ __forceinline__ float warp_greatest(float x) {
#pragma unroll
  for (int bits = warp_lanes / 2; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(whole_warp, x, bits));
  return x;
}

// The sum over the threads of a block of whole warps, in every thread. Contains barriers.
template <class T> __device__ __forceinline__ T block_sum(T x) {
  FSDP_SHARED(T, partial, warp_lanes);
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  x = warp_sum(x);
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  x = lane < int(blockDim.x) / warp_lanes ? T(partial[lane]) : T(0);
  x = warp_sum(x);
  __syncthreads(); // the next sum may reuse the array
  return x;
}
