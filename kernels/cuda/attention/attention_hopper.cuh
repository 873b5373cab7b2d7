// Shared by the attention kernels of warpgroups: tiles as hopper.cuh's panels, and copies to and from them.
//
// A tile of ROWS rows of WIDTH elements (the head dimension padded to 64 or 128 with zeros) is WIDTH / 64
// panels of ROWS rows, one after the other.
#pragma once

#include "kernels/cuda/attention/attention_tensor.cuh"
#include "kernels/cuda/attention/hopper.cuh"

constexpr int warpgroup_threads = 128, warpgroup_rows = 64;

template <int ROWS> constexpr int panel_bytes = ROWS *panel_row_bytes;
template <int WIDTH, int ROWS> constexpr int tile_bytes = WIDTH / panel_columns *panel_bytes<ROWS>;

// Bytes from the start of a tile of ROWS rows to one of its elements.
template <int ROWS> __device__ __forceinline__ int element_at(int row, int column) {
  return column / panel_columns * panel_bytes<ROWS> + panel_at(row, column % panel_columns);
}

// The left factor, in registers, that a product's results make: the fragments of 16 columns each.
template <int N>
__device__ __forceinline__ void round_to_left(const float (&d)[N][4], uint32_t (&left)[N / 2][4]) {
#pragma unroll
  for (int step = 0; step < N / 2; step++) round_to_a(d, step, left[step]);
}

// Starts copying ROWS rows of D <= WIDTH elements, `stride` apart; rows from `valid` on and columns from D on
// are zeros. By THREADS threads, of which this is number `thread`; D is a multiple of 8.
template <int WIDTH, int ROWS, int THREADS>
__device__ __forceinline__ void copy_panels(const smem<bf16> &tile, const bf16 *source, int stride, int valid,
                                            int D, int thread) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = THREADS / chunks;
  static_assert(THREADS % chunks == 0 && ROWS % rows_at_once == 0, "each thread copies one column of chunks");
  static_assert(rows_at_once % 8 == 0, "each thread's chunks are swizzled alike");
  const int column = thread % chunks * chunk_numel, first = thread / chunks;
  const bf16 *at = source + int64_t(first) * stride + column;
  const int from = element_at<ROWS>(first, column) / 2;
  const int rows = column < D ? valid - first : 0;
#pragma unroll 4 // all at once, the compiler keeps an address of each in registers
  for (int i = 0; i < ROWS / rows_at_once; i++) {
    cp_async16(tile.address(from + i * rows_at_once * panel_columns), at, i * rows_at_once < rows);
    at += int64_t(rows_at_once) * stride;
  }
}

// As copy_panels for rows row_of(0) to row_of(valid - 1) of `source`.
template <int WIDTH, int ROWS, int THREADS, class Rows>
__device__ __forceinline__ void copy_mapped_panels(const smem<bf16> &tile, const bf16 *source, int stride,
                                                   int valid, int D, int thread, const Rows &row_of) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = THREADS / chunks;
  const int column = thread % chunks * chunk_numel, first = thread / chunks;
  const int from = element_at<ROWS>(first, column) / 2;
#pragma unroll 1 // rarely run
  for (int i = 0; i < ROWS / rows_at_once; i++) {
    const int row = first + i * rows_at_once;
    const bool exists = column < D && row < valid;
    const bf16 *at = exists ? source + int64_t(row_of(row)) * stride + column : source;
    cp_async16(tile.address(from + i * rows_at_once * panel_columns), at, exists);
  }
}

// As attention_tensor.cuh's copy_queries and copy_keys, to panels.
template <bool MAPPED, int WIDTH, int ROWS, int THREADS>
__device__ __forceinline__ void copy_query_panels(const smem<bf16> &tile, const bf16 *source, int stride,
                                                  const attention_shape &s, int b, const query_range &at,
                                                  int thread) {
  int first = b * s.T + at.index;
  if constexpr (MAPPED) {
    if (at.index + run_of(s.queries, at.index) < least(at.index + ROWS, at.end)) {
      copy_mapped_panels<WIDTH, ROWS, THREADS>(tile, source, stride, at.end - at.index, s.D, thread,
                                               [&](int i) { return row_of(s.queries, b, at.index + i); });
      return;
    }
    first = row_of(s.queries, b, at.index);
  }
  copy_panels<WIDTH, ROWS, THREADS>(tile, source + int64_t(first) * stride, stride, at.end - at.index, s.D,
                                    thread);
}
template <bool MAPPED, int WIDTH, int ROWS, int THREADS>
__device__ __forceinline__ void copy_key_panels(const smem<bf16> &tile, const bf16 *source,
                                                const attention_shape &s, int b, int key, const key_run &run,
                                                int thread) {
  int first = b * s.S + key;
  if constexpr (MAPPED) {
    if (least(key + ROWS, s.S) > run.end) {
      copy_mapped_panels<WIDTH, ROWS, THREADS>(tile, source, s.kv_width, s.S - key, s.D, thread,
                                               [&](int i) { return key_row(s.keys, b, key + i); });
      return;
    }
    first = key + run.shift;
  }
  copy_panels<WIDTH, ROWS, THREADS>(tile, source + int64_t(first) * s.kv_width, s.kv_width, s.S - key, s.D,
                                    thread);
}

