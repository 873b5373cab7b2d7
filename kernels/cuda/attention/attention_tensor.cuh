// Shared by the tensor-core attention kernels: tiles of bf16 rows in shared memory and gemms of them.
//
// A tile has rows of WIDTH elements (the head dimension padded to 64 or 128 with zeros). Chunks of 8 elements
// are swizzled, chunk c of row r at c ^ (r % 8), so that neither cp.async's writes nor ldmatrix's reads of
// eight rows meet in a bank. Tiles start on 256 bytes. Fragments are ptx.cuh's.
#pragma once

#include "kernels/cuda/attention/attention_blocks.cuh"

#include <math.h>

constexpr float log2_e = 1.44269504088896340736f;
constexpr int chunk_numel = 8; // 16 bytes

template <int WIDTH> __device__ __forceinline__ int tile_at(int row, int chunk) {
  return row * WIDTH + ((chunk ^ (row & 7)) * chunk_numel);
}

// Starts copying ROWS rows of D <= WIDTH elements, `stride` apart; rows from `valid` on and columns from D on
// are zeros. By THREADS threads; D is a multiple of 8.
template <int WIDTH, int ROWS, int THREADS>
__device__ __forceinline__ void copy_tile(const smem<bf16> &tile, const bf16 *source, int stride, int valid,
                                          int D) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = THREADS / chunks;
  static_assert(THREADS % chunks == 0 && ROWS % rows_at_once == 0, "each thread copies one column of chunks");
  const int chunk = int(threadIdx.x) % chunks, first = int(threadIdx.x) / chunks;
  const bool has_column = chunk * chunk_numel < D;
  const bf16 *at = source + int64_t(first) * stride + chunk * chunk_numel;
#pragma unroll
  for (int i = 0; i < ROWS / rows_at_once; i++) {
    const int row = first + i * rows_at_once;
    cp_async16(tile.address(tile_at<WIDTH>(row, chunk)), at, has_column && row < valid);
    at += int64_t(rows_at_once) * stride;
  }
}

// As copy_tile for rows row_of(0) to row_of(valid - 1) of `source`.
template <int WIDTH, int ROWS, int THREADS, class Rows>
__device__ __forceinline__ void copy_mapped_tile(const smem<bf16> &tile, const bf16 *source, int stride,
                                                 int valid, int D, const Rows &row_of) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = THREADS / chunks;
  static_assert(THREADS % chunks == 0 && ROWS % rows_at_once == 0, "each thread copies one column of chunks");
  const int chunk = int(threadIdx.x) % chunks, first = int(threadIdx.x) / chunks;
  const bool has_column = chunk * chunk_numel < D;
#pragma unroll 1 // rarely run
  for (int i = 0; i < ROWS / rows_at_once; i++) {
    const int row = first + i * rows_at_once;
    const bool exists = has_column && row < valid;
    const bf16 *at = exists ? source + int64_t(row_of(row)) * stride + chunk * chunk_numel : source;
    cp_async16(tile.address(tile_at<WIDTH>(row, chunk)), at, exists);
  }
}

// MAPPED: rows are those of the maps. Else they follow one another, queries and keys alike, and positions are
// in order: there is nothing to look up. A mapped tile whose rows follow one another is copied as it is;
// rows of a tile that a piece or a chunk ends in are looked up one by one.
//
// Starts copying a range's rows of q, or of o or d_o, to a tile of ROWS.
template <bool MAPPED, int WIDTH, int ROWS, int THREADS>
__device__ __forceinline__ void copy_queries(const smem<bf16> &tile, const bf16 *source, int stride,
                                             const attention_shape &s, int b, const query_range &at) {
  int first = b * s.T + at.index;
  if constexpr (MAPPED) {
    if (at.index + run_of(s.queries, at.index) < least(at.index + ROWS, at.end)) {
      copy_mapped_tile<WIDTH, ROWS, THREADS>(tile, source, stride, at.end - at.index, s.D,
                                             [&](int i) { return row_of(s.queries, b, at.index + i); });
      return;
    }
    first = row_of(s.queries, b, at.index);
  }
  copy_tile<WIDTH, ROWS, THREADS>(tile, source + int64_t(first) * stride, stride, at.end - at.index, s.D);
}

