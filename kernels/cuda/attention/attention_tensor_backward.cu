// Attention's gradients on tensor cores: bf16, head dimensions that are multiples of 8 up to 128. See
// attention.cuh.
//
//   P   = exp(S - lse)   d_P = d_O V^T          d_S = P * (d_P - delta)
//   d_V = P^T d_O        d_K = d_S^T Q scale    d_Q = d_S K scale
//
// Two kernels sum their results in registers in a fixed order, so no result depends on which block runs
// first. One owns keys and walks the queries of the group's heads; S and d_P are transposed there, so that
// P^T and d_S^T come out of the tensor cores as left factors. The other owns queries and walks keys. The
// price is that S and d_P are computed twice. Tiles of the other side are copied one ahead.
#include "kernels/cuda/attention/attention_tensor.cuh"

namespace {

constexpr int warps = 4, threads_count = warps * warp_lanes;
constexpr int blocks_at_once = 2; // of a multiprocessor

// ---- d_K and d_V

constexpr int own_keys = warps * 16;
static_assert(own_keys == FSDP_ATTENTION_MMA_KEYS, "of which the plan counts the blocks");
template <int WIDTH> constexpr int tile_queries = WIDTH <= 64 ? 64 : 32;

// Dynamic shared memory: K, V; two stages of Q, d_O; two stages of lse, delta and first keys.
template <int WIDTH>
constexpr int keys_shared_bytes = 2 * own_keys *WIDTH * 2 + 2 * (2 * tile_queries<WIDTH> * WIDTH * 2) +
                                  2 * 3 * tile_queries<WIDTH> * 4;

template <int WIDTH> struct query_stage {
  smem<bf16> q, d_o;
  smem<float> lse, delta; // lse in units of ln 2
  smem<int> low;          // the first key that each sees; with DOCUMENTS alone
};

template <int WIDTH>
__device__ __forceinline__ query_stage<WIDTH> query_stage_of(const smem<unsigned char> &bytes, int i) {
  constexpr int queries = tile_queries<WIDTH>, tile_bytes = queries * WIDTH * 2;
  const int tiles = 2 * own_keys * WIDTH * 2, statistics = tiles + 4 * tile_bytes;
  query_stage<WIDTH> stage;
  stage.q = bytes.part<bf16>(tiles + i * 2 * tile_bytes, queries * WIDTH);
  stage.d_o = bytes.part<bf16>(tiles + (i * 2 + 1) * tile_bytes, queries * WIDTH);
  stage.lse = bytes.part<float>(statistics + i * 3 * queries * 4, queries);
  stage.delta = bytes.part<float>(statistics + (i * 3 + 1) * queries * 4, queries);
  stage.low = bytes.part<int>(statistics + (i * 3 + 2) * queries * 4, queries);
  return stage;
}

template <bool MAPPED, int WIDTH>
__device__ __forceinline__ void copy_stage(const attention_gradient<bf16> &p, const query_stage<WIDTH> &stage,
                                           int b, const query_walk &walk) {
  constexpr int queries = tile_queries<WIDTH>;
  const attention_shape &s = p.shape;
  const query_range at = query_tile_at<MAPPED, queries>(s, walk.tile);
  copy_queries<MAPPED, WIDTH, queries, threads_count>(stage.q, p.q + walk.head * s.D, s.Q, s, b, at);
  copy_queries<MAPPED, WIDTH, queries, threads_count>(stage.d_o, p.d_o + walk.head * s.D, s.H * s.D, s, b,
                                                      at);
}

// This thread's query of the tile, for the threads that have one.
template <bool MAPPED, bool DOCUMENTS, int WIDTH>
__device__ __forceinline__ query_statistics load_statistics(const attention_gradient<bf16> &p, int b,
                                                            const query_walk &walk) {
  if (int(threadIdx.x) >= tile_queries<WIDTH>) return {};
  const query_range at = query_tile_at<MAPPED, tile_queries<WIDTH>>(p.shape, walk.tile);
  return statistics_of<DOCUMENTS>(p, b, walk.head, at, int(threadIdx.x));
}
template <bool DOCUMENTS, int WIDTH>
__device__ __forceinline__ void store_statistics(const query_stage<WIDTH> &stage, query_statistics own) {
  if (int(threadIdx.x) >= tile_queries<WIDTH>) return;
  stage.lse[int(threadIdx.x)] = own.lse;
  stage.delta[int(threadIdx.x)] = own.delta;
  if constexpr (DOCUMENTS) stage.low[int(threadIdx.x)] = own.low;
}

// P^T in place of S^T and d_S^T in place of d_P^T. `first_query`: of the tile, counted from the warp's first
// key.
template <int WIDTH>
__device__ __forceinline__ void
differentiate_keys(float (&p)[1][tile_queries<WIDTH> / 8][4], float (&d_s)[1][tile_queries<WIDTH> / 8][4],
                   const query_stage<WIDTH> &stage, float scale, int first_query) {
  const int lane = int(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int n = 0; n < tile_queries<WIDTH> / 8; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int query = n * 8 + lane % 4 * 2 + i;
      const float lse = stage.lse[query], delta = stage.delta[query];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const bool sees = first_query + query >= lane / 4 + half * 8;
        const int at = half * 2 + i;
        p[0][n][at] = sees ? exp2_approx(p[0][n][at] * scale - lse) : 0.0f;
        d_s[0][n][at] = p[0][n][at] * (d_s[0][n][at] - delta);
      }
    }
}

