// Attention's forward on tensor cores: bf16, head dimensions that are multiples of 8 up to 128. See
// attention.cuh.
//
//   block    128 queries of one head, 4 warps of 32 queries; walks the tiles of keys up to the diagonal
//   scores   S = Q K^T in registers; running maximum and sum (base 2); P rounded to bf16 is the left factor
//            of the next product
//   out      O = P V in registers, divided by the sums at the end
//
// One K and one V tile: K of the next tile is copied while P V runs, V while Q K^T runs.
#include "kernels/cuda/attention/attention_tensor.cuh"

#include <float.h>
#include <math.h>

namespace {

constexpr int warps = 4, threads_count = warps * warp_lanes;
constexpr int warp_rows = 32, row_tiles = warp_rows / 16;
constexpr int queries = warps * warp_rows;
constexpr int blocks_at_once = 2; // of a multiprocessor

// Keys of a tile: as many as registers allow.
template <int WIDTH> constexpr int tile_keys = WIDTH <= 64 ? 64 : 32;
template <int WIDTH> constexpr int shared_bytes = (queries + 2 * tile_keys<WIDTH>)*WIDTH * 2;

// A thread's state of its rows: g and g + 8 of each tile of 16.
struct row_statistics {
  float most[row_tiles][2],
      sum[row_tiles][2]; // in units of log2(e) / sqrt(D); the sum of this thread's columns
};

// P in place of S, and what was summed before scaled to the new maximum.
template <int WIDTH, int KEYS>
__device__ __forceinline__ void soften(float (&scores)[row_tiles][KEYS / 8][4], row_statistics *rows,
                                       float (&out)[row_tiles][WIDTH / 8][4], float scale) {
#pragma unroll
  for (int m = 0; m < row_tiles; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float greatest = scores[m][0][2 * half];
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
        greatest = fmaxf(greatest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      greatest = fmaxf(greatest, __shfl_xor_sync(whole_warp, greatest, 1));
      greatest = fmaxf(greatest, __shfl_xor_sync(whole_warp, greatest, 2));
      const float most = fmaxf(rows->most[m][half], greatest * scale);
      const float correction = exp2_approx(rows->most[m][half] - most);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
          scores[m][n][i] = exp2_approx(scores[m][n][i] * scale - most);
          sum += scores[m][n][i];
        }
      rows->most[m][half] = most;
      rows->sum[m][half] = rows->sum[m][half] * correction + sum;
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n++) {
        out[m][n][2 * half] *= correction;
        out[m][n][2 * half + 1] *= correction;
      }
    }
}

template <bool MAPPED, int WIDTH>
__device__ __forceinline__ void finish(const attention_forward<bf16> &p, const smem<bf16> &tile,
                                       row_statistics *rows, const float (&out)[row_tiles][WIDTH / 8][4],
                                       int b, int head, const query_range &own) {
  const attention_shape &s = p.shape;
  const int lane = int(threadIdx.x) % warp_lanes, row = int(threadIdx.x) / warp_lanes * warp_rows;
#pragma unroll
  for (int m = 0; m < row_tiles; m++) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float sum = rows->sum[m][half];
      sum += __shfl_xor_sync(whole_warp, sum, 1);
      sum += __shfl_xor_sync(whole_warp, sum, 2);
      inverse[half] = 1.0f / sum;
      const int query = own.index + row + m * 16 + lane / 4 + half * 8;
      if (lane % 4 == 0 && query < own.end)
        global_store(p.lse + statistic_at(s, b, head, query), (rows->most[m][half] + log2f(sum)) / log2_e);
    }
    store_queries<MAPPED, WIDTH>(tile, row + m * 16, out[m], inverse, p.o + head * s.D, s.H * s.D, s, b,
                                 own.index + row + m * 16, own.end);
  }
}

