// Shared memory and the PTX instructions that kernels use, behind small names with two implementations: the
// device's, here, and one for the CPU that checks every access (a header of the tests, for FSDP_SIMT).
//
//   FSDP_SHARED(float, sums, 32);         a static array of the block: smem<float> sums
//   FSDP_SHARED_DYNAMIC(bytes);           the launch's dynamic bytes, 1024-byte aligned: smem<unsigned char>
//                                         bytes
//   bytes.part<bf16>(offset, count)       a piece of it as a different type
//   sums[i] = x; y = sums[i];             plain accesses on the device
//   sums.address(i)                       the shared address that cp.async and ldmatrix take
//
// Fragments of mma.m16n8k16 (PTX ISA 9.7.13.4.8), with g = lane / 4 and t = lane % 4:
//   a (16,16): a[0] row g, columns 2t 2t+1; a[1] row g+8; a[2] row g, columns 2t+8 2t+9; a[3] row g+8
//   b (16,8):  b0 rows 2t 2t+1 of column g; b1 rows 2t+8 2t+9
//   d (16,8):  d[0] d[1] row g, columns 2t 2t+1; d[2] d[3] row g+8
#pragma once

#if defined(FSDP_SIMT)
#include <simt_language.h>
#else

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define FSDP_SHARED(type, name, numel)                                                                       \
  __shared__ __align__(128) unsigned char name##_bytes[(numel) * sizeof(type)];                              \
  const smem<type> name(reinterpret_cast<type *>(name##_bytes))
#define FSDP_SHARED_DYNAMIC(name)                                                                            \
  extern __shared__ __align__(1024) unsigned char fsdp_dynamic_bytes[];                                      \
  const smem<unsigned char> name(fsdp_dynamic_bytes)

template <class T> class smem {
public:
  smem() = default;
  __device__ explicit smem(T *data) : data_(data), address_(uint32_t(__cvta_generic_to_shared(data))) {}
  __device__ T &operator[](int i) const { return data_[i]; }
  __device__ uint32_t address(int i) const { return address_ + uint32_t(i) * uint32_t(sizeof(T)); }
  template <class U> __device__ smem<U> part(int offset, int) const {
    return smem<U>(reinterpret_cast<U *>(reinterpret_cast<unsigned char *>(data_) + offset));
  }

private:
  T *data_;
  uint32_t address_; // in the shared window
};

template <class T> __device__ __forceinline__ T global_load(const T *address) {
  return *address;
}
// 16 bytes go in one instruction: left to itself, the compiler splits many such stores into four of 4 bytes.
template <class T> __device__ __forceinline__ void global_store(T *address, const T &value) {
  if constexpr (sizeof(T) == 16) {
    uint32_t word[4];
    __builtin_memcpy(word, &value, sizeof word);
    asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(address)),
                 "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
  } else {
    *address = value;
  }
}
// Adds atomically.
__device__ __forceinline__ void global_add(unsigned long long *address, unsigned long long value) {
  atomicAdd(address, value);
}

// 2^x within 2 units in the last place; 0 for -infinity.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sin(x) and cos(x) within 2^-20 for x between -pi and pi.
__device__ __forceinline__ float sin_approx(float x) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float cos_approx(float x) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / sqrt(x) and 1 / x within 2 units in the last place; of a number too small to be normal, infinity.
__device__ __forceinline__ float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Copies 16 bytes from device to shared memory, zeros unless `valid`; complete after cp_async_wait and a
// barrier.
__device__ __forceinline__ void cp_async16(uint32_t address, const void *source, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most groups_left of this thread's groups are in flight.
template <int groups_left> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
}

// Four 8x8 matrices of 2-byte elements; lanes 8i to 8i+7 give the addresses of the rows of matrix i.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// d += a * b, bf16 products summed in fp32.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
