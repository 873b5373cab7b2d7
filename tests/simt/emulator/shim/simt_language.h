// Replaces kernels/cuda/ptx.cuh when kernels are compiled for the CPU: shared memory with
// every access checked, and the meaning of the PTX instructions by their documented layouts (PTX ISA 8.0,
// sections 9.7.8.24 cp.async, 9.7.13.4.8 and .15 mma.m16n8k16 and ldmatrix).
#pragma once

#include <cuda_bf16.h>

#include <cuda_runtime.h>

#include <float.h>
#include <math.h>

#define FSDP_SHARED(type, name, numel)                                                                       \
  static const char name##_site = 0;                                                                         \
  const smem<type> name(simt::shared_static(&name##_site, uint32_t((numel) * sizeof(type))), uint32_t(numel))
#define FSDP_SHARED_DYNAMIC(name)                                                                            \
  const smem<unsigned char> name(simt::shared_dynamic(), simt::dynamic_shared_bytes())

template <class T> class smem {
public:
  class element {
  public:
    explicit element(uint32_t address) : address_(address) {}
    operator T() const { return simt::shared_load<T>(address_); }
    const element &operator=(const T &value) const {
      simt::shared_write(address_, &value, sizeof value);
      return *this;
    }
    const element &operator=(const element &other) const { return *this = T(other); }
    const element &operator+=(const T &value) const { return *this = T(*this) + value; }

  private:
    uint32_t address_;
  };

  smem() = default;
  smem(uint32_t base, uint32_t count) : base_(base), count_(count) {}
  element operator[](int64_t i) const { return element(address(int(i))); }
  uint32_t address(int i) const {
    if (i < 0 || uint32_t(i) >= count_)
      simt::fail("shared array of %u elements is indexed with %d", count_, i);
    return base_ + uint32_t(i) * uint32_t(sizeof(T));
  }
  // `count` elements of U from byte `offset` on.
  template <class U> smem<U> part(int offset, int count) const {
    if (offset < 0 || count < 0 || size_t(offset) + size_t(count) * sizeof(U) > count_ * sizeof(T))
      simt::fail("a part of %d elements at byte %d of a shared array of %zu bytes", count, offset,
                 count_ * sizeof(T));
    return smem<U>(base_ + uint32_t(offset), uint32_t(count));
  }

private:
  uint32_t base_ = 0, count_ = 0;
};

template <class T> inline T global_load(const T *address) {
  simt::global_read(address, sizeof(T));
  return *address;
}
template <class T> inline void global_store(T *address, const T &value) {
  simt::global_write(address, sizeof(T));
  *address = value;
}
inline void global_add(unsigned long long *address, unsigned long long value) {
  atomicAdd(address, value);
}

inline float exp2_approx(float x) {
  return exp2f(x);
}
inline float sin_approx(float x) {
  if (fabsf(x) > 3.1416f) simt::fail("sin_approx of %g: it takes what lies between -pi and pi", double(x));
  return sinf(x);
}
inline float cos_approx(float x) {
  if (fabsf(x) > 3.1416f) simt::fail("cos_approx of %g: it takes what lies between -pi and pi", double(x));
  return cosf(x);
}

// Subnormal arguments and results are zeros.
inline float flushed(float x) {
  return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}
inline float rsqrt_approx(float x) {
  return flushed(1.0f / sqrtf(flushed(x)));
}
inline float reciprocal_approx(float x) {
  return flushed(1.0f / flushed(x));
}

inline void cp_async16(uint32_t address, const void *source, bool valid) {
  simt::async_copy(address, source, valid ? 16 : 0);
}
inline void cp_async_commit() {
  simt::async_commit();
}
template <int groups_left>
inline void cp_async_wait(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!simt::is_left_out("cp_async_wait", file, line)) simt::async_wait(groups_left);
}

namespace simt {
struct matrix_load {
  uint32_t *out;
  uint16_t row[8]; // the row whose address this lane gave
  bool transposed;
};
inline void load_matrices(uint32_t (&out)[4], uint32_t address, bool transposed) {
  matrix_load own{out, {}, transposed};
  const uint4 elements = shared_load<uint4>(address);
  memcpy(own.row, &elements, sizeof elements);
  warp_together(transposed ? "ldmatrix.x4.trans" : "ldmatrix.x4", 0xffffffffu, &own,
                [](void *const *arguments, uint32_t) {
                  for (int lane = 0; lane < warp_size; lane++) {
                    auto *to = static_cast<matrix_load *>(arguments[lane]);
                    int i = lane / 4, j = lane % 4 * 2;
                    for (int matrix = 0; matrix < 4; matrix++) {
                      auto at = [&](int row, int column) {
                        return uint32_t(static_cast<matrix_load *>(arguments[matrix * 8 + row])->row[column]);
                      };
                      to->out[matrix] =
                          to->transposed ? at(j, i) | at(j + 1, i) << 16 : at(i, j) | at(i, j + 1) << 16;
                    }
                  }
                });
}
struct product {
  float *d;
  const uint32_t *a, *b;
};
void multiply(void *const *arguments, uint32_t mask); // simt_warp.cpp
} // namespace simt

inline void ldmatrix_x4(uint32_t (&out)[4], uint32_t address) {
  simt::load_matrices(out, address, false);
}
inline void ldmatrix_x4_trans(uint32_t (&out)[4], uint32_t address) {
  simt::load_matrices(out, address, true);
}
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t b[2] = {b0, b1};
  simt::product own{d, a, b};
  simt::warp_together("mma.m16n8k16", 0xffffffffu, &own, simt::multiply);
}
