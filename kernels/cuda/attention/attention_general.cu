// Attention that the tensor-core kernels do not support: fp32, head dimensions up to 256 that are not a
// multiple of 8 or exceed 128, and dropout of probabilities. Tiles lie in shared memory as fp32; sums are
// plain fp32. See attention.cuh.
//
// A block has ROWS rows of its result (queries, or keys for d_k and d_v), with eight neighbouring threads per
// row. Each thread computes every eighth of the row's scores with a tile, and accumulates every eighth column
// of the result. Separate kernels compute d_q and d_k, d_v; one thread computes each element, in a fixed
// order.
#include "kernels/cuda/attention/attention_blocks.cuh"
#include "runtime/base/random_math.h"

#include <float.h>
#include <math.h>
#include <type_traits>

namespace {

constexpr int threads_count = 128;
constexpr int rows = 16;
constexpr int sharers = threads_count / rows; // of a row: lanes 8i to 8i + 7 of one warp

// Most columns of the result that a thread has (D <= 8 * COLUMNS), and what of the other side a tile holds.
template <int COLUMNS> constexpr int tile_rows = COLUMNS <= 16 ? 32 : 16;

// Rows of tiles are an odd number of words apart, so that eight threads read eight banks.
__device__ __host__ inline int row_stride(int D) {
  return D | 1;
}

// Rows 0 to `valid` - 1 of the tile are rows row_of(i) of `source`, times `factor`; those up to `count` are
// zeros. A warp copies a row at a time.
template <class T, class Rows>
__device__ __forceinline__ void load_tile(const smem<float> &tile, int count, const T *source, int stride,
                                          int valid, int D, float factor, const Rows &row_of) {
  for (int row = int(threadIdx.x) / warp_lanes; row < count; row += threads_count / warp_lanes) {
    const T *at = row < valid ? source + int64_t(row_of(row)) * stride : source;
    for (int c = int(threadIdx.x) % warp_lanes; c < D; c += warp_lanes)
      tile[row * row_stride(D) + c] = row < valid ? factor * to_float(global_load(at + c)) : 0.0f;
  }
}
template <class T>
__device__ __forceinline__ void load_queries(const smem<float> &tile, int count, const T *source, int stride,
                                             const attention_shape &s, int b, const query_range &at,
                                             float factor) {
  load_tile(tile, count, source, stride, least(count, at.end - at.index), s.D, factor,
            [&](int i) { return row_of(s.queries, b, at.index + i); });
}
template <class T>
__device__ __forceinline__ void load_keys(const smem<float> &tile, int count, const T *source,
                                          const attention_shape &s, int b, int key) {
  load_tile(tile, count, source, s.kv_width, least(count, s.S - key), s.D, 1.0f,
            [&](int i) { return key_row(s.keys, b, key + i); });
}

// dots[i] = a[a_row] . b[first + sharers * i].
template <int COUNT>
__device__ __forceinline__ void dot_rows(const smem<float> &a, int a_row, const smem<float> &b, int first,
                                         int D, float (&dots)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) dots[i] = 0;
  for (int d = 0; d < D; d++) {
    const float x = a[a_row * row_stride(D) + d];
#pragma unroll
    for (int i = 0; i < COUNT; i++) dots[i] += x * b[(first + sharers * i) * row_stride(D) + d];
  }
}

// sums[j] += weights[row][k] * tile[k][lane + 8 j] over the tile's rows.
template <int COLUMNS, int COUNT>
__device__ __forceinline__ void add_rows(const smem<float> &weights, int row, const smem<float> &tile,
                                         int lane, int D, float (&sums)[COLUMNS]) {
  for (int k = 0; k < COUNT; k++) {
    const float weight = weights[row * (COUNT + 1) + k];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
      if (lane + sharers * j < D) sums[j] += weight * tile[k * row_stride(D) + lane + sharers * j];
  }
}

template <class T, int COLUMNS>
__device__ __forceinline__ void store_row(T *destination, int lane, int D, float factor,
                                          const float (&sums)[COLUMNS]) {
#pragma unroll
  for (int j = 0; j < COLUMNS; j++)
    if (lane + sharers * j < D)
      global_store(destination + lane + sharers * j, from_float<T>(factor * sums[j]));
}

// The first key that a range's query sees; queries past the last see what the last does.
__device__ __forceinline__ int low_at(const attention_shape &s, int b, const query_range &at, int query) {
  const int position = at.position + least(query, at.end - at.index - 1);
  return s.starts ? low_of<true>(s, b, position) : low_of<false>(s, b, position);
}

