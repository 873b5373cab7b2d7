// Attention's gradients by Hopper's asynchronous products of warpgroups: bf16, head dimensions that are
// multiples of 8 up to 128. See attention.cuh, and attention_tensor_backward.cu for the formulas.
//
// As there, two kernels sum their results in registers in a fixed order, and S and d_P are computed twice. A
// block has a warpgroup that copies, and two that compute, each with 64 rows of the results. The left factors
// of the last products are what the first ones leave in registers: P^T and d_S^T in the kernel that owns
// keys, d_S in the one that owns queries, so nothing but tiles of Q, K, V and d_O ever lies in shared memory.
//
//   owns keys      S^T = K Q^T and d_P^T = V d_O^T start together; P^T is made while d_P^T is on its way, and
//                  d_S^T while d_V += P^T d_O is; then d_K += d_S^T Q
//   owns queries   S = Q K^T and d_P = d_O V^T start together; P is made while d_P is on its way, and d_S of
//                  half the keys while d_Q += d_S K of the others is
//
// Tiles of the other side have several stages in shared memory. The two warpgroups take turns: one starts S
// when the other has its S, so that one's exponentials run beside the other's products.
#include "kernels/cuda/attention/attention_hopper.cuh"

namespace {

constexpr int consumers = 2;
constexpr int threads_count = (1 + consumers) * warpgroup_threads, own_rows = consumers * warpgroup_rows;
static_assert(own_rows == FSDP_ATTENTION_WGMMA_KEYS, "of which the plan counts the blocks");
constexpr int blocks_at_once = 1; // of a multiprocessor
// Of a thread that copies and of one that computes: together the 168 that each of a block's 384 may have.
// With 232, ptxas (13.0) runs products one after the other.
constexpr int copy_registers = 24, compute_registers = 240;
static_assert(copy_registers + consumers * compute_registers <= 168 * (1 + consumers), "what the block has");

// Named barriers. Of each stage: it is full, for each of the warpgroups that compute; it is empty. Of each of
// these warpgroups: its turn to start S. And: both have read what lies in shared memory.
template <int STAGES> struct barriers {
  static constexpr int full = 1, empty = full + STAGES * consumers, turn = empty + STAGES,
                       done = turn + consumers;
  static_assert(done < 16, "the block's barriers");
};
constexpr int full_threads = 2 * warpgroup_threads, empty_threads = threads_count,
              turn_threads = consumers * warpgroup_threads, done_threads = consumers * warpgroup_threads;

// The stages, as the copying warpgroup goes through them.
template <int STAGES> struct copy_ring {
  typedef barriers<STAGES> at;
  copy_in_progress copy = {0};
  int stage = 0;
  bool wraps = false; // stages have been used before

  // The next stage, once it is empty.
  __device__ __forceinline__ int open() const {
    if (wraps) named_barrier_sync(at::empty + stage, empty_threads);
    return stage;
  }
  // All its copies have started.
  __device__ __forceinline__ void close() {
    cp_async_commit();
    announce<consumers, 1>(&copy, at::full + stage * consumers);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    wraps = wraps || stage == 0;
  }
  // No stage follows. Nothing is left pending at the barriers.
  __device__ __forceinline__ void finish() {
    announce<consumers, 0>(&copy, 0);
    for (int i = 0; i < STAGES; i++)
      if (wraps || i < stage) named_barrier_sync(at::empty + i, empty_threads);
  }
};

// As a warpgroup that computes goes through them: `consumer` 0 or 1.
template <int STAGES> struct compute_ring {
  typedef barriers<STAGES> at;
  int consumer, stage = 0;

  // Before the first stage, of which there is one at least.
  __device__ __forceinline__ void begin() const {
    if (consumer == 1) named_barrier_arrive(at::turn, turn_threads);
  }
  // The stage has arrived, and it is this warpgroup's turn.
  __device__ __forceinline__ void open() const {
    named_barrier_sync(at::full + stage * consumers + consumer, full_threads);
    named_barrier_sync(at::turn + consumer, turn_threads);
  }
  __device__ __forceinline__ void pass_turn(bool is_last) const {
    if (consumer == 0 || !is_last) named_barrier_arrive(at::turn + 1 - consumer, turn_threads);
  }
  // All products with the stage are done.
  __device__ __forceinline__ void close() {
    named_barrier_arrive(at::empty + stage, empty_threads);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
};

// Which warpgroup a thread is of: 0 copies, 1 and 2 compute.
__device__ __forceinline__ int warpgroup_index() {
  return int(threadIdx.x) / warpgroup_threads;
}

// A tile of ROWS rows as a factor: its rows from `row` on.
template <int ROWS> __device__ __forceinline__ uint64_t factor_of(const smem<bf16> &tile, int row) {
  return wgmma_descriptor(tile.address(row * panel_columns), panel_bytes<ROWS>);
}

// ---- d_K and d_V

constexpr int tile_queries = 64, query_tiles_of_8 = tile_queries / 8;

constexpr int query_stages = 3;

// Dynamic shared memory: K, V; stages of Q, d_O; as many of lse, delta and first keys.
template <int WIDTH>
constexpr int keys_shared_bytes = 2 * tile_bytes<WIDTH, own_rows> +
                                  query_stages *(2 * tile_bytes<WIDTH, tile_queries> + 3 * tile_queries * 4);

struct query_stage {
  smem<bf16> q, d_o;
  smem<float> lse, delta; // lse in units of ln 2
  smem<int> low;          // the first key that each sees; with DOCUMENTS alone
};

template <int WIDTH>
__device__ __forceinline__ query_stage query_stage_of(const smem<unsigned char> &bytes, int i) {
  constexpr int one = tile_bytes<WIDTH, tile_queries>, tiles = 2 * tile_bytes<WIDTH, own_rows>;
  const int statistics = tiles + query_stages * 2 * one;
  query_stage stage;
  stage.q = bytes.part<bf16>(tiles + 2 * i * one, tile_queries * WIDTH);
  stage.d_o = bytes.part<bf16>(tiles + (2 * i + 1) * one, tile_queries * WIDTH);
  stage.lse = bytes.part<float>(statistics + 3 * i * tile_queries * 4, tile_queries);
  stage.delta = bytes.part<float>(statistics + (3 * i + 1) * tile_queries * 4, tile_queries);
  stage.low = bytes.part<int>(statistics + (3 * i + 2) * tile_queries * 4, tile_queries);
  return stage;
}

// A tile of queries, by the warpgroup that copies: thread i has query i's statistics.
template <bool MAPPED, bool DOCUMENTS, int WIDTH>
__device__ __forceinline__ void copy_queries_of(const attention_gradient<bf16> &p, const query_stage &stage,
                                                int b, const query_walk &walk) {
  const attention_shape &s = p.shape;
  const query_range at = query_tile_at<MAPPED, tile_queries>(s, walk.tile);
  const int thread = int(threadIdx.x);
  query_statistics own;
  if (thread < tile_queries) own = statistics_of<DOCUMENTS>(p, b, walk.head, at, thread);
  copy_query_panels<MAPPED, WIDTH, tile_queries, warpgroup_threads>(stage.q, p.q + walk.head * s.D, s.Q, s, b,
                                                                    at, thread);
  copy_query_panels<MAPPED, WIDTH, tile_queries, warpgroup_threads>(stage.d_o, p.d_o + walk.head * s.D,
                                                                    s.H * s.D, s, b, at, thread);
  if (thread >= tile_queries) return;
  stage.lse[thread] = own.lse;
  stage.delta[thread] = own.delta;
  if constexpr (DOCUMENTS) stage.low[thread] = own.low;
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

template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__device__ __forceinline__ void copy_for_keys(const attention_gradient<bf16> &p,
                                              const smem<unsigned char> &bytes, const key_block &block,
                                              query_walk at) {
  const attention_shape &s = p.shape;
  const int kv = block.head * s.D;
  if (is_done(at)) return; // no query sees a key
  key_run run;
  move_to<MAPPED, own_rows>(s, block.b, block.first, &run);
  copy_key_panels<MAPPED, WIDTH, own_rows, warpgroup_threads>(bytes.part<bf16>(0, own_rows * WIDTH), p.k + kv,
                                                              s, block.b, block.first, run, int(threadIdx.x));
  copy_key_panels<MAPPED, WIDTH, own_rows, warpgroup_threads>(
      bytes.part<bf16>(tile_bytes<WIDTH, own_rows>, own_rows * WIDTH), p.v + kv, s, block.b, block.first, run,
      int(threadIdx.x));
  copy_ring<query_stages> ring;
#pragma unroll 1
  for (; !is_done(at); step<MAPPED>(&at)) {
    copy_queries_of<MAPPED, DOCUMENTS, WIDTH>(p, query_stage_of<WIDTH>(bytes, ring.open()), block.b, at);
    ring.close();
  }
  ring.finish();
}

template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__device__ __forceinline__ void compute_for_keys(const attention_gradient<bf16> &p,
                                                 const smem<unsigned char> &bytes, const key_block &block,
                                                 query_walk at, int consumer) {
  const attention_shape &s = p.shape;
  const smem<bf16> k = bytes.part<bf16>(0, own_rows * WIDTH),
                   v = bytes.part<bf16>(tile_bytes<WIDTH, own_rows>, own_rows * WIDTH);
  const int b = block.b, kv = block.head, first = block.first;
  const int row = consumer * warpgroup_rows + int(threadIdx.x) % warpgroup_threads / warp_lanes * 16;
  const uint64_t k_rows = factor_of<own_rows>(k, consumer * warpgroup_rows),
                 v_rows = factor_of<own_rows>(v, consumer * warpgroup_rows);
  float d_k[WIDTH / 8][4] = {}, d_v[WIDTH / 8][4] = {};
  const float scale = s.scale * log2_e;
  compute_ring<query_stages> ring = {consumer};
  if (!is_done(at)) ring.begin();
#pragma unroll 1
  while (!is_done(at)) {
    const query_stage stage = query_stage_of<WIDTH>(bytes, ring.stage);
    const int position = query_tile_at<MAPPED, tile_queries>(s, at.tile).position - first - row;
    step<MAPPED>(&at);
    float weights[1][query_tiles_of_8][4], d_s[query_tiles_of_8][4];
    uint32_t p_left[tile_queries / 16][4], d_s_left[tile_queries / 16][4];
    ring.open();
    wgmma_fence(weights[0], d_s);
    start_product<major::k, major::k, WIDTH, own_rows, tile_queries>(
        weights[0], k_rows, factor_of<tile_queries>(stage.q, 0), false);
    wgmma_commit();
    start_product<major::k, major::k, WIDTH, own_rows, tile_queries>(
        d_s, v_rows, factor_of<tile_queries>(stage.d_o, 0), false);
    wgmma_commit();
    wgmma_wait<1>(weights[0]);
    ring.pass_turn(is_done(at));
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
    wgmma_wait<0>(d_v, d_k, p_left, d_s_left);
    ring.close();
  }
  if (p.rotates_back) rotate_back<DOCUMENTS, WIDTH>(p, d_k, b, first + row, s.S - 1);
  if (p.head_parts > 1) {
    store_parts<MAPPED, WIDTH>(p, block, d_k, d_v, first + row);
    return;
  }
  // K and V have been read; results go through their memory.
  named_barrier_sync(barriers<query_stages>::done, done_threads);
  const float one[2] = {1.0f, 1.0f}, scales[2] = {s.scale, s.scale};
  store_keys<MAPPED, WIDTH>(v, row, d_v, one, p.d_v + kv * s.D, s, b, first + row);
  store_keys<MAPPED, WIDTH>(k, row, d_k, scales, p.d_k + kv * s.D, s, b, first + row);
}

// DOCUMENTS: they are told apart; with a map of rows, whichever rows there are.
template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__global__ void __launch_bounds__(threads_count, blocks_at_once) make_d_k_d_v(attention_gradient<bf16> p) {
  FSDP_SHARED_DYNAMIC(bytes);
  const key_block block = key_block_at<own_rows>(p.shape, p.head_parts, int(blockIdx.x), block_row());
  if (block.first >= p.shape.S) return;
  const int past_query = queries_end<DOCUMENTS, own_rows>(p.shape, block.b, block.first);
  const query_walk walk = walk_of<MAPPED, tile_queries>(p.shape, p.head_parts, block, past_query);
  const int group = warpgroup_index();
  if (group == 0) {
    registers_release<copy_registers>();
    copy_for_keys<WIDTH, MAPPED, DOCUMENTS>(p, bytes, block, walk);
  } else {
    registers_take<compute_registers>();
    compute_for_keys<WIDTH, MAPPED, DOCUMENTS>(p, bytes, block, walk, group - 1);
  }
}

// ---- d_Q

constexpr int tile_keys = 128, key_tiles_of_8 = tile_keys / 8, half_keys = tile_keys / 2;

constexpr int key_stages = 2;

// Dynamic shared memory: Q, d_O; stages of K, V.
template <int WIDTH>
constexpr int queries_shared_bytes =
    2 * tile_bytes<WIDTH, own_rows> + key_stages * 2 * tile_bytes<WIDTH, tile_keys>;

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

// What all threads of a block know: its queries, and the keys that they see.
struct query_work {
  query_block block;
  query_range own;
  key_span span;
};

template <int WIDTH, bool MAPPED>
__device__ __forceinline__ void copy_for_queries(const attention_gradient<bf16> &p,
                                                 const smem<unsigned char> &bytes, const query_work &work) {
  constexpr int one = tile_bytes<WIDTH, tile_keys>, tiles = 2 * tile_bytes<WIDTH, own_rows>;
  const attention_shape &s = p.shape;
  const int b = work.block.b, head = work.block.head, kv = head / s.G * s.D, thread = int(threadIdx.x);
  copy_query_panels<MAPPED, WIDTH, own_rows, warpgroup_threads>(
      bytes.part<bf16>(0, own_rows * WIDTH), p.q + head * s.D, s.Q, s, b, work.own, thread);
  copy_query_panels<MAPPED, WIDTH, own_rows, warpgroup_threads>(
      bytes.part<bf16>(tile_bytes<WIDTH, own_rows>, own_rows * WIDTH), p.d_o + head * s.D, s.H * s.D, s, b,
      work.own, thread);
  copy_ring<key_stages> ring;
  key_run run;
#pragma unroll 1
  for (int key = work.span.first; key < work.span.end; key += tile_keys) {
    const int at = tiles + 2 * ring.open() * one;
    move_to<MAPPED, tile_keys>(s, b, key, &run);
    copy_key_panels<MAPPED, WIDTH, tile_keys, warpgroup_threads>(bytes.part<bf16>(at, tile_keys * WIDTH),
                                                                 p.k + kv, s, b, key, run, thread);
    copy_key_panels<MAPPED, WIDTH, tile_keys, warpgroup_threads>(
        bytes.part<bf16>(at + one, tile_keys * WIDTH), p.v + kv, s, b, key, run, thread);
    ring.close();
  }
  ring.finish();
}

__device__ __forceinline__ float sum_of(const float (&p)[key_tiles_of_8][4]) {
  float sums[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < key_tiles_of_8; n++) {
    sums[0] += p[n][0] + p[n][1];
    sums[1] += p[n][2] + p[n][3];
  }
  return sums[0] + sums[1];
}

template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__device__ __forceinline__ void compute_for_queries(const attention_gradient<bf16> &p,
                                                    const smem<unsigned char> &bytes, const query_work &work,
                                                    int consumer) {
  constexpr int one = tile_bytes<WIDTH, tile_keys>, tiles = 2 * tile_bytes<WIDTH, own_rows>;
  const smem<bf16> q = bytes.part<bf16>(0, own_rows * WIDTH),
                   d_o = bytes.part<bf16>(tile_bytes<WIDTH, own_rows>, own_rows * WIDTH);
  const attention_shape &s = p.shape;
  const int b = work.block.b, head = work.block.head;
  const query_range &own = work.own;
  const int first = own.position; // of the block's first query
  const int row = consumer * warpgroup_rows + int(threadIdx.x) % warpgroup_threads / warp_lanes * 16;
  float lse[2], delta[2], d_q[WIDTH / 8][4] = {};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int query = own.index + row + int(threadIdx.x) % warp_lanes / 4 + half * 8;
    const bool exists = query < own.end;
    lse[half] = exists ? log2_e * global_load(p.lse + statistic_at(s, b, head, query)) : 0.0f;
    delta[half] = exists ? global_load(p.delta + statistic_at(s, b, head, query)) : 0.0f;
  }
  const uint64_t q_rows = factor_of<own_rows>(q, consumer * warpgroup_rows),
                 d_o_rows = factor_of<own_rows>(d_o, consumer * warpgroup_rows);
  const float scale = s.scale * log2_e;
  first_keys<1> low = {};
  if constexpr (DOCUMENTS) low = first_keys_of<1>(s, b, own, row);
  compute_ring<key_stages> ring = {consumer};
  if (work.span.first < work.span.end) ring.begin();
#pragma unroll 1
  for (int key = work.span.first; key < work.span.end; key += tile_keys) {
    const smem<bf16> k = bytes.part<bf16>(tiles + 2 * ring.stage * one, tile_keys * WIDTH);
    const smem<bf16> v = bytes.part<bf16>(tiles + (2 * ring.stage + 1) * one, tile_keys * WIDTH);
    float weights[1][key_tiles_of_8][4], d_p[key_tiles_of_8][4];
    uint32_t left[half_keys / 16][4], left_of_rest[half_keys / 16][4];
    ring.open();
    wgmma_fence(weights[0], d_p);
    start_product<major::k, major::k, WIDTH, own_rows, tile_keys>(weights[0], q_rows,
                                                                  factor_of<tile_keys>(k, 0), false);
    wgmma_commit();
    start_product<major::k, major::k, WIDTH, own_rows, tile_keys>(d_p, d_o_rows, factor_of<tile_keys>(v, 0),
                                                                  false);
    wgmma_commit();
    wgmma_wait<1>(weights[0]);
    ring.pass_turn(key + tile_keys >= work.span.end);
    if constexpr (DOCUMENTS) hide_before(weights, low, key);
    weigh_queries(weights, lse, scale, key - first - row, s.window);
    // Else ptxas (13.0) moves the wait for d_P up, before P. It knows that P is never negative, but not the
    // scale.
    finish_before_wait(sum_of(weights[0]) * scale);
    wgmma_wait<0>(d_p);
    differentiate_queries<0>(weights[0], d_p, delta, left);
    wgmma_fence(d_q, left);
    start_product<major::mn, tile_keys>(d_q, left, factor_of<tile_keys>(k, 0), true);
    differentiate_queries<1>(weights[0], d_p, delta, left_of_rest);
    wgmma_fence(left_of_rest);
    start_product<major::mn, tile_keys>(d_q, left_of_rest, factor_of<tile_keys>(k, half_keys), true);
    wgmma_commit();
    wgmma_wait<0>(d_q, left, left_of_rest);
    ring.close();
  }
  if (p.rotates_back) rotate_back<DOCUMENTS, WIDTH>(p, d_q, b, first + row, first + own.end - own.index - 1);
  named_barrier_sync(barriers<key_stages>::done,
                     done_threads); // Q has been read; results go through its memory
  const float scales[2] = {s.scale, s.scale};
  store_queries<MAPPED, WIDTH>(q, row, d_q, scales, p.d_q + head * s.D, s.Q, s, b, own.index + row, own.end);
}

template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__global__ void __launch_bounds__(threads_count, blocks_at_once) make_d_q(attention_gradient<bf16> p) {
  FSDP_SHARED_DYNAMIC(bytes);
  query_work work;
  work.block = query_block_at<own_rows>(p.shape, int(blockIdx.x), block_row());
  if (work.block.tile < 0) return;
  work.own = query_tile_at<MAPPED, own_rows>(p.shape, work.block.tile);
  work.span =
      keys_before<own_rows, tile_keys>(work.own, low_of<DOCUMENTS>(p.shape, work.block.b, work.own.position));
  const int group = warpgroup_index();
  if (group == 0) {
    registers_release<copy_registers>();
    copy_for_queries<WIDTH, MAPPED>(p, bytes, work);
  } else {
    registers_take<compute_registers>();
    compute_for_queries<WIDTH, MAPPED, DOCUMENTS>(p, bytes, work, group - 1);
  }
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