// Where a walk over keys is: those from its last tile's first on and below `end` lie in rows key + shift.
struct key_run {
  int end = 0, shift = 0;
};

// Moves the walk to the tile of ROWS keys from `key` on, which is not before its last one.
template <bool MAPPED, int ROWS>
__device__ __forceinline__ void move_to(const attention_shape &s, int b, int key, key_run *run) {
  if (!MAPPED || least(key + ROWS, s.S) <= run->end) return;
  run->end = key + run_of(s.keys, key);
  run->shift = key_row(s.keys, b, key) - key;
}

// The rows of k or v of the walk's tile, which begins at key `key`.
template <bool MAPPED, int WIDTH, int ROWS, int THREADS>
__device__ __forceinline__ void copy_keys(const smem<bf16> &tile, const bf16 *source,
                                          const attention_shape &s, int b, int key, const key_run &run) {
  int first = b * s.S + key;
  if constexpr (MAPPED) {
    if (least(key + ROWS, s.S) > run.end) {
      copy_mapped_tile<WIDTH, ROWS, THREADS>(tile, source, s.kv_width, s.S - key, s.D,
                                             [&](int i) { return key_row(s.keys, b, key + i); });
      return;
    }
    first = key + run.shift;
  }
  copy_tile<WIDTH, ROWS, THREADS>(tile, source + int64_t(first) * s.kv_width, s.kv_width, s.S - key, s.D);
}

// The shared address from which this lane reads for ldmatrix, of column 0; at_column() moves it along the
// row, and whole rows are added in bytes. A swizzled row is aligned to its length, so moving along it is an
// exclusive or.
//
// As a fragment: rows [row, row + 16) of the tile.
template <int WIDTH> __device__ __forceinline__ uint32_t lanes_of_a(const smem<bf16> &tile, int row) {
  const int lane = int(threadIdx.x) % warp_lanes;
  return tile.address(tile_at<WIDTH>(row + lane % 16, lane / 16));
}
// As b fragments of the tile's transpose (ldmatrix): columns n of b are rows [row, row + 16) of the tile;
// b[0] b[1] for the first eight, b[2] b[3] for the others.
template <int WIDTH>
__device__ __forceinline__ uint32_t lanes_of_b_transposed(const smem<bf16> &tile, int row) {
  const int lane = int(threadIdx.x) % warp_lanes;
  return tile.address(tile_at<WIDTH>(row + lane % 8 + lane / 16 * 8, lane / 8 % 2));
}
// As b fragments of the tile as it lies (ldmatrix.trans): rows k of b are rows [row, row + 16) of the tile;
// b[0] b[1] for the first eight columns, b[2] b[3] for the others.
template <int WIDTH> __device__ __forceinline__ uint32_t lanes_of_b(const smem<bf16> &tile, int row) {
  return lanes_of_a<WIDTH>(tile, row);
}
// 16 columns are two chunks of 16 bytes.
__device__ __forceinline__ uint32_t at_column(uint32_t lanes, int step) {
  return lanes ^ uint32_t(step * 32);
}

