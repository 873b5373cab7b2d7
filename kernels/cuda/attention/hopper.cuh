// Hopper's asynchronous matrix instructions (sm_90a) and what orders them, with two implementations as in
// ptx.cuh. A warpgroup is four consecutive warps of which the first is a multiple of four. All its threads
// call what begins with wgmma, and so do all threads of a warp what begins with named_barrier.
//
//   wgmma_fence(d, a)                  the registers are ready: everything that is done to them comes before
//   wgmma<A, B>(d, a, b, accumulate)   starts d = a b, or d += a b: a (64, 16), b (16, N), N 64, 128 or 256
//   wgmma_commit()                     what was started since the last commit is one group
//   wgmma_wait<N>(d, a)                waits until at most N groups are in progress
//
// (PTX ISA 9.7.15, asynchronous warpgroup-level matrix multiply-accumulate.) From its start to the wait, a
// product's registers are neither read nor written, and its shared memory is not written. The fence names all
// registers, accumulators and fragments of a, of the products that follow it; the wait names all that no
// product in progress uses any longer, so that the compiler moves no access across either. Products that add
// to the same accumulator, one after the other, need no fence between them; where some are waited for in
// between, as in a loop, ptxas wants one that names nothing.
//
// A thread's registers, with w = warp % 4, g = lane / 4 and t = lane % 4; both are those of ptx.cuh's
// mma_m16n8k16, for 16 rows a warp:
//   d (64, N)    d[n][0] d[n][1] row 16w + g, columns 8n + 2t and one on; d[n][2] d[n][3] row 16w + g + 8
//   a (64, 16)   a[0] row 16w + g, columns 2t and one on; a[1] row 16w + g + 8; a[2] row 16w + g, columns
//                2t + 8 and one on; a[3] row 16w + g + 8
//
// Shared memory is written in the generic proxy (also by cp.async) and read by wgmma in the async proxy.
// Between the two: the writers' fence_proxy_async() once their writes are done (cp_async_wait), and then a
// barrier; or the barrier and then the fence, by all threads that start the product (PTX ISA 8.9, causality
// order: the fence may lie anywhere between the two). A writer's fence may wait for other copies of its own
// that are in flight. The other way no fence is needed: a wait for products, then a barrier, then writes.
//
// Tiles in shared memory: panels of rows of 64 bf16 (128 bytes), one row after the other, swizzled: chunk c
// (of 16 bytes) of row r lies at chunk c ^ (r % 8). A panel starts on 1024 bytes and has a multiple of 8
// rows. A row of more than 64 elements continues in the next panel. A tile is a factor in two ways:
//   major::k    its rows are the rows of a or the columns of b, and each holds consecutive k
//   major::mn   its rows are k, and each holds consecutive rows of a or columns of b
//
// Boxes: a part of a matrix that lies in device memory without gaps is copied by one thread, in the async
// proxy, so that products need no fence (PTX ISA 9.7.9.27, cp.async.bulk.tensor). A box is a panel, or a part
// of one that starts on 1024 bytes.
//
//   box_map_of(...)            on the host: the matrix, as a kernel's parameter (FSDP_GRID_CONSTANT)
//   box_barrier_init(b)        one thread, once, before a __syncthreads: b is 8 bytes of shared memory
//   box_expect(b, bytes)       one thread, before the copies of each turn: so many bytes will arrive
//   copy_box(to, map, ..., b)  the same thread starts a copy
//   box_wait(b, turn)          all threads of its warpgroup wait until those of a turn (0, 1, ...) have come
#pragma once

#include "kernels/cuda/operand.cuh"

enum class major { k, mn }; // 0, 1: the instruction's `transpose`

constexpr int panel_columns = 64, panel_row_bytes = 128;

__device__ __forceinline__ int panel_at(int row, int column) { // bytes from the panel's start
  return row * panel_row_bytes + (((column / 8) ^ (row % 8)) * 16) + column % 8 * 2;
}

// The descriptor of a factor that begins with the panel at a shared address, its panels `panel_bytes` apart:
// start and distances in units of 16 bytes; 1024 bytes between groups of 8 rows; the mode of 128-byte
// swizzling. With major::k the instruction reads one panel and ignores the distance.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, int panel_bytes) {
  constexpr uint64_t group_bytes = 8 * panel_row_bytes, swizzle_128 = 1;
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t((panel_bytes & 0x3ffff) >> 4) << 16 |
         (group_bytes >> 4) << 32 | swizzle_128 << 62;
}
// The same factor from `bytes` further on.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + uint64_t(bytes >> 4);
}
// Where the 16 of k that product `step` takes begin, from the descriptor's start.
template <major M> __device__ __forceinline__ constexpr int step_bytes(int step, int panel_bytes) {
  return M == major::k ? step / 4 * panel_bytes + step % 4 * 32 : step * 16 * panel_row_bytes;
}

#if defined(FSDP_SIMT)
#include <simt_hopper.h>
#else

#include <cuda.h>

// Of a parameter whose address an instruction takes.
#define FSDP_GRID_CONSTANT __grid_constant__