// WINDOWED: with a window shorter than the sequence. DOCUMENTS: they are told apart; with a map of rows, and
// with or without a window.
template <int WIDTH, bool WINDOWED, bool MAPPED, bool DOCUMENTS>
__global__ void __launch_bounds__(threads_count, blocks_at_once) make_d_k_d_v(attention_gradient<bf16> p) {
  constexpr int queries = tile_queries<WIDTH>;
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<bf16> k = bytes.part<bf16>(0, own_keys * WIDTH),
                   v = bytes.part<bf16>(own_keys * WIDTH * 2, own_keys * WIDTH);
  const attention_shape &s = p.shape;
  const key_block block = key_block_at<own_keys>(s, p.head_parts, int(blockIdx.x), block_row());
  if (block.first >= s.S) return;
  const int b = block.b, kv = block.head, first = block.first, row = int(threadIdx.x) / warp_lanes * 16;
  const int past_query = queries_end<DOCUMENTS, own_keys>(s, b, first);
  query_walk at = walk_of<MAPPED, queries>(s, p.head_parts, block, past_query), next = at;
  const uint32_t k_lanes = lanes_of_a<WIDTH>(k, row), v_lanes = lanes_of_a<WIDTH>(v, row);
  if (!MAPPED || !is_done(at)) { // some query sees a key
    key_run run;
    move_to<MAPPED, own_keys>(s, b, first, &run);
    copy_keys<MAPPED, WIDTH, own_keys, threads_count>(k, p.k + kv * s.D, s, b, first, run);
    copy_keys<MAPPED, WIDTH, own_keys, threads_count>(v, p.v + kv * s.D, s, b, first, run);
    const query_stage<WIDTH> first_stage = query_stage_of<WIDTH>(bytes, 0);
    copy_stage<MAPPED, WIDTH>(p, first_stage, b, at);
    store_statistics<DOCUMENTS>(first_stage, load_statistics<MAPPED, DOCUMENTS, WIDTH>(p, b, at));
  }
  cp_async_commit();
  float d_k[1][WIDTH / 8][4] = {}, d_v[1][WIDTH / 8][4] = {};
  const float scale = s.scale * log2_e;
  for (int i = 0; !is_done(at); i++, at = next) {
    const query_stage<WIDTH> stage = query_stage_of<WIDTH>(bytes, i % 2),
                             other = query_stage_of<WIDTH>(bytes, 1 - i % 2);
    step<MAPPED>(&next);
    const bool has_next = !is_done(next);
    cp_async_wait<0>();
    __syncthreads(); // this tile has arrived, and all reads of the other stage are done
    query_statistics statistics;
    if (has_next) {
      copy_stage<MAPPED, WIDTH>(p, other, b, next);
      statistics = load_statistics<MAPPED, DOCUMENTS, WIDTH>(p, b, next);
    }
    cp_async_commit();
    float weights[1][queries / 8][4], d_s[1][queries / 8][4];
    multiply_rows<WIDTH>(k_lanes, lanes_of_b_transposed<WIDTH>(stage.q, 0), weights);
    multiply_rows<WIDTH>(v_lanes, lanes_of_b_transposed<WIDTH>(stage.d_o, 0), d_s);
    const int position = query_tile_at<MAPPED, queries>(s, at.tile).position - first - row;
    if constexpr (DOCUMENTS) hide_from_queries(weights, stage.low, first + row);
    if (WINDOWED && position + queries - 1 >= s.window) hide_right(weights, position + 1 - s.window);
    differentiate_keys<WIDTH>(weights, d_s, stage, scale, position);
    add_product<WIDTH>(weights, lanes_of_b<WIDTH>(stage.d_o, 0), d_v);
    add_product<WIDTH>(d_s, lanes_of_b<WIDTH>(stage.q, 0), d_k);
    if (has_next) store_statistics<DOCUMENTS>(other, statistics);
  }
  const int key = first + row;
  if (p.rotates_back) rotate_back<DOCUMENTS, WIDTH>(p, d_k[0], b, key, s.S - 1);
  if (p.head_parts > 1) {
    store_parts<MAPPED, WIDTH>(p, block, d_k[0], d_v[0], key);
    return;
  }
  const float one[2] = {1.0f, 1.0f}, scales[2] = {s.scale, s.scale};
  store_keys<MAPPED, WIDTH>(v, row, d_v[0], one, p.d_v + kv * s.D, s, b, key);
  store_keys<MAPPED, WIDTH>(k, row, d_k[0], scales, p.d_k + kv * s.D, s, b, key);
}

