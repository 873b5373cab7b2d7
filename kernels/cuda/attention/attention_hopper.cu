// Attention's forward by warpgroups (wgmma, sm_90a): bf16, head dimensions that are multiples of 8 up to 128.
// See attention.cuh and hopper.cuh. The cut into roles, turns and overlapped products follows Shah et al.,
// "FlashAttention-3", 2024.
//
//   block     128 queries of one head: a warpgroup that copies, and two that compute 64 queries each; walks
//             the tiles of 128 keys up to the diagonal
//   copies    Q, then K and V tiles, two of each in shared memory
//   scores    S = Q K^T in registers; running maximum and sum (base 2); P rounded to bf16 is the left factor
//             of the next product, in registers
//   out       O += P V in registers, divided by the sums at the end
//
// Tile i + 1's S and tile i's P V are started together; the softmax of tile i + 1 runs beside P V. The two
// warpgroups take turns at starting products, so that one's softmax runs beside the other's products.
#include "kernels/cuda/attention/attention_hopper.cuh"

#include <float.h>
#include <math.h>

namespace {

constexpr int consumers = 2, stages = 2;
constexpr int queries = consumers * warpgroup_rows, keys = 128;
constexpr int threads_count = (1 + consumers) * warpgroup_threads;
constexpr int blocks_at_once = 1; // of a multiprocessor
// Of a thread that copies and of one that computes: together the 168 that each of a block's 384 may have.
constexpr int copy_registers = 40, compute_registers = 232;
static_assert(copy_registers + consumers * compute_registers <= 168 * (1 + consumers), "what the block has");

// Dynamic shared memory: Q; K tiles; V tiles.
template <int WIDTH> constexpr int keys_bytes = tile_bytes<WIDTH, keys>;
template <int WIDTH> constexpr int shared_bytes = tile_bytes<WIDTH, queries> + 2 * stages *keys_bytes<WIDTH>;
template <int WIDTH> __device__ __forceinline__ int k_at(int stage) {
  return tile_bytes<WIDTH, queries> + stage * keys_bytes<WIDTH>;
}
template <int WIDTH> __device__ __forceinline__ int v_at(int stage) {
  return k_at<WIDTH>(stages + stage);
}

// Named barriers. Of each K and V tile: it is full, for each of the warpgroups that compute; it is empty. Of
// each of these warpgroups: its turn to start products.
constexpr int k_full = 1, v_full = k_full + stages * consumers, k_empty = v_full + stages * consumers,
              v_empty = k_empty + stages, turn = v_empty + stages;
constexpr int full_threads = 2 * warpgroup_threads, empty_threads = threads_count,
              turn_threads = consumers * warpgroup_threads;
static_assert(turn + consumers <= 16, "the block's barriers");

// What all threads of a block know: its queries, and the keys from first_key to `end` - 1 that they see.
struct block_range {
  query_range own;
  int b, head, first_key, end;
};

template <bool MAPPED, bool DOCUMENTS>
__device__ __forceinline__ block_range range_of(const attention_shape &s, const query_block &block) {
  const query_range own = query_tile_at<MAPPED, queries>(s, block.tile);
  const key_span span = keys_before<queries, keys>(own, low_of<DOCUMENTS>(s, block.b, own.position));
  return {own, block.b, block.head, span.first, span.end};
}

// ---- Copies

// K of tile i + 1 goes before V of tile i: the order in which they are needed.
template <int WIDTH, bool MAPPED, bool FENCED>
__device__ __forceinline__ void copy_tiles(const attention_forward<bf16> &p, const smem<unsigned char> &bytes,
                                           const block_range &range) {
  const attention_shape &s = p.shape;
  const int thread = int(threadIdx.x), kv = range.head / s.G * s.D;
  copy_query_panels<MAPPED, WIDTH, queries, warpgroup_threads>(
      bytes.part<bf16>(0, queries * WIDTH), p.q + range.head * s.D, s.Q, s, range.b, range.own, thread);
  copy_in_progress copy = {0};
  key_run k_run, v_run;
  const int tiles = (range.end - range.first_key + keys - 1) / keys;
#pragma unroll 1
  for (int i = 0; i <= tiles; i++) {
    if (i < tiles) {
      const int stage = i % stages, key = range.first_key + i * keys;
      if (i >= stages) named_barrier_sync(k_empty + stage, empty_threads);
      move_to<MAPPED, keys>(s, range.b, key, &k_run);
      copy_key_panels<MAPPED, WIDTH, keys, warpgroup_threads>(
          bytes.part<bf16>(k_at<WIDTH>(stage), keys * WIDTH), p.k + kv, s, range.b, key, k_run, thread);
      cp_async_commit();
      announce<consumers, 1, FENCED>(&copy, k_full + stage * consumers);
    }
    if (i > 0) {
      const int stage = (i - 1) % stages, key = range.first_key + (i - 1) * keys;
      if (i > stages) named_barrier_sync(v_empty + stage, empty_threads);
      move_to<MAPPED, keys>(s, range.b, key, &v_run);
      copy_key_panels<MAPPED, WIDTH, keys, warpgroup_threads>(
          bytes.part<bf16>(v_at<WIDTH>(stage), keys * WIDTH), p.v + kv, s, range.b, key, v_run, thread);
      cp_async_commit();
      announce<consumers, 1, FENCED>(&copy, v_full + stage * consumers);
    }
  }
  announce<consumers, 0, FENCED>(&copy, 0);
}

// ---- Products and softmax

// A thread's state of its rows: g and g + 8 of the warp's 16.
struct row_statistics {
  float most[2], sum[2]; // in units of log2(e) / sqrt(D); the sum of this thread's columns
};

// P in place of S; what was summed before is to be scaled by `correction`.
__device__ __forceinline__ void soften(float (&scores)[1][keys / 8][4], row_statistics *rows, float scale,
                                       float (&correction)[2]) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float greatest = scores[0][0][2 * half];
#pragma unroll
    for (int n = 0; n < keys / 8; n++)
      greatest = fmaxf(greatest, fmaxf(scores[0][n][2 * half], scores[0][n][2 * half + 1]));
    greatest = fmaxf(greatest, __shfl_xor_sync(whole_warp, greatest, 1));
    greatest = fmaxf(greatest, __shfl_xor_sync(whole_warp, greatest, 2));
    const float most = fmaxf(rows->most[half], greatest * scale);
    correction[half] = exp2_approx(rows->most[half] - most);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < keys / 8; n++)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; i++) {
        scores[0][n][i] = exp2_approx(scores[0][n][i] * scale - most);
        sum += scores[0][n][i];
      }
    rows->most[half] = most;
    rows->sum[half] = rows->sum[half] * correction[half] + sum;
  }
}