// The draws of a query's row for a head.
struct row_draws {
  uint64_t key;
  int head;
  bool drops; // some rows drop nothing
};
__device__ __forceinline__ row_draws draws_of(const attention_shape &s, int b, int head, int index) {
  const int *words = s.drop.draws + int64_t(FSDP_DROPOUT_WORDS) * row_of(s.queries, b, index);
  const int first = global_load(words), second = global_load(words + 1), group = head / s.G;
  return {fsdp_dropout_key(s.drop.op, first, second),
          s.drop.first_head + group * s.drop.head_group + head - group * s.G, first != 0};
}

// What the probability of the key at a position is multiplied by.
__device__ __forceinline__ float drop_factor(const attention_shape &s, const row_draws &row, int position) {
  uint32_t words[FSDP_DROPOUT_COLUMNS];
  if (!row.drops) return 1.0f;
  fsdp_dropout_words(row.key, row.head, position / FSDP_DROPOUT_COLUMNS, words);
  const int column = position % FSDP_DROPOUT_COLUMNS;
  const uint32_t low = column & 1 ? words[1] : words[0], high = column & 1 ? words[3] : words[2];
  return (column & 2 ? high : low) < s.drop.limit ? 0.0f : s.drop.scale;
}

// The greatest or the sum over the threads of a row.
__device__ __forceinline__ float row_greatest(float x) {
#pragma unroll
  for (int bits = sharers / 2; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(whole_warp, x, bits));
  return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int bits = sharers / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(whole_warp, x, bits);
  return x;
}

// The tiles of a block in dynamic shared memory: `own` tiles of the block's rows, `other` tiles of the other
// side's, and `weights` matrices (rows, other side's tile).
template <int COLUMNS> size_t shared_bytes(int D, int own, int other, int weights) {
  const int tile = tile_rows<COLUMNS>;
  return sizeof(float) * size_t((own * rows + other * tile) * row_stride(D) + weights * rows * (tile + 1));
}
struct tiles {
  smem<float> own[2], other[2], weights[2];
};
template <int COLUMNS> __device__ __forceinline__ tiles cut_shared(int D, int own, int other, int weights) {
  FSDP_SHARED_DYNAMIC(bytes);
  const int own_numel = rows * row_stride(D), other_numel = tile_rows<COLUMNS> * row_stride(D);
  const int weight_numel = rows * (tile_rows<COLUMNS> + 1);
  tiles t;
  int at = 0;
  for (int i = 0; i < own; i++, at += own_numel * 4) t.own[i] = bytes.part<float>(at, own_numel);
  for (int i = 0; i < other; i++, at += other_numel * 4) t.other[i] = bytes.part<float>(at, other_numel);
  for (int i = 0; i < weights; i++, at += weight_numel * 4)
    t.weights[i] = bytes.part<float>(at, weight_numel);
  return t;
}

template <class T, int COLUMNS, bool DROPS>
__global__ void __launch_bounds__(threads_count, COLUMNS <= 16 && !DROPS ? 6 : 2)
    attend(attention_forward<T> p) {
  constexpr int keys = tile_rows<COLUMNS>, count = keys / sharers;
  const attention_shape &s = p.shape;
  const query_block block = query_block_at<rows>(s, int(blockIdx.x), block_row());
  if (block.tile < 0) return;
  const int b = block.b, head = block.head, kv = head / s.G * s.D;
  const query_range own = query_tile<rows>(s, block.tile);
  const int valid = least(rows, own.end - own.index);
  const int row = int(threadIdx.x) / sharers, lane = int(threadIdx.x) % sharers;
  const tiles t = cut_shared<COLUMNS>(s.D, 1, 2, 1);
  load_queries(t.own[0], rows, p.q + head * s.D, s.Q, s, b, own, s.scale);
  // The maximum is finite even if a tile hides all its keys from the row.
  float out[COLUMNS] = {}, most = -FLT_MAX, sum = 0;
  const int low = low_at(s, b, own, row);
  row_draws draws = {};
  if (DROPS && row < valid) draws = draws_of(s, b, head, own.index + row);
  for (int key = first_tile<keys>(low_at(s, b, own, 0)); key < own.position + valid; key += keys) {
    __syncthreads(); // all reads of the previous tile are done
    load_keys(t.other[0], keys, p.k + kv, s, b, key);
    load_keys(t.other[1], keys, p.v + kv, s, b, key);
    __syncthreads();
    float scores[count], greatest = most, added = 0;
    dot_rows(t.own[0], row, t.other[0], lane, s.D, scores);
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int at = key + lane + sharers * i;
      if (at < low || at > own.position + row) scores[i] = -INFINITY;
      greatest = fmaxf(greatest, scores[i]);
    }
    greatest = row_greatest(greatest);
    const float correction = expf(most - greatest);
#pragma unroll
    for (int i = 0; i < count; i++) {
      scores[i] = expf(scores[i] - greatest);
      added += scores[i]; // of all: what the values are weighed by is dropped behind the sum
      if constexpr (DROPS) scores[i] *= drop_factor(s, draws, key + lane + sharers * i);
      t.weights[0][row * (keys + 1) + lane + sharers * i] = scores[i];
    }
    sum = sum * correction + row_sum(added);
    most = greatest;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) out[j] *= correction;
    __syncwarp();
    add_rows<COLUMNS, keys>(t.weights[0], row, t.other[1], lane, s.D, out);
  }
  if (row >= valid) return;
  const int index = own.index + row;
  store_row(p.o + int64_t(row_of(s.queries, b, index)) * (s.H * s.D) + head * s.D, lane, s.D, 1.0f / sum,
            out);
  if (lane == 0) global_store(p.lse + statistic_at(s, b, head, index), most + logf(sum));
}