// ---- d_Q

template <int WIDTH> constexpr int tile_keys = WIDTH <= 64 ? 32 : 64;
template <int WIDTH> constexpr int row_tiles = WIDTH <= 64 ? 2 : 1; // of 16 queries, a warp's
template <int WIDTH> constexpr int own_queries = warps * 16 * row_tiles<WIDTH>;

// Dynamic shared memory: Q, d_O; two stages of K, V.
template <int WIDTH>
constexpr int queries_shared_bytes = (2 * own_queries<WIDTH> + 4 * tile_keys<WIDTH>)*WIDTH * 2;

// d_S in place of d_P. `first_key`: of the tile, counted from the warp's first query.
template <int M, int KEYS>
__device__ __forceinline__ void
differentiate_queries(const float (&scores)[M][KEYS / 8][4], float (&d_s)[M][KEYS / 8][4],
                      const float (&lse)[M][2], const float (&delta)[M][2], float scale, int first_key) {
  const int lane = int(threadIdx.x) % warp_lanes;
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int key = first_key + n * 8 + lane % 4 * 2 + i % 2, query = m * 16 + lane / 4 + i / 2 * 8;
        const float weight = key <= query ? exp2_approx(scores[m][n][i] * scale - lse[m][i / 2]) : 0.0f;
        d_s[m][n][i] = weight * (d_s[m][n][i] - delta[m][i / 2]);
      }
}

template <int WIDTH, bool WINDOWED, bool MAPPED, bool DOCUMENTS>
__global__ void __launch_bounds__(threads_count, blocks_at_once) make_d_q(attention_gradient<bf16> p) {
  constexpr int M = row_tiles<WIDTH>, queries = own_queries<WIDTH>, keys = tile_keys<WIDTH>;
  constexpr int tile_bytes = keys * WIDTH * 2;
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<bf16> q = bytes.part<bf16>(0, queries * WIDTH);
  const smem<bf16> d_o = bytes.part<bf16>(queries * WIDTH * 2, queries * WIDTH);
  const attention_shape &s = p.shape;
  const query_block block = query_block_at<queries>(s, int(blockIdx.x), block_row());
  if (block.tile < 0) return;
  const int b = block.b, head = block.head, kv = head / s.G * s.D;
  const query_range own = query_tile_at<MAPPED, queries>(s, block.tile);
  const key_span span = keys_before<queries, keys>(own, low_of<DOCUMENTS>(s, b, own.position));
  const int first = own.position; // of the block's first query
  const int row = int(threadIdx.x) / warp_lanes * 16 * M;
  first_keys<M> low = {};
  if constexpr (DOCUMENTS) low = first_keys_of<M>(s, b, own, row);
  key_run run;
  auto copy_stage = [&](int stage, int key) {
    const int tiles = 2 * queries * WIDTH * 2 + stage * 2 * tile_bytes;
    move_to<MAPPED, keys>(s, b, key, &run);
    copy_keys<MAPPED, WIDTH, keys, threads_count>(bytes.part<bf16>(tiles, keys * WIDTH), p.k + kv, s, b, key,
                                                  run);
    copy_keys<MAPPED, WIDTH, keys, threads_count>(bytes.part<bf16>(tiles + tile_bytes, keys * WIDTH),
                                                  p.v + kv, s, b, key, run);
  };
  copy_queries<MAPPED, WIDTH, queries, threads_count>(q, p.q + head * s.D, s.Q, s, b, own);
  copy_queries<MAPPED, WIDTH, queries, threads_count>(d_o, p.d_o + head * s.D, s.H * s.D, s, b, own);
  copy_stage(0, span.first);
  cp_async_commit();
  float lse[M][2], delta[M][2], d_q[M][WIDTH / 8][4] = {};
#pragma unroll
  for (int m = 0; m < M; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int query = own.index + row + m * 16 + int(threadIdx.x) % warp_lanes / 4 + half * 8;
      const bool exists = query < own.end;
      lse[m][half] = exists ? log2_e * global_load(p.lse + statistic_at(s, b, head, query)) : 0.0f;
      delta[m][half] = exists ? global_load(p.delta + statistic_at(s, b, head, query)) : 0.0f;
    }
  const uint32_t q_lanes = lanes_of_a<WIDTH>(q, row), d_o_lanes = lanes_of_a<WIDTH>(d_o, row);
  const float scale = s.scale * log2_e;
  for (int key = span.first, stage = 0; key < span.end; key += keys, stage = 1 - stage) {
    const int tiles = 2 * queries * WIDTH * 2 + stage * 2 * tile_bytes;
    const smem<bf16> k = bytes.part<bf16>(tiles, keys * WIDTH);
    const smem<bf16> v = bytes.part<bf16>(tiles + tile_bytes, keys * WIDTH);
    cp_async_wait<0>();
    __syncthreads(); // this tile has arrived, and all reads of the other stage are done
    if (key + keys < span.end) copy_stage(1 - stage, key + keys);
    cp_async_commit();
    // No query of this warp sees a key.
    if (key >= first + row + 16 * M || (WINDOWED && key + keys + s.window - 1 <= first + row) ||
        (DOCUMENTS && key + keys <= low.first))
      continue;
    float scores[M][keys / 8][4], d_s[M][keys / 8][4];
    multiply_rows<WIDTH>(q_lanes, lanes_of_b_transposed<WIDTH>(k, 0), scores);
    multiply_rows<WIDTH>(d_o_lanes, lanes_of_b_transposed<WIDTH>(v, 0), d_s);
    if constexpr (DOCUMENTS) hide_before(scores, low, key);
    if (WINDOWED && key + s.window < first + row + 16 * M) hide_left(scores, key + s.window - first - row);
    differentiate_queries<M, keys>(scores, d_s, lse, delta, scale, key - first - row);
    add_product<WIDTH>(d_s, lanes_of_b<WIDTH>(k, 0), d_q);
  }
  const float scales[2] = {s.scale, s.scale};
#pragma unroll
  for (int m = 0; m < M; m++) {
    if (p.rotates_back)
      rotate_back<DOCUMENTS, WIDTH>(p, d_q[m], b, first + row + m * 16, first + own.end - own.index - 1);
    store_queries<MAPPED, WIDTH>(q, row + m * 16, d_q[m], scales, p.d_q + head * s.D, s.Q, s, b,
                                 own.index + row + m * 16, own.end);
  }
}