// DOCUMENTS: they are told apart; with a map of rows, whichever rows there are.
template <int WIDTH, bool MAPPED, bool DOCUMENTS = false>
__global__ void __launch_bounds__(threads_count, blocks_at_once) attend(attention_forward<bf16> p) {
  constexpr int keys = tile_keys<WIDTH>;
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<bf16> q = bytes.part<bf16>(0, queries * WIDTH);
  const smem<bf16> k = bytes.part<bf16>(queries * WIDTH * 2, keys * WIDTH);
  const smem<bf16> v = bytes.part<bf16>((queries + keys) * WIDTH * 2, keys * WIDTH);
  const attention_shape &s = p.shape;
  const query_block block = query_block_at<queries>(s, int(blockIdx.x), block_row());
  if (block.tile < 0) return;
  const int b = block.b, head = block.head, kv = head / s.G * s.D;
  const query_range own = query_tile_at<MAPPED, queries>(s, block.tile);
  const key_span span = keys_before<queries, keys>(own, low_of<DOCUMENTS>(s, b, own.position));
  // Positions: of the block's first query and of the warp's first.
  const int first = own.position;
  const int warp_first = first + int(threadIdx.x) / warp_lanes * warp_rows;
  first_keys<row_tiles> low = {};
  if constexpr (DOCUMENTS) low = first_keys_of<row_tiles>(s, b, own, warp_first - first);
  copy_queries<MAPPED, WIDTH, queries, threads_count>(q, p.q + head * s.D, s.Q, s, b, own);
  key_run run;
  move_to<MAPPED, keys>(s, b, span.first, &run);
  copy_keys<MAPPED, WIDTH, keys, threads_count>(k, p.k + kv, s, b, span.first, run);
  cp_async_commit();
  const uint32_t q_lanes = lanes_of_a<WIDTH>(q, warp_first - first),
                 k_lanes = lanes_of_b_transposed<WIDTH>(k, 0);
  const uint32_t v_lanes = lanes_of_b<WIDTH>(v, 0);
  float out[row_tiles][WIDTH / 8][4] = {};
  row_statistics rows;
#pragma unroll
  for (int m = 0; m < row_tiles; m++) {
    rows.most[m][0] = rows.most[m][1] = -FLT_MAX; // finite even if a tile hides all its keys from a row
    rows.sum[m][0] = rows.sum[m][1] = 0;
  }
  const float scale = s.scale * log2_e;
  for (int key = span.first; key < span.end; key += keys) {
    float scores[row_tiles][keys / 8][4];
    cp_async_wait<0>();
    __syncthreads(); // K has arrived, and all reads of the last V are done
    copy_keys<MAPPED, WIDTH, keys, threads_count>(v, p.v + kv, s, b, key, run);
    cp_async_commit();
    // Whether any query of this warp sees any key.
    const bool sees =
        key < warp_first + warp_rows && key + keys > (DOCUMENTS ? low.first : warp_first + 1 - s.window);
    if (sees) multiply_rows<WIDTH>(q_lanes, k_lanes, scores);
    cp_async_wait<0>();
    __syncthreads(); // V has arrived, and all reads of K are done
    if (key + keys < span.end) {
      move_to<MAPPED, keys>(s, b, key + keys, &run);
      copy_keys<MAPPED, WIDTH, keys, threads_count>(k, p.k + kv, s, b, key + keys, run);
    }
    cp_async_commit();
    if (!sees) continue;
    if (key + keys > warp_first) hide_right(scores, key - warp_first);
    if constexpr (DOCUMENTS) {
      hide_before(scores, low, key);
    } else {
      if (key < warp_first + warp_rows - s.window) hide_left(scores, key + s.window - warp_first);
    }
    soften<WIDTH, keys>(scores, &rows, out, scale);
    add_product<WIDTH>(scores, v_lanes, out);
  }
  finish<MAPPED, WIDTH>(p, q, &rows, out, b, head, own);
}

template <int WIDTH> attention_grid grid_of(const attention_shape &s) {
  return query_grid<queries, tile_keys<WIDTH>>("forward", s, threads_count, shared_bytes<WIDTH>,
                                               blocks_at_once);
}

template <int WIDTH> void run(const attention_forward<bf16> &p, launch_stream stream) {
  launch(launch_of(grid_of<WIDTH>(p.shape), stream),
         p.shape.starts                ? attend<WIDTH, true, true>
         : attention_is_plain(p.shape) ? attend<WIDTH, false>
                                       : attend<WIDTH, true>,
         p);
}

} // namespace

attention_grid attention_tensor_forward_grid(const attention_shape &s) {
  return s.D <= 64 ? grid_of<64>(s) : grid_of<128>(s);
}

void attention_tensor_forward(const attention_forward<bf16> &p, launch_stream stream) {
  p.shape.D <= 64 ? run<64>(p, stream) : run<128>(p, stream);
}