// d_q = scale * sum over keys of d_S k, with d_S = P * (d_o . v - delta), P = exp(S - lse). With dropout's
// factors M: d_S = P * (M * d_o . v - delta), and d_v of M * P.
template <class T, int COLUMNS, bool DROPS>
__global__ void __launch_bounds__(threads_count, 2) differentiate_queries(attention_gradient<T> p) {
  constexpr int keys = tile_rows<COLUMNS>, count = keys / sharers;
  const attention_shape &s = p.shape;
  const query_block block = query_block_at<rows>(s, int(blockIdx.x), block_row());
  if (block.tile < 0) return;
  const int b = block.b, head = block.head, kv = head / s.G * s.D;
  const query_range own = query_tile<rows>(s, block.tile);
  const int valid = least(rows, own.end - own.index);
  const int row = int(threadIdx.x) / sharers, lane = int(threadIdx.x) % sharers, index = own.index + row;
  const tiles t = cut_shared<COLUMNS>(s.D, 2, 2, 1);
  load_queries(t.own[0], rows, p.q + head * s.D, s.Q, s, b, own, s.scale);
  load_queries(t.own[1], rows, p.d_o + head * s.D, s.H * s.D, s, b, own, 1.0f);
  const bool exists = row < valid;
  const float lse = exists ? global_load(p.lse + statistic_at(s, b, head, index)) : 0.0f;
  const float delta = exists ? global_load(p.delta + statistic_at(s, b, head, index)) : 0.0f;
  float d_q[COLUMNS] = {};
  const int low = low_at(s, b, own, row);
  row_draws draws = {};
  if (DROPS && exists) draws = draws_of(s, b, head, index);
  for (int key = first_tile<keys>(low_at(s, b, own, 0)); key < own.position + valid; key += keys) {
    __syncthreads();
    load_keys(t.other[0], keys, p.k + kv, s, b, key);
    load_keys(t.other[1], keys, p.v + kv, s, b, key);
    __syncthreads();
    float scores[count], d_p[count];
    dot_rows(t.own[0], row, t.other[0], lane, s.D, scores);
    dot_rows(t.own[1], row, t.other[1], lane, s.D, d_p);
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int at = key + lane + sharers * i;
      const bool seen = at >= low && at <= own.position + row;
      if constexpr (DROPS) d_p[i] *= drop_factor(s, draws, at);
      t.weights[0][row * (keys + 1) + lane + sharers * i] =
          seen ? expf(scores[i] - lse) * (d_p[i] - delta) : 0.0f;
    }
    __syncwarp();
    add_rows<COLUMNS, keys>(t.weights[0], row, t.other[0], lane, s.D, d_q);
  }
  if (exists)
    store_row(p.d_q + int64_t(row_of(s.queries, b, index)) * s.Q + head * s.D, lane, s.D, s.scale, d_q);
}

