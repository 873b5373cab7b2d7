// Replaces CUDA's cuda_runtime.h when kernels are compiled for the CPU: the language's words, the vector
// types, the functions that kernels call and the part of the runtime that their launchers call.
#pragma once

#include "tests/simt/emulator/simt.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
// One-byte instructions before the function, which the harness counts (simt::launch_bounds).
#define __launch_bounds__(threads, ...) __attribute__((patchable_function_entry((threads), (threads))))
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
  simt::barrier(file, line);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, const char *file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  simt::warp_barrier(mask, file, line);
}
inline void __threadfence() {
  simt::global_fence();
}
[[noreturn]] inline void __trap() {
  simt::fail("__trap");
}

// ---- Functions of a warp
namespace simt {
template <class T> struct exchange {
  T value, result;
  int source;
};
template <class T> T shuffle(const char *name, unsigned mask, T value, int source) {
  exchange<T> own{value, value, source};
  warp_together(name, mask, &own, [](void *const *arguments, uint32_t lanes) {
    for (int lane = 0; lane < warp_size; lane++) {
      if (!(lanes >> lane & 1)) continue;
      auto *to = static_cast<exchange<T> *>(arguments[lane]);
      if (to->source < 0 || to->source >= warp_size || !(lanes >> to->source & 1))
        fail("a shuffle reads lane %d, which does not take part (%08x)", to->source, lanes);
      to->result = static_cast<exchange<T> *>(arguments[to->source])->value;
    }
  });
  return own.result;
}
inline unsigned vote(unsigned mask, bool value) {
  exchange<unsigned> own{value, 0, 0};
  warp_together("__ballot_sync", mask, &own, [](void *const *arguments, uint32_t lanes) {
    unsigned bits = 0;
    for (int lane = 0; lane < warp_size; lane++)
      if (lanes >> lane & 1) bits |= static_cast<exchange<unsigned> *>(arguments[lane])->value << lane;
    for (int lane = 0; lane < warp_size; lane++)
      if (lanes >> lane & 1) static_cast<exchange<unsigned> *>(arguments[lane])->result = bits;
  });
  return own.result;
}
} // namespace simt

template <class T> T __shfl_sync(unsigned mask, T value, int source) {
  return simt::shuffle("__shfl_sync", mask, value, source);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return simt::shuffle("__shfl_xor_sync", mask, value, simt::self->lane ^ bits);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned distance) {
  int lane = simt::self->lane, source = lane - int(distance);
  return simt::shuffle("__shfl_up_sync", mask, value, source < 0 ? lane : source);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  int lane = simt::self->lane, source = lane + int(distance);
  return simt::shuffle("__shfl_down_sync", mask, value, source >= simt::warp_size ? lane : source);
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
  return simt::vote(mask, value);
}
inline bool __any_sync(unsigned mask, bool value) {
  return simt::vote(mask, value) != 0;
}
inline bool __all_sync(unsigned mask, bool value) {
  return simt::vote(mask, value) == mask;
}

// ---- Atomic operations on device memory
namespace simt {
template <class T, class Change> T change_atomically(T *address, Change change) {
  T old;
  global_atomic(address, sizeof(T), [&] {
    old = *address;
    *address = change(old);
  });
  return old;
}
} // namespace simt

template <class T> T atomicAdd(T *address, T value) {
  return simt::change_atomically(address, [value](T old) { return old + value; });
}
template <class T> T atomicMax(T *address, T value) {
  return simt::change_atomically(address, [value](T old) { return old > value ? old : value; });
}
template <class T> T atomicExch(T *address, T value) {
  return simt::change_atomically(address, [value](T) { return value; });
}
template <class T> T atomicCAS(T *address, T expected, T value) {
  return simt::change_atomically(address, [=](T old) { return old == expected ? value : old; });
}
inline unsigned atomicInc(unsigned *address, unsigned most) {
  return simt::change_atomically(address, [most](unsigned old) { return old >= most ? 0 : old + 1; });
}

// ---- Arithmetic
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float __expf(float x) {
  return expf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((uint64_t(a) * b) >> 32);
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// ---- The runtime
struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute *attrs = nullptr;
  unsigned numAttrs = 0;
};

extern "C" cudaError_t simt_launch(const simt::launch_shape *shape, cudaStream_t stream,
                                   std::function<void()> body);

template <class Kernel> cudaError_t cudaFuncSetAttribute(Kernel *kernel, int, int bytes) {
  return simt::allow_shared(reinterpret_cast<const void *>(kernel), bytes) ? cudaSuccess
                                                                           : cudaErrorInvalidValue;
}
struct cudaFuncAttributes {
  int maxThreadsPerBlock;
};
template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(Parameters...)) {
  attributes->maxThreadsPerBlock = simt::launch_bounds(reinterpret_cast<const void *>(kernel));
  return simt::kernel_load(reinterpret_cast<const void *>(kernel));
}
// The arguments are copied, as a launch copies them.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Arguments &&...arguments) {
  const simt::launch_shape shape = {config->gridDim, config->blockDim, config->dynamicSmemBytes,
                                    reinterpret_cast<const void *>(kernel)};
  std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
  return simt_launch(&shape, config->stream, [kernel, values] { std::apply(kernel, values); });
}
