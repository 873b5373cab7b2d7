// Products grouped by expert on tensor cores: bf16, dimensions that are multiples of 8. See grouped.cuh.
//
//   block    128 x 128 of the result, 8 warps of 32 x 64; walks the third dimension in steps of 64
//   copies   both factors of a step, three steps in shared memory, rows gathered as they are copied
//   result   fp32 in registers, through shared memory to 16-byte stores
//
// Blocks along x are the result's columns, so that neighbours share their rows and an expert's weight.
#include "kernels/cuda/attention/attention_tensor.cuh"
#include "kernels/cuda/experts/grouped.cuh"

namespace {

constexpr int tile_rows = 128, tile_columns = 128, tile_depth = 64, stages = 3;
constexpr int warps = 8, threads_count = warps * warp_lanes;
constexpr int warp_rows = 32, warp_columns = 64;
constexpr int factor_bytes = tile_rows * tile_depth * 2, stage_bytes = 2 * factor_bytes;
constexpr int result_stride = tile_columns + 4; // of a row in shared memory, in floats
constexpr int shared_bytes = stages * stage_bytes;
static_assert(tile_rows * result_stride * 4 <= shared_bytes, "the result goes through the factors' memory");

// How a factor's tile lies in shared memory: its rows or columns (of the result) by the depth, or the depth
// by these. Attention's tiles, 64 or 128 wide.
enum class lies { by_depth, depth_first };

// Copies a tile of DEPTH-first rows or of rows by depth: `ROWS` rows of `WIDTH` elements, row i from
// source(i), nothing where it is NULL; columns from `valid` on are zeros.
template <int WIDTH, int ROWS, class Source>
__device__ __forceinline__ void copy_rows(const smem<bf16> &tile, int valid, const Source &source) {
  constexpr int chunks = WIDTH / chunk_numel, rows_at_once = threads_count / chunks;
  const int chunk = int(threadIdx.x) % chunks, first = int(threadIdx.x) / chunks;
#pragma unroll
  for (int i = 0; i < ROWS / rows_at_once; i++) {
    const bf16 *at = source(i, first + i * rows_at_once);
    const bool exists = at != nullptr && chunk * chunk_numel < valid;
    cp_async16(tile.address(tile_at<WIDTH>(first + i * rows_at_once, chunk)),
               exists ? at + chunk * chunk_numel : nullptr, exists);
  }
}

// The fragments of one step of 16 of a warp's rows from `row` on, and of its columns from `column` on.
struct factor_lanes {
  uint32_t left, right;
};
template <lies LEFT, lies RIGHT>
__device__ __forceinline__ factor_lanes lanes_of(const smem<unsigned char> &bytes, int row, int column) {
  const smem<bf16> left = bytes.part<bf16>(0, factor_bytes / 2),
                   right = bytes.part<bf16>(factor_bytes, factor_bytes / 2);
  factor_lanes lanes;
  if constexpr (LEFT == lies::by_depth) {
    lanes.left = lanes_of_a<tile_depth>(left, row);
  } else {
    lanes.left = at_column(lanes_of_b_transposed<tile_rows>(left, 0), row / 16);
  }
  if constexpr (RIGHT == lies::by_depth) {
    lanes.right = lanes_of_b_transposed<tile_depth>(right, column);
  } else {
    lanes.right = at_column(lanes_of_b<tile_columns>(right, 0), column / 16);
  }
  return lanes;
}

constexpr int warp_m = warp_rows / 16, warp_n = warp_columns / 8;

// sums += left right over one stage's depth.
template <lies LEFT, lies RIGHT>
__device__ __forceinline__ void add_stage(factor_lanes lanes, int stage, float (&sums)[warp_m][warp_n][4]) {
  lanes.left += uint32_t(stage * stage_bytes);
  lanes.right += uint32_t(stage * stage_bytes);
#pragma unroll
  for (int step = 0; step < tile_depth / 16; step++) {
    uint32_t a[warp_m][4];
#pragma unroll
    for (int m = 0; m < warp_m; m++) {
      if constexpr (LEFT == lies::by_depth) {
        ldmatrix_x4(a[m], at_column(lanes.left, step) + uint32_t(m * 16 * tile_depth * 2));
      } else {
        ldmatrix_x4_trans(a[m], at_column(lanes.left, m) + uint32_t(step * 16 * tile_rows * 2));
      }
    }
#pragma unroll
    for (int pair = 0; pair < warp_n / 2; pair++) {
      uint32_t b[4];
      if constexpr (RIGHT == lies::by_depth) {
        ldmatrix_x4(b, at_column(lanes.right, step) + uint32_t(pair * 16 * tile_depth * 2));
      } else {
        ldmatrix_x4_trans(b, at_column(lanes.right, pair) + uint32_t(step * 16 * tile_columns * 2));
      }
#pragma unroll
      for (int m = 0; m < warp_m; m++) {
        mma_m16n8k16(sums[m][2 * pair], a[m], b[0], b[1]);
        mma_m16n8k16(sums[m][2 * pair + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Walks `steps` stages of the depth, which `copy` copies: copy(stage, step).
template <lies LEFT, lies RIGHT, class Copy>
__device__ __forceinline__ void multiply(const smem<unsigned char> &bytes, int row, int column, int steps,
                                         const Copy &copy, float (&sums)[warp_m][warp_n][4]) {
  const factor_lanes lanes = lanes_of<LEFT, RIGHT>(bytes, row, column);
#pragma unroll
  for (int step = 0; step < stages - 1; step++) {
    if (step < steps) copy(step, step);
    cp_async_commit();
  }
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    cp_async_wait<stages - 2>();
    __syncthreads(); // this stage has arrived, and all reads of the one before are done
    const int ahead = step + stages - 1, free = stage == 0 ? stages - 1 : stage - 1;
    if (ahead < steps) copy(free, ahead);
    cp_async_commit();
    add_stage<LEFT, RIGHT>(lanes, stage, sums);
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncthreads(); // all reads of the factors are done
}

// The block's results, of which the first `rows` and `columns` exist: written, or added to what is there.
// `destination`: of its first row and column, rows `stride` apart.
template <bool ADDS, class G>
__device__ __forceinline__ void store_result(const smem<unsigned char> &bytes, int row, int column,
                                             const float (&sums)[warp_m][warp_n][4], G *destination,
                                             int64_t stride, int rows, int columns) {
  constexpr int width = 8, vectors = tile_columns / width, rows_at_once = threads_count / vectors;
  const int lane = int(threadIdx.x) % warp_lanes;
  const smem<float2> pairs = bytes.part<float2>(0, tile_rows * result_stride / 2);
#pragma unroll
  for (int m = 0; m < warp_m; m++)
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int n = 0; n < warp_n; n++) {
        const int at = (row + m * 16 + half * 8 + lane / 4) * result_stride + column + n * 8 + lane % 4 * 2;
        pairs[at / 2] = float2{sums[m][n][2 * half], sums[m][n][2 * half + 1]};
      }
  __syncthreads();
  const smem<float4> fours = bytes.part<float4>(0, tile_rows * result_stride / 4);
  const int c = int(threadIdx.x) % vectors * width;
#pragma unroll 1
  for (int r = int(threadIdx.x) / vectors; r < least(rows, tile_rows) && c < columns; r += rows_at_once) {
    const float4 low = fours[(r * result_stride + c) / 4], high = fours[(r * result_stride + c) / 4 + 1];
    float x[width] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    G *at = destination + r * stride + c;
    if constexpr (ADDS) {
      float old[width];
      load_floats<width>(at, old);
#pragma unroll
      for (int i = 0; i < width; i++) x[i] += old[i];
    }
    store_floats<width>(at, x);
  }
}

__device__ __forceinline__ int warp_row() {
  return int(threadIdx.x) / warp_lanes / (tile_columns / warp_columns) * warp_rows;
}
__device__ __forceinline__ int warp_column() {
  return int(threadIdx.x) / warp_lanes % (tile_columns / warp_columns) * warp_columns;
}

// INPUT: the product with the weight as it lies; else with its transpose.
template <bool INPUT>
__global__ void __launch_bounds__(threads_count, 1) multiply_rows(grouped_product<bf16> p) {
  constexpr lies weight_lies = INPUT ? lies::depth_first : lies::by_depth;
  constexpr int chunks = tile_depth / chunk_numel, rows_at_once = threads_count / chunks;
  FSDP_SHARED_DYNAMIC(bytes);
  const grouped_shape &s = p.shape;
  const expert_rows own = expert_rows_at<tile_rows>(s, block_row());
  if (own.expert < 0) return;
  const int depth = INPUT ? s.out : s.in, columns = INPUT ? s.in : s.out;
  const int first_column = int(blockIdx.x) * tile_columns;
  const bf16 *weight = p.weight + int64_t(own.expert) * s.out * s.in;
  const bf16 *own_rows[tile_rows / rows_at_once]; // those that this thread copies
#pragma unroll
  for (int i = 0; i < tile_rows / rows_at_once; i++) {
    const int row = own.first + int(threadIdx.x) / chunks + i * rows_at_once;
    own_rows[i] = row < own.end ? p.a.data + row_in(s, p.a, row) * depth : nullptr;
  }
  const auto copy = [&](int stage, int step) {
    const int at = step * tile_depth;
    copy_rows<tile_depth, tile_rows>(bytes.part<bf16>(stage * stage_bytes, factor_bytes / 2), depth - at,
                                     [&](int i, int) { return own_rows[i] ? own_rows[i] + at : nullptr; });
    const smem<bf16> right = bytes.part<bf16>(stage * stage_bytes + factor_bytes, factor_bytes / 2);
    if constexpr (INPUT) {
      copy_rows<tile_columns, tile_depth>(right, columns - first_column, [&](int, int row) {
        return at + row < depth ? weight + int64_t(at + row) * columns + first_column : nullptr;
      });
    } else {
      copy_rows<tile_depth, tile_columns>(right, depth - at, [&](int, int row) {
        return first_column + row < columns ? weight + int64_t(first_column + row) * depth + at : nullptr;
      });
    }
  };
  float sums[warp_m][warp_n][4] = {};
  multiply<lies::by_depth, weight_lies>(bytes, warp_row(), warp_column(),
                                        (depth + tile_depth - 1) / tile_depth, copy, sums);
  store_result<false>(bytes, warp_row(), warp_column(), sums,
                      p.c + int64_t(own.first) * columns + first_column, columns, own.end - own.first,
                      columns - first_column);
}

// Of expert block_row(): along x the result's columns, then its rows.
template <class G, bool ADDS>
__global__ void __launch_bounds__(threads_count, 1) sum_rows(grouped_gradient<bf16, G> p, int column_tiles) {
  FSDP_SHARED_DYNAMIC(bytes);
  const grouped_shape &s = p.shape;
  const int e = block_row();
  if (e >= s.experts) return;
  const int first_column = int(blockIdx.x) % column_tiles * tile_columns,
            first_row = int(blockIdx.x) / column_tiles * tile_rows;
  const int begin = begin_of(s, e), end = begin_of(s, e + 1);
  if (ADDS && begin == end) return;
  const auto copy = [&](int stage, int step) {
    const int at = begin + step * tile_depth;
    copy_rows<tile_rows, tile_depth>(
        bytes.part<bf16>(stage * stage_bytes, factor_bytes / 2), s.out - first_row, [&](int, int row) {
          return at + row < end ? p.d_y.data + row_in(s, p.d_y, at + row) * s.out + first_row : nullptr;
        });
    copy_rows<tile_columns, tile_depth>(
        bytes.part<bf16>(stage * stage_bytes + factor_bytes, factor_bytes / 2), s.in - first_column,
        [&](int, int row) {
          return at + row < end ? p.x.data + row_in(s, p.x, at + row) * s.in + first_column : nullptr;
        });
  };
  float sums[warp_m][warp_n][4] = {};
  multiply<lies::depth_first, lies::depth_first>(bytes, warp_row(), warp_column(),
                                                 (end - begin + tile_depth - 1) / tile_depth, copy, sums);
  store_result<ADDS>(bytes, warp_row(), warp_column(), sums,
                     p.d_weight + (int64_t(e) * s.out + first_row) * s.in + first_column, s.in,
                     s.out - first_row, s.in - first_column);
}

} // namespace

void grouped_tensor(const grouped_product<bf16> &p, launch_stream stream) {
  const int columns = p.is_input ? p.shape.in : p.shape.out;
  launch({blocks_of(columns, tile_columns), threads_count, stream, grouped_tiles(p.shape, tile_rows),
          shared_bytes},
         p.is_input ? multiply_rows<true> : multiply_rows<false>, p);
}

template <class G> void grouped_tensor(const grouped_gradient<bf16, G> &p, launch_stream stream) {
  const int column_tiles = int(blocks_of(p.shape.in, tile_columns));
  launch({column_tiles * blocks_of(p.shape.out, tile_rows), threads_count, stream, p.shape.experts,
          shared_bytes},
         p.adds ? sum_rows<G, true> : sum_rows<G, false>, p, column_tiles);
}

template void grouped_tensor(const grouped_gradient<bf16, float> &p, launch_stream stream);
template void grouped_tensor(const grouped_gradient<bf16, bf16> &p, launch_stream stream);
