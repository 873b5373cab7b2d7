// Replaces the PTX of kernels/cuda/attention/hopper.cuh when kernels are compiled for the CPU (PTX ISA 9.7.15
// wgmma, 9.7.13 bar and fence.proxy). What it means, and which mistakes are errors: simt_warpgroup.cpp.
#pragma once

#define FSDP_GRID_CONSTANT
#define FSDP_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace simt {
template <class T, int R, int C> register_array named(T (&registers)[R][C]) {
  return {registers, uint32_t(sizeof registers)};
}
} // namespace simt

inline void wgmma_fence() {} // of registers that products in progress have already
template <class A> void wgmma_fence(A &a, FSDP_HERE) {
  simt::wgmma_fence({simt::named(a)}, file, line);
}
template <class A, class B> void wgmma_fence(A &a, B &b, FSDP_HERE) {
  simt::wgmma_fence({simt::named(a), simt::named(b)}, file, line);
}
template <class A, class B, class C> void wgmma_fence(A &a, B &b, C &c, FSDP_HERE) {
  simt::wgmma_fence({simt::named(a), simt::named(b), simt::named(c)}, file, line);
}
template <class A, class B, class C, class D> void wgmma_fence(A &a, B &b, C &c, D &d, FSDP_HERE) {
  simt::wgmma_fence({simt::named(a), simt::named(b), simt::named(c), simt::named(d)}, file, line);
}

inline void wgmma_commit(FSDP_HERE) {
  simt::wgmma_commit(file, line);
}

template <int groups_left> void wgmma_wait(FSDP_HERE) {
  simt::wgmma_wait(groups_left, {}, file, line);
}
template <int groups_left, class A> void wgmma_wait(A &a, FSDP_HERE) {
  simt::wgmma_wait(groups_left, {simt::named(a)}, file, line);
}
template <int groups_left, class A, class B> void wgmma_wait(A &a, B &b, FSDP_HERE) {
  simt::wgmma_wait(groups_left, {simt::named(a), simt::named(b)}, file, line);
}
template <int groups_left, class A, class B, class C> void wgmma_wait(A &a, B &b, C &c, FSDP_HERE) {
  simt::wgmma_wait(groups_left, {simt::named(a), simt::named(b), simt::named(c)}, file, line);
}
template <int groups_left, class A, class B, class C, class D>
void wgmma_wait(A &a, B &b, C &c, D &d, FSDP_HERE) {
  simt::wgmma_wait(groups_left, {simt::named(a), simt::named(b), simt::named(c), simt::named(d)}, file, line);
}

inline void finish_before_wait(float x) {
  if (x < 0) simt::fail("finish_before_wait of %g, which is negative", double(x));
}

template <major A, major B, int TILES>
void wgmma(float (&d)[TILES][4], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(TILES == 8 || TILES == 16 || TILES == 32, "64, 128 or 256 columns, as on the device");
  simt::wgmma({d[0], TILES * 8, nullptr, a, b, A == major::mn, B == major::mn, accumulate});
}
template <major B, int TILES>
void wgmma(float (&d)[TILES][4], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(TILES == 8 || TILES == 16, "64 or 128 columns, as on the device");
  simt::wgmma({d[0], TILES * 8, a, 0, b, false, B == major::mn, accumulate});
}

inline void fence_proxy_async(FSDP_HERE) {
  if (!simt::is_left_out("fence_proxy_async", file, line)) simt::shared_fence_proxy();
}
inline void fence_proxy_async_left_out() {
  simt::shared_fence_proxy();
}

struct box_map {
  simt::box_map map;
};
inline box_map box_map_of(const void *data, int64_t columns, int64_t rows, int64_t slices, int box_rows) {
  return {{static_cast<const unsigned char *>(data), columns, rows, slices, box_rows}};
}
inline void box_barrier_init(uint32_t barrier) {
  simt::box_barrier_init(barrier);
}
inline void box_expect(uint32_t barrier, int bytes) {
  simt::box_expect(barrier, bytes);
}
inline void copy_box(uint32_t to, const box_map &map, int column, int row, int slice, uint32_t barrier) {
  simt::box_copy(to, map.map, column, row, slice, barrier);
}
inline void box_wait(uint32_t barrier, int turn, FSDP_HERE) {
  if (!simt::is_left_out("box_wait", file, line)) simt::box_wait(barrier, turn);
}

inline void named_barrier_sync(int barrier, int threads, FSDP_HERE) {
  if (!simt::is_left_out("named_barrier_sync", file, line)) simt::named_barrier(barrier, threads, true);
}
inline void named_barrier_arrive(int barrier, int threads, FSDP_HERE) {
  if (!simt::is_left_out("named_barrier_arrive", file, line)) simt::named_barrier(barrier, threads, false);
}

template <int count> void registers_release() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
  simt::warpgroup_together("registers_release", nullptr, [](void *const *) {});
}
template <int count> void registers_take() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
  simt::warpgroup_together("registers_take", nullptr, [](void *const *) {});
}

#undef FSDP_HERE
