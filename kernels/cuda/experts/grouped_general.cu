// Products grouped by expert that the tensor-core kernels do not support: fp32, and dimensions that are no
// multiples of 8. A block has 64 x 64 of the result and a thread 4 x 4; both factors' tiles of a step of 16
// lie in shared memory as fp32, depth first. See grouped.cuh.
#include "kernels/cuda/experts/grouped.cuh"

namespace {

constexpr int threads_count = 256, tile = 64, tile_depth = 16, side = 4;
constexpr int lanes_count = tile / side; // of threads, along each side of the result
constexpr int tile_stride = tile + 1;

// sums += left right over `depth`: left(row, k) and right(k, column) are elements of the block's tiles, zero
// beyond their ends; each tells by its type along which of its indices its elements follow one another.
template <bool LEFT_BY_DEPTH, bool RIGHT_BY_DEPTH, class Left, class Right>
__device__ __forceinline__ void multiply(int depth, const Left &left, const Right &right,
                                         float (&sums)[side][side]) {
  FSDP_SHARED(float, lefts, tile_depth *tile_stride);
  FSDP_SHARED(float, rights, tile_depth *tile_stride);
  const int row = int(threadIdx.x) / lanes_count, column = int(threadIdx.x) % lanes_count;
  for (int at = 0; at < depth; at += tile_depth) {
    __syncthreads(); // all reads of the previous step are done
    for (int i = int(threadIdx.x); i < tile * tile_depth; i += threads_count) {
      const int near = i % tile_depth, far = i / tile_depth, along = i % tile, deep = i / tile;
      if constexpr (LEFT_BY_DEPTH) {
        lefts[near * tile_stride + far] = at + near < depth ? left(far, at + near) : 0.0f;
      } else {
        lefts[deep * tile_stride + along] = at + deep < depth ? left(along, at + deep) : 0.0f;
      }
      if constexpr (RIGHT_BY_DEPTH) {
        rights[near * tile_stride + far] = at + near < depth ? right(at + near, far) : 0.0f;
      } else {
        rights[deep * tile_stride + along] = at + deep < depth ? right(at + deep, along) : 0.0f;
      }
    }
    __syncthreads();
    for (int k = 0; k < tile_depth; k++) {
      float a[side], b[side];
#pragma unroll
      for (int i = 0; i < side; i++) a[i] = lefts[k * tile_stride + row + i * lanes_count];
#pragma unroll
      for (int i = 0; i < side; i++) b[i] = rights[k * tile_stride + column + i * lanes_count];
#pragma unroll
      for (int i = 0; i < side; i++)
#pragma unroll
        for (int j = 0; j < side; j++) sums[i][j] += a[i] * b[j];
    }
  }
}

// Results of the block, of which the first `rows` and `columns` exist.
template <bool ADDS, class G>
__device__ __forceinline__ void store_result(const float (&sums)[side][side], G *destination, int64_t stride,
                                             int rows, int columns) {
  const int row = int(threadIdx.x) / lanes_count, column = int(threadIdx.x) % lanes_count;
#pragma unroll
  for (int i = 0; i < side; i++)
#pragma unroll
    for (int j = 0; j < side; j++) {
      const int r = row + i * lanes_count, c = column + j * lanes_count;
      if (r >= rows || c >= columns) continue;
      G *at = destination + r * stride + c;
      global_store(at, from_float<G>(ADDS ? to_float(global_load(at)) + sums[i][j] : sums[i][j]));
    }
}

template <class T, bool INPUT>
__global__ void __launch_bounds__(threads_count) multiply_rows(grouped_product<T> p) {
  const grouped_shape &s = p.shape;
  const expert_rows own = expert_rows_at<tile>(s, block_row());
  if (own.expert < 0) return;
  const int depth = INPUT ? s.out : s.in, columns = INPUT ? s.in : s.out, first = int(blockIdx.x) * tile;
  const T *weight = p.weight + int64_t(own.expert) * s.out * s.in;
  const auto left = [&](int row, int k) {
    if (own.first + row >= own.end) return 0.0f;
    return to_float(global_load(p.a.data + row_in(s, p.a, own.first + row) * depth + k));
  };
  const auto right = [&](int k, int column) {
    if (first + column >= columns) return 0.0f;
    const int64_t at = INPUT ? int64_t(k) * columns + first + column : int64_t(first + column) * depth + k;
    return to_float(global_load(weight + at));
  };
  float sums[side][side] = {};
  multiply<true, !INPUT>(depth, left, right, sums);
  store_result<false>(sums, p.c + int64_t(own.first) * columns + first, columns, own.end - own.first,
                      columns - first);
}

// Of expert block_row(): along x the result's columns, then its rows.
template <class T, class G, bool ADDS>
__global__ void __launch_bounds__(threads_count) sum_rows(grouped_gradient<T, G> p, int column_tiles) {
  const grouped_shape &s = p.shape;
  const int e = block_row();
  if (e >= s.experts) return;
  const int first_column = int(blockIdx.x) % column_tiles * tile,
            first_row = int(blockIdx.x) / column_tiles * tile;
  const int begin = begin_of(s, e), end = begin_of(s, e + 1);
  if (ADDS && begin == end) return;
  const auto left = [&](int row, int k) {
    if (first_row + row >= s.out) return 0.0f;
    return to_float(global_load(p.d_y.data + row_in(s, p.d_y, begin + k) * s.out + first_row + row));
  };
  const auto right = [&](int k, int column) {
    if (first_column + column >= s.in) return 0.0f;
    return to_float(global_load(p.x.data + row_in(s, p.x, begin + k) * s.in + first_column + column));
  };
  float sums[side][side] = {};
  multiply<false, false>(end - begin, left, right, sums);
  store_result<ADDS>(sums, p.d_weight + (int64_t(e) * s.out + first_row) * s.in + first_column, s.in,
                     s.out - first_row, s.in - first_column);
}

} // namespace

template <class T> void grouped_general(const grouped_product<T> &p, launch_stream stream) {
  const int columns = p.is_input ? p.shape.in : p.shape.out;
  launch({blocks_of(columns, tile), threads_count, stream, grouped_tiles(p.shape, tile)},
         p.is_input ? multiply_rows<T, true> : multiply_rows<T, false>, p);
}

template <class T, class G> void grouped_general(const grouped_gradient<T, G> &p, launch_stream stream) {
  const int column_tiles = int(blocks_of(p.shape.in, tile));
  launch({column_tiles * blocks_of(p.shape.out, tile), threads_count, stream, p.shape.experts},
         p.adds ? sum_rows<T, G, true> : sum_rows<T, G, false>, p, column_tiles);
}

template void grouped_general(const grouped_product<float> &p, launch_stream stream);
template void grouped_general(const grouped_product<bf16> &p, launch_stream stream);
template void grouped_general(const grouped_gradient<float, float> &p, launch_stream stream);
template void grouped_general(const grouped_gradient<float, bf16> &p, launch_stream stream);
template void grouped_general(const grouped_gradient<bf16, float> &p, launch_stream stream);
template void grouped_general(const grouped_gradient<bf16, bf16> &p, launch_stream stream);