// d_k = sum over queries of the group's heads of d_S q scale, d_v = the sum of P d_o. The block's rows are
// keys.
template <class T, int COLUMNS, bool DROPS>
__global__ void __launch_bounds__(threads_count, 2) differentiate_keys(attention_gradient<T> p) {
  constexpr int queries = tile_rows<COLUMNS>, count = queries / sharers;
  const attention_shape &s = p.shape;
  const key_block block = key_block_at<rows>(s, 1, int(blockIdx.x), block_row());
  if (block.first >= s.S) return;
  const int b = block.b, kv = block.head, first = block.first;
  const int row = int(threadIdx.x) / sharers, lane = int(threadIdx.x) % sharers;
  const tiles t = cut_shared<COLUMNS>(s.D, 2, 2, 2);
  load_keys(t.own[0], rows, p.k + kv * s.D, s, b, first);
  load_keys(t.own[1], rows, p.v + kv * s.D, s, b, first);
  const int tile_count = query_tiles<queries>(s);
  float d_k[COLUMNS] = {}, d_v[COLUMNS] = {};
  for (int head = kv * s.G; head < (kv + 1) * s.G; head++)
    for (int tile = 0; tile < tile_count; tile++) {
      const query_range at = query_tile<queries>(s, tile);
      // No query of the tile sees a key of the block.
      if (at.position + queries <= first || low_at(s, b, at, 0) > first + rows - 1) continue;
      __syncthreads();
      load_queries(t.other[0], queries, p.q + head * s.D, s.Q, s, b, at, s.scale);
      load_queries(t.other[1], queries, p.d_o + head * s.D, s.H * s.D, s, b, at, 1.0f);
      __syncthreads();
      float scores[count], d_p[count];
      dot_rows(t.own[0], row, t.other[0], lane, s.D, scores);
      dot_rows(t.own[1], row, t.other[1], lane, s.D, d_p);
#pragma unroll
      for (int i = 0; i < count; i++) {
        const int query = lane + sharers * i, at_weight = row * (queries + 1) + query, q = at.index + query;
        float weight = 0, d_s = 0;
        if (q < at.end && first + row <= at.position + query && first + row >= low_at(s, b, at, query)) {
          const float factor = DROPS ? drop_factor(s, draws_of(s, b, head, q), first + row) : 1.0f;
          weight = expf(scores[i] - global_load(p.lse + statistic_at(s, b, head, q)));
          d_s = weight * (factor * d_p[i] - global_load(p.delta + statistic_at(s, b, head, q)));
          weight *= factor;
        }
        t.weights[0][at_weight] = weight;
        t.weights[1][at_weight] = d_s;
      }
      __syncwarp();
      add_rows<COLUMNS, queries>(t.weights[0], row, t.other[1], lane, s.D, d_v);
      add_rows<COLUMNS, queries>(t.weights[1], row, t.other[0], lane, s.D, d_k);
    }
  if (first + row >= s.S) return;
  const int64_t at = int64_t(key_row(s.keys, b, first + row)) * s.kv_width + kv * s.D;
  store_row(p.d_k + at, lane, s.D, 1.0f, d_k);
  store_row(p.d_v + at, lane, s.D, 1.0f, d_v);
}

template <class T, int COLUMNS, bool DROPS>
void forward(const attention_forward<T> &p, launch_stream stream) {
  launch_shape shape = {int64_t(p.shape.B) * p.shape.H, threads_count, stream, query_tiles<rows>(p.shape),
                        shared_bytes<COLUMNS>(p.shape.D, 1, 2, 1)};
  launch(shape, attend<T, COLUMNS, DROPS>, p);
}

template <class T, int COLUMNS, bool DROPS>
void backward(const attention_gradient<T> &p, launch_stream stream) {
  launch_shape shape = {int64_t(p.shape.B) * p.shape.H, threads_count, stream, query_tiles<rows>(p.shape),
                        shared_bytes<COLUMNS>(p.shape.D, 2, 2, 1)};
  launch(shape, differentiate_queries<T, COLUMNS, DROPS>, p);
  shape.blocks = int64_t(p.shape.B) * p.shape.K;
  shape.rows = blocks_of(p.shape.S, rows);
  shape.shared_bytes = shared_bytes<COLUMNS>(p.shape.D, 2, 2, 2);
  launch(shape, differentiate_keys<T, COLUMNS, DROPS>, p);
}

// Calls what(most columns of a thread, whether probabilities are dropped) with constants.
template <class What> void with_shape(const attention_shape &s, const What &what) {
  using std::integral_constant;
  const bool narrow = s.D <= sharers * 16;
  const auto choose = [&](auto drops) {
    if (narrow) {
      what(integral_constant<int, 16>(), drops);
    } else {
      what(integral_constant<int, 32>(), drops);
    }
  };
  if (s.drop.draws) {
    choose(integral_constant<bool, true>());
  } else {
    choose(integral_constant<bool, false>());
  }
}

} // namespace

template <class T> void attention_general_forward(const attention_forward<T> &p, launch_stream stream) {
  with_shape(p.shape, [&](auto columns, auto drops) {
    forward<T, decltype(columns)::value, decltype(drops)::value>(p, stream);
  });
}

template <class T> void attention_general_backward(const attention_gradient<T> &p, launch_stream stream) {
  with_shape(p.shape, [&](auto columns, auto drops) {
    backward<T, decltype(columns)::value, decltype(drops)::value>(p, stream);
  });
}

template void attention_general_forward(const attention_forward<float> &p, launch_stream stream);
template void attention_general_forward(const attention_forward<bf16> &p, launch_stream stream);
template void attention_general_backward(const attention_gradient<float> &p, launch_stream stream);
template void attention_general_backward(const attention_gradient<bf16> &p, launch_stream stream);