// d[m][n] = rows 16 m of `left` (lanes_of_a) times the transpose of rows 8 n of `right`
// (lanes_of_b_transposed), over WIDTH columns.
template <int WIDTH, int M, int N>
__device__ __forceinline__ void multiply_rows(uint32_t left, uint32_t right, float (&d)[M][N][4]) {
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) d[m][n][i] = 0;
#pragma unroll
  for (int step = 0; step < WIDTH / 16; step++) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) ldmatrix_x4(a[m], at_column(left, step) + uint32_t(m * 16 * WIDTH * 2));
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, at_column(right, step) + uint32_t(n * 8 * WIDTH * 2));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma_m16n8k16(d[m][n], a[m], b[0], b[1]);
        mma_m16n8k16(d[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Hides scores of rows r and columns c of a warp's tile: to the right those with offset + c > r, to the left
// those with offset + c <= r.
template <bool RIGHT, int M, int N>
__device__ __forceinline__ void hide(float (&scores)[M][N][4], int offset) {
  const int lane = int(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = offset + n * 8 + lane % 4 * 2 + i % 2, row = m * 16 + lane / 4 + i / 2 * 8;
        if ((column > row) == RIGHT) scores[m][n][i] = -INFINITY;
      }
}
template <int M, int N> __device__ __forceinline__ void hide_right(float (&scores)[M][N][4], int offset) {
  hide<true>(scores, offset);
}
template <int M, int N> __device__ __forceinline__ void hide_left(float (&scores)[M][N][4], int offset) {
  hide<false>(scores, offset);
}

// The first keys that a thread's queries see, by window and document: of rows g and g + 8 of each of M tiles
// of 16; and those of the warp's first and last row. Rows past the range's last one see what that does.
template <int M> struct first_keys { int of[M][2], first, last; };
// Of a warp with rows `row` to row + 16 M - 1 of a block's range.
template <int M>
__device__ __forceinline__ first_keys<M> first_keys_of(const attention_shape &s, int b,
                                                       const query_range &own, int row) {
  const int lane = int(threadIdx.x) % warp_lanes, last = own.end - own.index - 1;
  first_keys<M> low;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      low.of[m][half] = low_of<true>(s, b, own.position + least(row + m * 16 + lane / 4 + half * 8, last));
  low.first = __shfl_sync(whole_warp, low.of[0][0], 0);
  low.last = __shfl_sync(whole_warp, low.of[M - 1][1], warp_lanes - 1);
  return low;
}

// Hides the scores of the tile of keys from `key` on that lie before a row's first key.
template <int M, int N>
__device__ __forceinline__ void hide_before(float (&scores)[M][N][4], const first_keys<M> &low, int key) {
  if (key >= low.last) return;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int hidden = low.of[m][half] - key - int(threadIdx.x) % 4 * 2; // of this thread's columns
#pragma unroll
      for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          if (n * 8 + i < hidden) scores[m][n][2 * half + i] = -INFINITY;
    }
}

// Of transposed scores, a warp's 16 keys from `key` on and a tile of 8 N queries: hides those of queries
// whose first key, in `low`, comes after the key.
template <int N>
__device__ __forceinline__ void hide_from_queries(float (&scores)[1][N][4], const smem<int> &low, int key) {
  if (low[8 * N - 1] <= key) return;
  const smem<int2> pairs = low.part<int2>(0, 4 * N);
  const int own = key + int(threadIdx.x) % warp_lanes / 4;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int2 pair = pairs[n * 4 + int(threadIdx.x) % 4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      if ((i % 2 == 0 ? pair.x : pair.y) > own + i / 2 * 8) scores[0][n][i] = -INFINITY;
  }
}

// A query of a tile as blocks of keys read it; queries past the last have zeros, so that P = 1 meets d_O = 0,
// and the last one's first key.
struct query_statistics {
  float lse = 0, delta = 0; // lse in units of ln 2
  int low = 0;              // its first key; with DOCUMENTS alone
};
template <bool DOCUMENTS>
__device__ __forceinline__ query_statistics statistics_of(const attention_gradient<bf16> &p, int b, int head,
                                                          const query_range &at, int i) {
  query_statistics own;
  const int index = at.index + i, last = at.end - 1;
  if constexpr (DOCUMENTS) own.low = low_of<true>(p.shape, b, at.position + least(index, last) - at.index);
  if (index > last) return own;
  own.lse = log2_e * global_load(p.lse + statistic_at(p.shape, b, head, index));
  own.delta = global_load(p.delta + statistic_at(p.shape, b, head, index));
  return own;
}

// The a fragment that two neighbouring results of a product make: columns [16 step, 16 step + 16) of d.
template <int N>
__device__ __forceinline__ void round_to_a(const float (&d)[N][4], int step, uint32_t (&a)[4]) {
  a[0] = pack_bf16(d[2 * step][0], d[2 * step][1]);
  a[1] = pack_bf16(d[2 * step][2], d[2 * step][3]);
  a[2] = pack_bf16(d[2 * step + 1][0], d[2 * step + 1][1]);
  a[3] = pack_bf16(d[2 * step + 1][2], d[2 * step + 1][3]);
}

// out[m] (16, WIDTH) += weights[m] (16, 8 N) rounded to bf16, times the tile (8 N rows, WIDTH) of lanes_of_b.
template <int WIDTH, int M, int N>
__device__ __forceinline__ void add_product(const float (&weights)[M][N][4], uint32_t tile,
                                            float (&out)[M][WIDTH / 8][4]) {
#pragma unroll
  for (int step = 0; step < N / 2; step++) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) round_to_a(weights[m], step, a[m]);
#pragma unroll
    for (int pair = 0; pair < WIDTH / 16; pair++) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, at_column(tile, pair) + uint32_t(step * 16 * WIDTH * 2));