// Of a warpgroup that copies: the tile that was copied last, at whose barriers (one for each warpgroup that
// computes, from `full` on) this thread has yet to arrive; 0: none.
struct copy_in_progress {
  int full;
};

// Another tile's copies have started. The one before has arrived when at most `groups_left` are in progress.
template <int CONSUMERS, int groups_left, bool FENCED = true>
__device__ __forceinline__ void announce(copy_in_progress *copy, int next_full) {
  cp_async_wait<groups_left>();
  if (copy->full != 0) {
    if constexpr (FENCED) {
      fence_proxy_async();
    } else {
      fence_proxy_async_left_out();
    }
#pragma unroll
    for (int i = 0; i < CONSUMERS; i++) named_barrier_arrive(copy->full + i, 2 * warpgroup_threads);
  }
  copy->full = next_full;
}

// Starts d (64, N) = or += a (64, K) b (K, N): factors in shared memory, of panels of A_ROWS and B_ROWS rows.
template <major A, major B, int K, int A_ROWS, int B_ROWS, int TILES>
__device__ __forceinline__ void start_product(float (&d)[TILES][4], uint64_t a, uint64_t b, bool accumulate) {
#pragma unroll
  for (int step = 0; step < K / 16; step++)
    wgmma<A, B>(d, advance(a, step_bytes<A>(step, panel_bytes<A_ROWS>)),
                advance(b, step_bytes<B>(step, panel_bytes<B_ROWS>)), accumulate || step > 0);
}
// As this, with a in registers.
template <major B, int B_ROWS, int STEPS, int TILES>
__device__ __forceinline__ void start_product(float (&d)[TILES][4], const uint32_t (&a)[STEPS][4], uint64_t b,
                                              bool accumulate) {
#pragma unroll
  for (int step = 0; step < STEPS; step++)
    wgmma<B>(d, a[step], advance(b, step_bytes<B>(step, panel_bytes<B_ROWS>)), accumulate || step > 0);
}

// Rounds a warp's 16 rows of results, row g times factor[0] and row g + 8 times factor[1], and stores the
// first D columns of the rows below `valid` in 16-byte accesses, row i as row row_of(i) of `destination`.
// They go through rows [row, row + 16) of a tile of ROWS, which belong to this warp alone: their earlier
// readers are done.
template <int WIDTH, int ROWS, class Rows>
__device__ __forceinline__ void
store_panel_rows(const smem<bf16> &tile, int row, const float (&d)[WIDTH / 8][4], const float (&factor)[2],
                 bf16 *destination, int stride, int valid, int D, const Rows &row_of) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = warp_lanes / chunks;
  constexpr int numel = tile_bytes<WIDTH, ROWS> / 2;
  const int lane = int(threadIdx.x) % warp_lanes, g = lane / 4, t = lane % 4;
  const smem<uint32_t> words = tile.template part<uint32_t>(0, numel / 2);
#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      words[element_at<ROWS>(row + g + half * 8, n * 8) / 4 + t] =
          pack_bf16(d[n][2 * half] * factor[half], d[n][2 * half + 1] * factor[half]);
  __syncwarp();
  const smem<uint4> whole = tile.template part<uint4>(0, numel / 8);
  const int column = lane % chunks * chunk_numel;
#pragma unroll
  for (int i = 0; i < 16; i += rows_at_once) {
    const int at = i + lane / chunks;
    if (at < valid && column < D)
      global_store(reinterpret_cast<uint4 *>(destination + int64_t(row_of(at)) * stride + column),
                   uint4(whole[element_at<ROWS>(row + at, column) / 16]));
  }
}
template <bool MAPPED, int WIDTH, int ROWS>
__device__ __forceinline__ void
store_query_rows(const smem<bf16> &tile, int row, const float (&d)[WIDTH / 8][4], const float (&factor)[2],
                 bf16 *destination, int stride, const attention_shape &s, int b, int index, int end) {
  if constexpr (MAPPED) {
    store_panel_rows<WIDTH, ROWS>(tile, row, d, factor, destination, stride, end - index, s.D,
                                  [&](int i) { return row_of(s.queries, b, index + i); });
  } else {
    store_panel_rows<WIDTH, ROWS>(tile, row, d, factor, destination + int64_t(b * s.T + index) * stride,
                                  stride, end - index, s.D, [](int i) { return i; });
  }
}