// Hides what the rows from position `first` on, of this warp, do not see of the tile from `key` on.
template <bool DOCUMENTS>
__device__ __forceinline__ void hide_keys(float (&scores)[1][keys / 8][4], int key, int first, int window,
                                          const first_keys<1> &low) {
  if (key + keys > first + 1) hide_right(scores, key - first);
  if constexpr (DOCUMENTS) {
    hide_before(scores, low, key);
  } else {
    if (key < first + 16 - window) hide_left(scores, key + window - first);
  }
}

template <int WIDTH>
__device__ __forceinline__ void scale_rows(float (&out)[WIDTH / 8][4], const float (&factor)[2]) {
#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) out[n][i] *= factor[i / 2];
}

template <int WIDTH, bool MAPPED>
__device__ __forceinline__ void finish(const attention_forward<bf16> &p, const smem<unsigned char> &bytes,
                                       const block_range &range, int row, const row_statistics &rows,
                                       const float (&out)[WIDTH / 8][4]) {
  const attention_shape &s = p.shape;
  const int lane = int(threadIdx.x) % warp_lanes, index = range.own.index + row;
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(whole_warp, sum, 1);
    sum += __shfl_xor_sync(whole_warp, sum, 2);
    inverse[half] = 1.0f / sum;
    const int query = index + lane / 4 + half * 8;
    if (lane % 4 == 0 && query < range.own.end)
      global_store(p.lse + statistic_at(s, range.b, range.head, query),
                   (rows.most[half] + log2f(sum)) / log2_e);
  }
  store_query_rows<MAPPED, WIDTH, queries>(bytes.part<bf16>(0, queries * WIDTH), row, out, inverse,
                                           p.o + range.head * s.D, s.H * s.D, s, range.b, index,
                                           range.own.end);
}