// The compiler takes the registers to be read and written here.
template <int R, int C> __device__ __forceinline__ void pin(float (&registers)[R][C]) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int c = 0; c < C; c++) asm volatile("" : "+f"(registers[r][c])::"memory");
}
template <int R, int C> __device__ __forceinline__ void pin(uint32_t (&registers)[R][C]) {
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int c = 0; c < C; c++) asm volatile("" : "+r"(registers[r][c])::"memory");
}

template <class... Registers> __device__ __forceinline__ void wgmma_fence(Registers &...registers) {
  (pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int groups_left, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers &...registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
  (pin(registers), ...);
}

// What `x`, which is never negative, is computed from is done before the waits that follow: a sleep that
// never happens depends on it. Left to itself, ptxas (13.0) moves a wait for products up to the wait before
// it, and nothing runs beside the products.
__device__ __forceinline__ void finish_before_wait(float x) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p nanosleep.u32 1;\n}" ::"f"(x)
               : "memory");
}

#define WGMMA_D1(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_D4(d, n) WGMMA_D1(d, n), WGMMA_D1(d, n + 1), WGMMA_D1(d, n + 2), WGMMA_D1(d, n + 3)
#define WGMMA_D8(d)    WGMMA_D4(d, 0), WGMMA_D4(d, 4)
#define WGMMA_D16(d)   WGMMA_D8(d), WGMMA_D4(d, 8), WGMMA_D4(d, 12)
#define WGMMA_D32(d)   WGMMA_D16(d), WGMMA_D4(d, 16), WGMMA_D4(d, 20), WGMMA_D4(d, 24), WGMMA_D4(d, 28)

template <major A, major B>
__device__ __forceinline__ void wgmma(float (&d)[8][4], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "%32, %33, p, 1, 1, %35, %36;\n}"
               : WGMMA_D8(d)
               : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(A)), "n"(int(B))
               : "memory");
}
template <major B>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
               "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
               : WGMMA_D8(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(int(B))
               : "memory");
}

template <major A, major B>
__device__ __forceinline__ void wgmma(float (&d)[16][4], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "%64, %65, p, 1, 1, %67, %68;\n}"
               : WGMMA_D16(d)
               : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(A)), "n"(int(B))
               : "memory");
}
template <major B>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
               "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
               : WGMMA_D16(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(int(B))
               : "memory");
}

template <major A, major B>
__device__ __forceinline__ void wgmma(float (&d)[32][4], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n}"
      : WGMMA_D32(d)
      : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(A)), "n"(int(B))
      : "memory");
}

#undef WGMMA_D1
#undef WGMMA_D4
#undef WGMMA_D8
#undef WGMMA_D16
#undef WGMMA_D32

// This thread's writes to shared memory come before what later products read.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// `slices` matrices of `rows` rows of `columns` bf16 (a multiple of 8), one after the other, and boxes of
// `box_rows` rows (256 at most). What a box has beyond a matrix is zeros.
struct box_map {
  CUtensorMap map;
};
inline box_map box_map_of(const void *data, int64_t columns, int64_t rows, int64_t slices, int box_rows) {
  typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                          const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                          CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static encode *encode_tiled = [] {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<encode *>(found) : nullptr;
  }();
  box_map made;
  const cuuint64_t sizes[] = {cuuint64_t(columns), cuuint64_t(rows), cuuint64_t(slices)};
  const cuuint64_t strides[] = {cuuint64_t(columns) * 2, cuuint64_t(columns * rows) * 2};
  const cuuint32_t box[] = {panel_columns, cuuint32_t(box_rows), 1}, ones[] = {1, 1, 1};
  const CUresult status =
      encode_tiled
          ? encode_tiled(&made.map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void *>(data), sizes,
                         strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
          : CUDA_ERROR_NOT_FOUND;
  FSDP_CHECK(status == CUDA_SUCCESS, "cuTensorMapEncodeTiled: error %d", int(status));
  return made;
}
__device__ __forceinline__ void box_barrier_init(uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier)
               : "memory");
}
__device__ __forceinline__ void box_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_box(uint32_t to, const box_map &map, int column, int row, int slice,
                                         uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
               "l"(&map), "r"(column), "r"(row), "r"(slice), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void box_wait(uint32_t barrier, int turn) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(barrier),
      "r"(turn & 1)
      : "memory");
}

// In place of the fence: how a kernel does without it, to be timed. The emulation takes it for the fence.
__device__ __forceinline__ void fence_proxy_async_left_out() {
  asm volatile("" ::: "memory");
}

// Barriers 1 to 15 of the block (__syncthreads is 0), each for `threads` threads, a multiple of 32: those
// that wait for it and those that only arrive. All that these did before is then seen by those that waited.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A thread of this warpgroup has `count` registers from here on, a multiple of 8 from 24 to 256: fewer than
// before, which others can take, or more, for which it waits. The kernel's __launch_bounds__ name the block's
// threads and 1 block.
template <int count> __device__ __forceinline__ void registers_release() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> __device__ __forceinline__ void registers_take() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256, "what setmaxnreg takes");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

#endif