// ---- Launches

template <int WIDTH> attention_grid keys_grid(const attention_shape &s, int head_parts) {
  return key_grid<own_keys, tile_queries<WIDTH>>(s, head_parts, threads_count, keys_shared_bytes<WIDTH>,
                                                 blocks_at_once);
}

template <int WIDTH> attention_grid queries_grid(const attention_shape &s) {
  return query_grid<own_queries<WIDTH>, tile_keys<WIDTH>>("d_q", s, threads_count,
                                                          queries_shared_bytes<WIDTH>, blocks_at_once);
}

template <int WIDTH, bool WINDOWED, bool MAPPED, bool DOCUMENTS = false>
void run(const attention_gradient<bf16> &p, launch_stream stream) {
  launch(launch_of(keys_grid<WIDTH>(p.shape, p.head_parts), stream),
         make_d_k_d_v<WIDTH, WINDOWED, MAPPED, DOCUMENTS>, p);
  launch(launch_of(queries_grid<WIDTH>(p.shape), stream), make_d_q<WIDTH, WINDOWED, MAPPED, DOCUMENTS>, p);
}

template <int WIDTH, bool MAPPED> void run_windowed(const attention_gradient<bf16> &p, launch_stream stream) {
  p.shape.window < p.shape.S ? run<WIDTH, true, MAPPED>(p, stream) : run<WIDTH, false, MAPPED>(p, stream);
}

template <int WIDTH> void run_mapped(const attention_gradient<bf16> &p, launch_stream stream) {
  if (p.shape.starts) {
    run<WIDTH, false, true, true>(p, stream);
    return;
  }
  attention_is_plain(p.shape) ? run_windowed<WIDTH, false>(p, stream) : run_windowed<WIDTH, true>(p, stream);
}

} // namespace

attention_grid attention_tensor_d_k_d_v_grid(const attention_shape &s, int head_parts) {
  return s.D <= 64 ? keys_grid<64>(s, head_parts) : keys_grid<128>(s, head_parts);
}
attention_grid attention_tensor_d_q_grid(const attention_shape &s) {
  return s.D <= 64 ? queries_grid<64>(s) : queries_grid<128>(s);
}

void attention_tensor_backward(const attention_gradient<bf16> &p, launch_stream stream) {
  p.shape.D <= 64 ? run_mapped<64>(p, stream) : run_mapped<128>(p, stream);
}