#pragma unroll
      for (int m = 0; m < M; m++) {
        mma_m16n8k16(out[m][2 * pair], a[m], b[0], b[1]);
        mma_m16n8k16(out[m][2 * pair + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Rounds 16 rows of results, row g times factor[0] and row g + 8 times factor[1], and stores the first D
// columns of the rows below `valid` in 16-byte accesses, row i as row row_of(i) of `destination`. They go
// through `tile` rows [row, row + 16), which belong to this warp alone.
template <int WIDTH, class Rows>
__device__ __forceinline__ void store_rows(const smem<bf16> &tile, int row, const float (&d)[WIDTH / 8][4],
                                           const float (&factor)[2], bf16 *destination, int stride, int valid,
                                           int D, const Rows &row_of) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = warp_lanes / chunks;
  const int lane = int(threadIdx.x) % warp_lanes, g = lane / 4, t = lane % 4;
  const smem<uint32_t> words = tile.template part<uint32_t>(row * WIDTH * 2, 16 * WIDTH / 2);
  __syncwarp(); // all reads of the tile are done
#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++) {
    words[tile_at<WIDTH>(g, n) / 2 + t] = pack_bf16(d[n][0] * factor[0], d[n][1] * factor[0]);
    words[tile_at<WIDTH>(g + 8, n) / 2 + t] = pack_bf16(d[n][2] * factor[1], d[n][3] * factor[1]);
  }
  __syncwarp();
  const smem<uint4> whole = tile.template part<uint4>(row * WIDTH * 2, 16 * WIDTH / 8);
  const int chunk = lane % chunks;
#pragma unroll
  for (int i = 0; i < 16; i += rows_at_once) {
    const int at = i + lane / chunks;
    if (at < valid && chunk * chunk_numel < D)
      global_store(
          reinterpret_cast<uint4 *>(destination + int64_t(row_of(at)) * stride + chunk * chunk_numel),
          uint4(whole[tile_at<WIDTH>(at, chunk) / 8]));
  }
}
template <bool MAPPED, int WIDTH>
__device__ __forceinline__ void store_queries(const smem<bf16> &tile, int row, const float (&d)[WIDTH / 8][4],
                                              const float (&factor)[2], bf16 *destination, int stride,
                                              const attention_shape &s, int b, int index, int end) {
  if constexpr (MAPPED) {
    store_rows<WIDTH>(tile, row, d, factor, destination, stride, end - index, s.D,
                      [&](int i) { return row_of(s.queries, b, index + i); });
  } else {
    store_rows<WIDTH>(tile, row, d, factor, destination + int64_t(b * s.T + index) * stride, stride,
                      end - index, s.D, [](int i) { return i; });
  }
}
template <bool MAPPED, int WIDTH>
__device__ __forceinline__ void store_keys(const smem<bf16> &tile, int row, const float (&d)[WIDTH / 8][4],
                                           const float (&factor)[2], bf16 *destination,
                                           const attention_shape &s, int b, int key) {
  if constexpr (MAPPED) {
    store_rows<WIDTH>(tile, row, d, factor, destination, s.kv_width, s.S - key, s.D,
                      [&](int i) { return key_row(s.keys, b, key + i); });
  } else {
    store_rows<WIDTH>(tile, row, d, factor, destination + int64_t(b * s.S + key) * s.kv_width, s.kv_width,
                      s.S - key, s.D, [](int i) { return i; });
  }
}

// sin(x) and cos(x), within 1e-6 for the angles of positions below 2^20.
__device__ __forceinline__ void sine_and_cosine(float x, float *sine, float *cosine) {
  constexpr float turn = 6.28318530717958647692f, turn_rest = -1.74845560e-7f; // 2 pi in two parts
  const float turns = rintf(x * (1.0f / turn));
  x = fmaf(-turns, turn_rest, fmaf(-turns, turn, x));
  *sine = sin_approx(x);
  *cosine = cos_approx(x);
}

// Rotates 16 rows of a sequence's results back, of which the first has `position`, and the last that exists
// at most `last`: rope.cu's rotation, of a thread's own elements i and i + WIDTH / 2.
template <bool DOCUMENTS, int WIDTH>
__device__ __forceinline__ void rotate_back(const attention_gradient<bf16> &p, float (&d)[WIDTH / 8][4],
                                            int sequence, int position, int last) {
  const int lane = int(threadIdx.x) % warp_lanes;
  int at[2] = {position + lane / 4, position + lane / 4 + 8};
  if constexpr (DOCUMENTS) {
#pragma unroll
    for (int half = 0; half < 2; half++) at[half] -= start_of(p.shape, sequence, least(at[half], last));
  }
#pragma unroll
  for (int n = 0; n < WIDTH / 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float frequency = p.inv_freq[n * 8 + lane % 4 * 2 + i % 2];
      const float a = d[n][i], b = d[n + WIDTH / 16][i];
      float sine, cosine;
      sine_and_cosine(float(at[i / 2]) * frequency, &sine, &cosine);
      d[n][i] = a * cosine + b * sine;
      d[n + WIDTH / 16][i] = b * cosine - a * sine;
    }
}

// Of 16 rows of results, times `factor`, the first D columns of the rows below `valid`: row i goes to row
// row_of(i) of `destination`, in 16-byte accesses. Of two neighbouring tiles of 8 columns, a lane and the one
// beside it take one each.
template <int WIDTH, class Rows>
__device__ __forceinline__ void store_part_rows(const float (&d)[WIDTH / 8][4], float factor,
                                                float *destination, int stride, int valid, int D,
                                                const Rows &row_of) {
  const int lane = int(threadIdx.x) % warp_lanes, t = lane % 4;
  const bool odd = t % 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int row = lane / 4 + half * 8;
    float *at = destination + int64_t(row < valid ? row_of(row) : 0) * stride + t / 2 * 4;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n += 2) {
      const float x = factor * d[n][2 * half], y = factor * d[n][2 * half + 1];
      const float z = factor * d[n + 1][2 * half], w = factor * d[n + 1][2 * half + 1];
      const float other_x = __shfl_xor_sync(whole_warp, odd ? x : z, 1);
      const float other_y = __shfl_xor_sync(whole_warp, odd ? y : w, 1);
      const int column = odd ? (n + 1) * 8 : n * 8;
      if (row < valid && column < D)
        global_store(reinterpret_cast<float4 *>(at + column),
                     odd ? float4{other_x, other_y, z, w} : float4{x, y, other_x, other_y});
    }
  }
}

// The block's part of d_k and d_v of the warp's 16 keys from `key` on.
template <bool MAPPED, int WIDTH>
__device__ __forceinline__ void store_parts(const attention_gradient<bf16> &p, const key_block &block,
                                            const float (&d_k)[WIDTH / 8][4],
                                            const float (&d_v)[WIDTH / 8][4], int key) {
  const attention_shape &s = p.shape;
  const int stride = 2 * s.K * s.D, rows = s.B * s.S;
  float *k = p.parts + int64_t(block.part) * rows * stride + block.head * s.D, *v = k + s.K * s.D;
  const auto row = [&](int i) {
    return MAPPED ? key_row(s.keys, block.b, key + i) : block.b * s.S + key + i;
  };
  store_part_rows<WIDTH>(d_v, 1.0f, v, stride, s.S - key, s.D, row);
  store_part_rows<WIDTH>(d_k, s.scale, k, stride, s.S - key, s.D, row);
}