// `consumer`: 0 or 1.
template <int WIDTH, bool MAPPED, bool DOCUMENTS>
__device__ __forceinline__ void compute(const attention_forward<bf16> &p, const smem<unsigned char> &bytes,
                                        const block_range &range, int consumer) {
  const int row = consumer * warpgroup_rows + int(threadIdx.x) % warpgroup_threads / warp_lanes * 16;
  const int warp_first = range.own.position + row, window = p.shape.window;
  const float scale = p.shape.scale * log2_e;
  const int tiles = (range.end - range.first_key + keys - 1) / keys;
  const uint64_t q = wgmma_descriptor(bytes.address(consumer * warpgroup_rows * panel_row_bytes),
                                      panel_bytes<queries>),
                 k = wgmma_descriptor(bytes.address(k_at<WIDTH>(0)), panel_bytes<keys>),
                 v = wgmma_descriptor(bytes.address(v_at<WIDTH>(0)), panel_bytes<keys>);
  float scores[1][keys / 8][4], out[WIDTH / 8][4] = {}, correction[2];
  uint32_t weights[keys / 16][4];
  row_statistics rows = {{-FLT_MAX, -FLT_MAX}, {0, 0}}; // finite even if a tile hides all its keys from a row
  first_keys<1> low = {};
  if constexpr (DOCUMENTS) low = first_keys_of<1>(p.shape, range.b, range.own, row);
  if (consumer == 1 && tiles > 1) named_barrier_arrive(turn, turn_threads);
  named_barrier_sync(k_full + consumer, full_threads);
  wgmma_fence(scores[0]);
  start_product<major::k, major::k, WIDTH, queries, keys>(scores[0], q, k, false);
  wgmma_commit();
  wgmma_wait<0>(scores[0]);
  if (tiles > stages) named_barrier_arrive(k_empty, empty_threads);
  hide_keys<DOCUMENTS>(scores, range.first_key, warp_first, window, low);
  soften(scores, &rows, scale, correction);
  round_to_left(scores[0], weights);
#pragma unroll 1
  for (int i = 1; i < tiles; i++) {
    const int stage = i % stages, last = (i - 1) % stages;
    named_barrier_sync(k_full + stage * consumers + consumer, full_threads);
    named_barrier_sync(turn + consumer, turn_threads);
    wgmma_fence(scores[0], weights, out);
    start_product<major::k, major::k, WIDTH, queries, keys>(scores[0], q,
                                                            advance(k, stage * keys_bytes<WIDTH>), false);
    wgmma_commit();
    named_barrier_sync(v_full + last * consumers + consumer, full_threads);
    start_product<major::mn, keys>(out, weights, advance(v, last * keys_bytes<WIDTH>), true);
    wgmma_commit();
    if (consumer == 0 || i + 1 < tiles) named_barrier_arrive(turn + 1 - consumer, turn_threads);
    wgmma_wait<1>(scores[0]);
    if (i + stages < tiles) named_barrier_arrive(k_empty + stage, empty_threads);
    hide_keys<DOCUMENTS>(scores, range.first_key + i * keys, warp_first, window, low);
    soften(scores, &rows, scale, correction);
    finish_before_wait(rows.sum[0] + rows.sum[1]);
    wgmma_wait<0>(out, weights);
    if (i - 1 + stages < tiles) named_barrier_arrive(v_empty + last, empty_threads);
    scale_rows<WIDTH>(out, correction);
    round_to_left(scores[0], weights);
  }
  const int last = (tiles - 1) % stages;
  named_barrier_sync(v_full + last * consumers + consumer, full_threads);
  wgmma_fence(weights, out);
  start_product<major::mn, keys>(out, weights, advance(v, last * keys_bytes<WIDTH>), true);
  wgmma_commit();
  wgmma_wait<0>(out, weights);
  // The warpgroup has met at v_full since its last product with Q, whose rows now take those of O.
  finish<WIDTH, MAPPED>(p, bytes, range, row, rows, out);
}

// FENCED: as PTX asks (hopper.cuh). Without, for rows that no map is needed for. DOCUMENTS: they are told
// apart; with a map of rows, whichever rows there are.
template <int WIDTH, bool MAPPED, bool FENCED, bool DOCUMENTS = false>
__global__ void __launch_bounds__(threads_count, blocks_at_once) attend(attention_forward<bf16> p) {
  FSDP_SHARED_DYNAMIC(bytes);
  const query_block block = query_block_at<queries>(p.shape, int(blockIdx.x), block_row());
  if (block.tile < 0) return;
  const block_range range = range_of<MAPPED, DOCUMENTS>(p.shape, block);
  const int warpgroup = int(threadIdx.x) / warpgroup_threads;
  if (warpgroup == 0) {
    registers_release<copy_registers>();
    copy_tiles<WIDTH, MAPPED, FENCED>(p, bytes, range);
  } else {
    registers_take<compute_registers>();
    compute<WIDTH, MAPPED, DOCUMENTS>(p, bytes, range, warpgroup - 1);
  }
}

template <int WIDTH> attention_grid grid_of(const attention_shape &s) {
  return query_grid<queries, keys>("forward", s, threads_count, shared_bytes<WIDTH>, blocks_at_once);
}

template <int WIDTH> void run(const attention_forward<bf16> &p, bool fenced, launch_stream stream) {
  launch(launch_of(grid_of<WIDTH>(p.shape), stream),
         p.shape.starts                 ? attend<WIDTH, true, true, true>
         : !attention_is_plain(p.shape) ? attend<WIDTH, true, true>
         : fenced                       ? attend<WIDTH, false, true>
                                        : attend<WIDTH, false, false>,
         p);
}

} // namespace

attention_grid attention_hopper_forward_grid(const attention_shape &s) {
  return s.D <= 64 ? grid_of<64>(s) : grid_of<128>(s);
}

void attention_hopper_forward(const attention_forward<bf16> &p, bool fenced, launch_stream stream) {
  p.shape.D <= 64 ? run<64>(p, fenced, stream) : run<128>(p, fenced, stream);
}
