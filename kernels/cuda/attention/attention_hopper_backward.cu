// Attention's gradients by Hopper's asynchronous products of warpgroups: bf16, head dimensions that are
// multiples of 8 up to 128. See attention.cuh, and attention_tensor_backward.cu for the formulas.
//
// As there, two kernels sum their results in registers in a fixed order, and S and d_P are computed twice. A
// block has two warpgroups, each with 64 rows of the results. The left factors of the last products are what
// the first ones leave in registers: P^T and d_S^T in the kernel that owns keys, d_S in the one that owns
// queries, so nothing but tiles of Q, K, V and d_O ever lies in shared memory.
//
//   owns keys      S^T = K Q^T and d_P^T = V d_O^T start together; P^T is made while d_P^T is on its way, and
//                  d_S^T while d_V += P^T d_O is; then d_K += d_S^T Q
//   owns queries   S = Q K^T and d_P = d_O V^T start together; P is made while d_P is on its way, and d_S of
//                  half the keys while d_Q += d_S K of the others is
//
// Tiles of the other side have two stages; the next one is copied while products run.
#include "kernels/cuda/attention/attention_hopper.cuh"

namespace {

constexpr int warpgroups = 2;
constexpr int threads_count = warpgroups * warpgroup_threads, own_rows = warpgroups * warpgroup_rows;
static_assert(own_rows == FSDP_ATTENTION_WGMMA_KEYS, "of which the plan counts the blocks");
constexpr int blocks_at_once = 1; // of a multiprocessor

// A tile of ROWS rows as a factor: its rows from `row` on.
template <int ROWS> __device__ __forceinline__ uint64_t factor_of(const smem<bf16> &tile, int row) {
  return wgmma_descriptor(tile.address(row * panel_columns), panel_bytes<ROWS>);
}

// ---- d_K and d_V

constexpr int tile_queries = 64, query_tiles_of_8 = tile_queries / 8;

// Dynamic shared memory: K, V; two stages of Q, d_O; two stages of lse, delta and first keys.
template <int WIDTH>
constexpr int keys_shared_bytes =
    2 * tile_bytes<WIDTH, own_rows> + 4 * tile_bytes<WIDTH, tile_queries> + 6 * tile_queries * 4;

struct query_stage {
  smem<bf16> q, d_o;
  smem<float> lse, delta; // lse in units of ln 2
  smem<int> low;          // the first key that each sees; with DOCUMENTS alone
};

template <int WIDTH>
__device__ __forceinline__ query_stage query_stage_of(const smem<unsigned char> &bytes, int i) {
  constexpr int one = tile_bytes<WIDTH, tile_queries>, tiles = 2 * tile_bytes<WIDTH, own_rows>;
  const int statistics = tiles + 4 * one;
  query_stage stage;
  stage.q = bytes.part<bf16>(tiles + 2 * i * one, tile_queries * WIDTH);
  stage.d_o = bytes.part<bf16>(tiles + (2 * i + 1) * one, tile_queries * WIDTH);
  stage.lse = bytes.part<float>(statistics + 3 * i * tile_queries * 4, tile_queries);
  stage.delta = bytes.part<float>(statistics + (3 * i + 1) * tile_queries * 4, tile_queries);
  stage.low = bytes.part<int>(statistics + (3 * i + 2) * tile_queries * 4, tile_queries);
  return stage;
}

template <bool MAPPED, int WIDTH>
__device__ __forceinline__ void copy_stage(const attention_gradient<bf16> &p, const query_stage &stage, int b,
                                           const query_walk &walk) {
  const attention_shape &s = p.shape;
  const query_range at = query_tile_at<MAPPED, tile_queries>(s, walk.tile);
  copy_query_panels<MAPPED, WIDTH, tile_queries, threads_count>(stage.q, p.q + walk.head * s.D, s.Q, s, b, at,
                                                                int(threadIdx.x));
  copy_query_panels<MAPPED, WIDTH, tile_queries, threads_count>(stage.d_o, p.d_o + walk.head * s.D, s.H * s.D,
                                                                s, b, at, int(threadIdx.x));
}

// Of the tile's query of this thread, if it has one: thread i has query i.
template <bool MAPPED, bool DOCUMENTS>
__device__ __forceinline__ query_statistics load_statistics(const attention_gradient<bf16> &p, int b,
                                                            const query_walk &walk) {
  if (int(threadIdx.x) >= tile_queries) return {};
  const query_range at = query_tile_at<MAPPED, tile_queries>(p.shape, walk.tile);
  return statistics_of<DOCUMENTS>(p, b, walk.head, at, int(threadIdx.x));
}
template <bool DOCUMENTS>
__device__ __forceinline__ void store_statistics(const query_stage &stage, query_statistics own) {
  if (int(threadIdx.x) >= tile_queries) return;
  stage.lse[int(threadIdx.x)] = own.lse;
  stage.delta[int(threadIdx.x)] = own.delta;
  if constexpr (DOCUMENTS) stage.low[int(threadIdx.x)] = own.low;
}

// P^T in place of S^T. `first_query`: the position of the tile's, counted from the warp's first key.
__device__ __forceinline__ void weigh_keys(float (&p)[1][query_tiles_of_8][4], const smem<float> &lse,
                                           float scale, int first_query, int window) {
  if (first_query < 15) hide_left(p, first_query + 1);
  if (first_query + tile_queries - 1 >= window) hide_right(p, first_query + 1 - window);
  const smem<float2> pairs = lse.part<float2>(0, tile_queries / 2);
#pragma unroll
  for (int n = 0; n < query_tiles_of_8; n++) {
    const float2 pair = pairs[n * 4 + int(threadIdx.x) % 4];
#pragma unroll
    for (int i = 0; i < 4; i++) p[0][n][i] = exp2_approx(p[0][n][i] * scale - (i % 2 == 0 ? pair.x : pair.y));
  }
}

// d_S^T in place of d_P^T.
__device__ __forceinline__ void differentiate_keys(const float (&p)[query_tiles_of_8][4],
                                                   float (&d_s)[query_tiles_of_8][4],
                                                   const smem<float> &delta) {
  const smem<float2> pairs = delta.part<float2>(0, tile_queries / 2);
#pragma unroll
  for (int n = 0; n < query_tiles_of_8; n++) {
    const float2 pair = pairs[n * 4 + int(threadIdx.x) % 4];
#pragma unroll
    for (int i = 0; i < 4; i++) d_s[n][i] = p[n][i] * (d_s[n][i] - (i % 2 == 0 ? pair.x : pair.y));
  }
}

// DOCUMENTS: they are told apart; with a map of rows, whichever rows there are.
template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__global__ void __launch_bounds__(threads_count, blocks_at_once) make_d_k_d_v(attention_gradient<bf16> p) {
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<bf16> k = bytes.part<bf16>(0, own_rows * WIDTH),
                   v = bytes.part<bf16>(tile_bytes<WIDTH, own_rows>, own_rows * WIDTH);
  const attention_shape &s = p.shape;
  const key_block block = key_block_at<own_rows>(s, p.head_parts, int(blockIdx.x), block_row());
  if (block.first >= s.S) return;
  const int b = block.b, kv = block.head, first = block.first;
  const int group_row = int(threadIdx.x) / warpgroup_threads * warpgroup_rows;
  const int row = int(threadIdx.x) / warp_lanes * 16; // of the warp
  const int past_query = queries_end<DOCUMENTS, own_rows>(s, b, first);
  query_walk at = walk_of<MAPPED, tile_queries>(s, p.head_parts, block, past_query), next = at;
  const uint64_t k_rows = factor_of<own_rows>(k, group_row), v_rows = factor_of<own_rows>(v, group_row);
  if (!is_done(at)) { // some query sees a key
    key_run run;
    move_to<MAPPED, own_rows>(s, b, first, &run);
    copy_key_panels<MAPPED, WIDTH, own_rows, threads_count>(k, p.k + kv * s.D, s, b, first, run,
                                                            int(threadIdx.x));
    copy_key_panels<MAPPED, WIDTH, own_rows, threads_count>(v, p.v + kv * s.D, s, b, first, run,
                                                            int(threadIdx.x));
    const query_stage first_stage = query_stage_of<WIDTH>(bytes, 0);
    copy_stage<MAPPED, WIDTH>(p, first_stage, b, at);
    store_statistics<DOCUMENTS>(first_stage, load_statistics<MAPPED, DOCUMENTS>(p, b, at));
  }
  cp_async_commit();
  float d_k[WIDTH / 8][4] = {}, d_v[WIDTH / 8][4] = {};
  const float scale = s.scale * log2_e;
  for (int i = 0; !is_done(at); i++, at = next) {
    const query_stage stage = query_stage_of<WIDTH>(bytes, i % 2),
                      other = query_stage_of<WIDTH>(bytes, 1 - i % 2);
    step<MAPPED>(&next);
    const bool has_next = !is_done(next);
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads(); // this tile has arrived, and all reads of the other stage are done
    float weights[1][query_tiles_of_8][4], d_s[query_tiles_of_8][4];
    uint32_t p_left[tile_queries / 16][4], d_s_left[tile_queries / 16][4];
    wgmma_fence(weights[0], d_s);
    start_product<major::k, major::k, WIDTH, own_rows, tile_queries>(
        weights[0], k_rows, factor_of<tile_queries>(stage.q, 0), false);
    wgmma_commit();
    start_product<major::k, major::k, WIDTH, own_rows, tile_queries>(
        d_s, v_rows, factor_of<tile_queries>(stage.d_o, 0), false);
    wgmma_commit();
    query_statistics statistics;
    if (has_next) {
      copy_stage<MAPPED, WIDTH>(p, other, b, next);
      statistics = load_statistics<MAPPED, DOCUMENTS>(p, b, next);
    }
    cp_async_commit();
    wgmma_wait<1>(weights[0]);
    const int position = query_tile_at<MAPPED, tile_queries>(s, at.tile).position - first - row;
    if constexpr (DOCUMENTS) hide_from_queries(weights, stage.low, first + row);
    weigh_keys(weights, stage.lse, scale, position, s.window);
    round_to_left(weights[0], p_left);
    wgmma_fence(d_v, p_left);
    start_product<major::mn, tile_queries>(d_v, p_left, factor_of<tile_queries>(stage.d_o, 0), true);
    wgmma_commit();
    wgmma_wait<1>(d_s);
    differentiate_keys(weights[0], d_s, stage.delta);
    round_to_left(d_s, d_s_left);
    wgmma_fence(d_k, d_s_left);
    start_product<major::mn, tile_queries>(d_k, d_s_left, factor_of<tile_queries>(stage.q, 0), true);
    wgmma_commit();
    if (has_next) store_statistics<DOCUMENTS>(other, statistics);
    wgmma_wait<0>(d_v, d_k, p_left, d_s_left);
  }
  if (p.rotates_back) rotate_back<DOCUMENTS, WIDTH>(p, d_k, b, first + row, s.S - 1);
  if (p.head_parts > 1) {
    store_parts<MAPPED, WIDTH>(p, block, d_k, d_v, first + row);
    return;
  }
  __syncthreads(); // K and V have been read; results go through their memory
  const float one[2] = {1.0f, 1.0f}, scales[2] = {s.scale, s.scale};
  store_keys<MAPPED, WIDTH>(v, row, d_v, one, p.d_v + kv * s.D, s, b, first + row);
  store_keys<MAPPED, WIDTH>(k, row, d_k, scales, p.d_k + kv * s.D, s, b, first + row);
}

// ---- d_Q

constexpr int tile_keys = 128, key_tiles_of_8 = tile_keys / 8, half_keys = tile_keys / 2;

// Dynamic shared memory: Q, d_O; two stages of K, V.
template <int WIDTH>
constexpr int queries_shared_bytes = 2 * tile_bytes<WIDTH, own_rows> + 4 * tile_bytes<WIDTH, tile_keys>;

// P in place of S. `first_key`: of the tile, counted from the warp's first query.
__device__ __forceinline__ void weigh_queries(float (&p)[1][key_tiles_of_8][4], const float (&lse)[2],
                                              float scale, int first_key, int window) {
  if (first_key + tile_keys > 1) hide_right(p, first_key);
  if (first_key + window < 16) hide_left(p, first_key + window);
#pragma unroll
  for (int n = 0; n < key_tiles_of_8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) p[0][n][i] = exp2_approx(p[0][n][i] * scale - lse[i / 2]);
}

// d_S of one half of the tile's keys, as a left factor.
template <int HALF>
__device__ __forceinline__ void
differentiate_queries(const float (&p)[key_tiles_of_8][4], const float (&d_p)[key_tiles_of_8][4],
                      const float (&delta)[2], uint32_t (&left)[half_keys / 16][4]) {
  float d_s[half_keys / 8][4];
#pragma unroll
  for (int n = 0; n < half_keys / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int from = HALF * half_keys / 8 + n;
      d_s[n][i] = p[from][i] * (d_p[from][i] - delta[i / 2]);
    }
  round_to_left(d_s, left);
}

template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__global__ void __launch_bounds__(threads_count, blocks_at_once) make_d_q(attention_gradient<bf16> p) {
  FSDP_SHARED_DYNAMIC(bytes);
  constexpr int one = tile_bytes<WIDTH, tile_keys>, tiles = 2 * tile_bytes<WIDTH, own_rows>;
  const smem<bf16> q = bytes.part<bf16>(0, own_rows * WIDTH),
                   d_o = bytes.part<bf16>(tile_bytes<WIDTH, own_rows>, own_rows * WIDTH);
  const attention_shape &s = p.shape;
  const query_block block = query_block_at<own_rows>(s, int(blockIdx.x), block_row());
  if (block.tile < 0) return;
  const int b = block.b, head = block.head, kv = head / s.G * s.D;
  const query_range own = query_tile_at<MAPPED, own_rows>(s, block.tile);
  const key_span span = keys_before<own_rows, tile_keys>(own, low_of<DOCUMENTS>(s, b, own.position));
  const int first = own.position; // of the block's first query
  const int group_row = int(threadIdx.x) / warpgroup_threads * warpgroup_rows;
  const int row = int(threadIdx.x) / warp_lanes * 16; // of the warp
  key_run run;
  auto copy_stage = [&](int stage, int key) {
    move_to<MAPPED, tile_keys>(s, b, key, &run);
    copy_key_panels<MAPPED, WIDTH, tile_keys, threads_count>(
        bytes.part<bf16>(tiles + 2 * stage * one, tile_keys * WIDTH), p.k + kv, s, b, key, run,
        int(threadIdx.x));
    copy_key_panels<MAPPED, WIDTH, tile_keys, threads_count>(
        bytes.part<bf16>(tiles + (2 * stage + 1) * one, tile_keys * WIDTH), p.v + kv, s, b, key, run,
        int(threadIdx.x));
  };
  copy_query_panels<MAPPED, WIDTH, own_rows, threads_count>(q, p.q + head * s.D, s.Q, s, b, own,
                                                            int(threadIdx.x));
  copy_query_panels<MAPPED, WIDTH, own_rows, threads_count>(d_o, p.d_o + head * s.D, s.H * s.D, s, b, own,
                                                            int(threadIdx.x));
  copy_stage(0, span.first);
  cp_async_commit();
  float lse[2], delta[2], d_q[WIDTH / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = own.index + row + int(threadIdx.x) % warp_lanes / 4 + half * 8;
    const bool exists = query < own.end;
    lse[half] = exists ? log2_e * global_load(p.lse + statistic_at(s, b, head, query)) : 0.0f;
    delta[half] = exists ? global_load(p.delta + statistic_at(s, b, head, query)) : 0.0f;
  }
  const uint64_t q_rows = factor_of<own_rows>(q, group_row), d_o_rows = factor_of<own_rows>(d_o, group_row);
  const float scale = s.scale * log2_e;
  first_keys<1> low = {};
  if constexpr (DOCUMENTS) low = first_keys_of<1>(s, b, own, row);
  for (int key = span.first, stage = 0; key < span.end; key += tile_keys, stage = 1 - stage) {
    const smem<bf16> k = bytes.part<bf16>(tiles + 2 * stage * one, tile_keys * WIDTH);
    const smem<bf16> v = bytes.part<bf16>(tiles + (2 * stage + 1) * one, tile_keys * WIDTH);
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads(); // this tile has arrived, and all reads of the other stage are done
    float weights[1][key_tiles_of_8][4], d_p[key_tiles_of_8][4];
    uint32_t left[half_keys / 16][4], left_of_rest[half_keys / 16][4];
    wgmma_fence(weights[0], d_p);
    start_product<major::k, major::k, WIDTH, own_rows, tile_keys>(weights[0], q_rows,
                                                                  factor_of<tile_keys>(k, 0), false);
    wgmma_commit();
    start_product<major::k, major::k, WIDTH, own_rows, tile_keys>(d_p, d_o_rows, factor_of<tile_keys>(v, 0),
                                                                  false);
    wgmma_commit();
    wgmma_wait<1>(weights[0]);
    if constexpr (DOCUMENTS) hide_before(weights, low, key);
    weigh_queries(weights, lse, scale, key - first - row, s.window);
    // Here, and not before P: else ptxas (13.0) moves the wait for d_P up, and makes P after it.
    if (key + tile_keys < span.end) copy_stage(1 - stage, key + tile_keys);
    cp_async_commit();
    wgmma_wait<0>(d_p);
    differentiate_queries<0>(weights[0], d_p, delta, left);
    wgmma_fence(d_q, left);
    start_product<major::mn, tile_keys>(d_q, left, factor_of<tile_keys>(k, 0), true);
    differentiate_queries<1>(weights[0], d_p, delta, left_of_rest);
    wgmma_fence(left_of_rest);
    start_product<major::mn, tile_keys>(d_q, left_of_rest, factor_of<tile_keys>(k, half_keys), true);
    wgmma_commit();
    wgmma_wait<0>(d_q, left, left_of_rest);
  }
  if (p.rotates_back) rotate_back<DOCUMENTS, WIDTH>(p, d_q, b, first + row, first + own.end - own.index - 1);
  __syncthreads(); // Q has been read; results go through its memory
  const float scales[2] = {s.scale, s.scale};
  store_queries<MAPPED, WIDTH>(q, row, d_q, scales, p.d_q + head * s.D, s.Q, s, b, own.index + row, own.end);
}

// ---- Launches

template <int WIDTH> attention_grid keys_grid(const attention_shape &s, int head_parts) {
  return key_grid<own_rows, tile_queries>(s, head_parts, threads_count, keys_shared_bytes<WIDTH>,
                                          blocks_at_once);
}

template <int WIDTH> attention_grid queries_grid(const attention_shape &s) {
  return query_grid<own_rows, tile_keys>("d_q", s, threads_count, queries_shared_bytes<WIDTH>,
                                         blocks_at_once);
}

template <int WIDTH, bool MAPPED, bool DOCUMENTS = false>
void run(const attention_gradient<bf16> &p, launch_stream stream) {
  launch(launch_of(keys_grid<WIDTH>(p.shape, p.head_parts), stream), make_d_k_d_v<WIDTH, MAPPED, DOCUMENTS>,
         p);
  launch(launch_of(queries_grid<WIDTH>(p.shape), stream), make_d_q<WIDTH, MAPPED, DOCUMENTS>, p);
}

template <int WIDTH> void run_mapped(const attention_gradient<bf16> &p, launch_stream stream) {
  if (p.shape.starts) {
    run<WIDTH, true, true>(p, stream);
  } else if (attention_is_plain(p.shape)) {
    run<WIDTH, false>(p, stream);
  } else {
    run<WIDTH, true>(p, stream);
  }
}

} // namespace

attention_grid attention_hopper_d_k_d_v_grid(const attention_shape &s, int head_parts) {
  return s.D <= 64 ? keys_grid<64>(s, head_parts) : keys_grid<128>(s, head_parts);
}
attention_grid attention_hopper_d_q_grid(const attention_shape &s) {
  return s.D <= 64 ? queries_grid<64>(s) : queries_grid<128>(s);
}

void attention_hopper_backward(const attention_gradient<bf16> &p, launch_stream stream) {
  p.shape.D <= 64 ? run_mapped<64>(p, stream) : run_mapped<128>(p, stream);
}
