// Products grouped by expert by warpgroups (wgmma, sm_90a): bf16, dimensions that are multiples of 8. See
// grouped.cuh and hopper.cuh.
//
//   grid      a block for each multiprocessor, which takes one tile after the other: the copies of the next
//             one start while results of this one are stored
//   tile      128 x 256 of the result; walks the third dimension in steps of 64, four in shared memory
//   roles     a warpgroup copies both factors of a step, rows gathered as they are copied; two compute 64
//             rows each
//   result    fp32 in registers, from there to 16-byte stores
//
// The second warpgroup starts each tile when the first is a step ahead, so that one's products run while the
// other stores its results. Tiles of one expert lie in bands of 16 rows of tiles, column after column, so
// that neighbours share their rows and the expert's weight in L2.
#include "kernels/cuda/attention/attention_hopper.cuh"
#include "kernels/cuda/experts/grouped.cuh"
#include "kernels/cuda/gemm/gemm.cuh"

namespace {

constexpr int consumers = 2, stages = 4;
constexpr int tile_rows = consumers * warpgroup_rows, tile_columns = 256, tile_depth = 64;
constexpr int threads_count = (1 + consumers) * warpgroup_threads;
constexpr int blocks_at_once = 1; // of a multiprocessor
// Of a thread that copies and of one that computes: together the 168 that each of a block's 384 may have.
constexpr int copy_registers = 72, compute_registers = 216;
static_assert(copy_registers + consumers * compute_registers <= 168 * (1 + consumers), "what the block has");

constexpr int left_bytes = tile_rows * tile_depth * 2, right_bytes = tile_columns * tile_depth * 2;
constexpr int stage_bytes = left_bytes + right_bytes, shared_bytes = stages * (stage_bytes + 8);

// Named barriers. Of each stage: it is full, for each of the warpgroups that compute; it is empty. And: the
// first warpgroup is ahead.
constexpr int full = 1, empty = full + stages * consumers, ahead = empty + stages;
constexpr int full_threads = 2 * warpgroup_threads, empty_threads = threads_count,
              ahead_threads = consumers * warpgroup_threads;
static_assert(ahead < 16, "the block's barriers");
// It arrives when it has started so many steps of a tile, of tiles that have as many steps as there are
// stages: so it never arrives twice before the second has come once.
constexpr int lead = 2;
static_assert(lead < stages, "the first warpgroup waits for the second to empty stages");

// ---- Tiles

struct result_tile {
  int expert;      // -1: there is none
  int first, end;  // the operands' rows that it multiplies; of a gradient, all the expert's
  int row, column; // of the result's first element; of a product, row `first`
};

// Into how many tiles results are cut. Of a product, an expert's rows are cut on the device.
constexpr int band_rows = 16;
struct tile_counts {
  int rows, columns; // of a gradient's; `rows` is 0 of a product
  divisor band;      // tiles of a whole band
  divisor expert;    // tiles of an expert, of a gradient
};

// Where tile `i` of `rows` by so many columns of tiles lies.
struct tile_place {
  int row, column;
};
__device__ __forceinline__ tile_place place_in_bands(const tile_counts &tiles, int i, int rows) {
  const int band = quotient(i, tiles.band), in_band = i - band * tiles.band.by;
  const int height = least(band_rows, rows - band * band_rows),
            column = int(unsigned(in_band) / unsigned(height));
  return {band * band_rows + in_band - column * height, column};
}

// Walks the experts' tiles in order: what is known of those that have passed. A warp looks at 32 experts at a
// time.
struct product_walk {
  int from = 0, passed = 0; // experts before these 32, and their tiles

  // Tile `i`, which is behind the one found before.
  __device__ __forceinline__ result_tile find(const grouped_shape &s, const tile_counts &tiles, int i) {
    const int lane = int(threadIdx.x) % warp_lanes;
#pragma unroll 1
    for (; from < s.experts; from += warp_lanes) {
      const int e = from + lane;
      const int first = e < s.experts ? begin_of(s, e) : 0;
      const int count = e < s.experts ? begin_of(s, e + 1) - first : 0;
      const int rows = (count + tile_rows - 1) / tile_rows;
      const int past = warp_sum_so_far(rows * tiles.columns); // tiles of the experts up to this lane's
      const uint32_t reached = __ballot_sync(whole_warp, passed + past > i);
      if (reached != 0) {
        const int owner = __ffs(int(reached)) - 1;
        const int in_expert = i - passed - __shfl_sync(whole_warp, past - rows * tiles.columns, owner);
        const int begin = __shfl_sync(whole_warp, first, owner), all = __shfl_sync(whole_warp, count, owner);
        const tile_place at = place_in_bands(tiles, in_expert, (all + tile_rows - 1) / tile_rows);
        const int row = begin + at.row * tile_rows;
        return {from + owner, row, least(row + tile_rows, begin + all), row, at.column * tile_columns};
      }
      passed += __shfl_sync(whole_warp, past, warp_lanes - 1);
    }
    return {-1, 0, 0, 0, 0};
  }
};

// Of a gradient, every expert has as many tiles.
__device__ __forceinline__ result_tile gradient_tile(const grouped_shape &s, const tile_counts &tiles,
                                                     int i) {
  const int e = quotient(i, tiles.expert);
  if (e >= s.experts) return {-1, 0, 0, 0, 0};
  const tile_place at = place_in_bands(tiles, i - e * tiles.expert.by, tiles.rows);
  return {e, begin_of(s, e), begin_of(s, e + 1), at.row * tile_rows, at.column * tile_columns};
}

// ---- Copies

// Thread t of those that copy has chunk t % 8 (of 16 bytes) of rows t / 8, t / 8 + 16, ... of every panel:
// its copies are 2 KiB of shared memory apart, whatever lies in the rows.

constexpr int chunks = panel_columns / chunk_numel, rows_at_once = warpgroup_threads / chunks;
constexpr int copy_bytes = rows_at_once * panel_row_bytes;
constexpr int left_copies = left_bytes / copy_bytes;
constexpr int depth_copies = tile_depth / rows_at_once; // of a panel whose rows are the depth
static_assert(rows_at_once % 8 == 0, "each thread's chunks are swizzled alike");

__device__ __forceinline__ int copy_row() {
  return int(threadIdx.x) % warpgroup_threads / chunks;
}
__device__ __forceinline__ int copy_column() {
  return int(threadIdx.x) % chunks * chunk_numel;
}

// The stages, as the copying warpgroup goes through them.
template <bool BOXES> struct copy_walk {
  uint32_t first, address; // of stage 0, and of this thread's first copy there
  uint32_t barrier;        // of boxes, of stage 0; those of other stages are 8 bytes apart
  int stage = 0, turn = 0; // the stage's
  int last = -1;           // the stage that was copied last; -1: none

  // Waits until the next stage is empty.
  __device__ __forceinline__ void open() const {
    if (turn > 0) named_barrier_sync(empty + stage, empty_threads);
  }
  __device__ __forceinline__ uint32_t stage_address() const { return first + uint32_t(stage * stage_bytes); }
  __device__ __forceinline__ uint32_t copy_address() const { return address + uint32_t(stage * stage_bytes); }
  __device__ __forceinline__ uint32_t box_barrier() const { return barrier + uint32_t(stage * 8); }
  // The stage's copies have started. The stage before has arrived when at most these are in progress. Those
  // that compute order it before their products (fence_proxy_async).
  __device__ __forceinline__ void close() {
    cp_async_commit();
    announce<1>();
    last = stage;
    stage = stage + 1 == stages ? 0 : stage + 1;
    turn += stage == 0;
  }
  // No stage follows. Nothing is left pending at the barriers.
  __device__ __forceinline__ void finish() {
    announce<0>();
    for (int i = 0; i < stages; i++)
      if (turn > 0 || i < stage) named_barrier_sync(empty + i, empty_threads);
  }

private:
  template <int groups_left> __device__ __forceinline__ void announce() const {
    cp_async_wait<groups_left>();
    if (last < 0) return;
    if constexpr (BOXES) box_wait(barrier + uint32_t(last * 8), last < stage ? turn : turn - 1);
#pragma unroll
    for (int i = 0; i < consumers; i++) named_barrier_arrive(full + last * consumers + i, full_threads);
  }
};

// The rows that this thread copies of a product's left factor.
struct left_rows {
  int index[left_copies]; // of the factor's matrix
  int count;              // those that exist

  __device__ __forceinline__ void load(const grouped_product<bf16> &p, const result_tile &tile) {
    count = (tile.end - tile.first - copy_row() + rows_at_once - 1) / rows_at_once;
#pragma unroll
    for (int i = 0; i < left_copies; i++)
      index[i] = i < count ? int(row_in(p.shape, p.a, tile.first + copy_row() + i * rows_at_once)) : 0;
  }
};

// Copies step `at` of a product's depth. INPUT: with the weight as it lies; else with its transpose.
template <bool INPUT>
__device__ __forceinline__ void copy_step(const grouped_product<bf16> &p, const box_map &weight,
                                          const result_tile &tile, const left_rows &rows, int at,
                                          const copy_walk<true> &walk) {
  if (int(threadIdx.x) % warpgroup_threads == 0) {
    const uint32_t to = walk.stage_address() + uint32_t(left_bytes), barrier = walk.box_barrier();
    box_expect(barrier, right_bytes);
    if constexpr (INPUT) {
#pragma unroll
      for (int panel = 0; panel < tile_columns / panel_columns; panel++)
        copy_box(to + uint32_t(panel * panel_bytes<tile_depth>), weight, tile.column + panel * panel_columns,
                 at, tile.expert, barrier);
    } else {
      copy_box(to, weight, at, tile.column, tile.expert, barrier);
    }
  }
  const int depth = INPUT ? p.shape.out : p.shape.in, k = at + copy_column();
  const int count = k < depth ? rows.count : 0;
#pragma unroll
  for (int i = 0; i < left_copies; i++)
    cp_async16(walk.copy_address() + uint32_t(i * copy_bytes), p.a.data + int64_t(rows.index[i]) * depth + k,
               i < count);
}

// Step `at` (a row of the operands) of a gradient's depth; `gathered` has the rows of the gathered factor.
template <int PANELS>
__device__ __forceinline__ void copy_depth_rows(const grouped_rows<bf16> &factor,
                                                const int (&gathered)[depth_copies], int at, int end,
                                                int first_column, int columns, uint32_t to) {
  const int column = first_column + copy_column(), row = at + copy_row();
#pragma unroll
  for (int i = 0; i < depth_copies; i++) {
    const int index = factor.is_gathered ? gathered[i] : row + i * rows_at_once;
    const bool exists = row + i * rows_at_once < end;
    const bf16 *from = factor.data + int64_t(index) * columns + column;
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
      cp_async16(to + uint32_t((panel * depth_copies + i) * copy_bytes), from + panel * panel_columns,
                 exists && column + panel * panel_columns < columns);
  }
}

// The rows of tokens that this thread copies, where a factor is gathered.
template <class G>
__device__ __forceinline__ void load_gathered(const grouped_gradient<bf16, G> &p, int at, int end,
                                              int (&gathered)[depth_copies]) {
  const grouped_shape &s = p.shape;
#pragma unroll
  for (int i = 0; i < depth_copies; i++) {
    const int row = at + copy_row() + i * rows_at_once;
    const bool reads = (p.d_y.is_gathered || p.x.is_gathered) && row < end;
    gathered[i] = reads ? quotient(global_load(s.slots + s.first + row), s.row_slots) : 0;
  }
}

template <bool BOXES>
__device__ __forceinline__ copy_walk<BOXES> copies_of(const smem<unsigned char> &bytes) {
  copy_walk<BOXES> walk;
  walk.first = bytes.address(0);
  walk.address = bytes.address(panel_at(copy_row(), copy_column()));
  walk.barrier = bytes.address(stages * stage_bytes);
  return walk;
}

// ---- Products

constexpr int result_tiles = tile_columns / 8; // of 8 columns

// The stages, as a warpgroup that computes goes through them.
template <major A, major B> struct compute_walk {
  static constexpr int left_panel = A == major::k ? tile_rows : tile_depth,
                       right_panel = B == major::k ? tile_columns : tile_depth; // rows of one
  uint64_t left, right;                                                         // of stage 0
  int consumer, stage = 0, last = 0;

  // Starts sums = left right over `steps` steps, one at least: until `finish`, the last one is in progress.
  __device__ __forceinline__ void begin(int steps, float (&sums)[result_tiles][4]) {
    const bool leads = steps >= stages;
    if (consumer == 1 && leads) named_barrier_sync(ahead, ahead_threads);
    open();
    wgmma_fence(sums);
    start<false>(sums);
    last = stage;
    advance_stage();
#pragma unroll 1
    for (int step = 1; step < steps; step++) {
      open();
      wgmma_fence();
      start<true>(sums);
      wgmma_wait<1>();
      named_barrier_arrive(empty + last, empty_threads);
      if (consumer == 0 && leads && step + 1 == lead) named_barrier_arrive(ahead, ahead_threads);
      last = stage;
      advance_stage();
    }
  }
  __device__ __forceinline__ void finish(float (&sums)[result_tiles][4]) const {
    wgmma_wait<0>(sums);
    named_barrier_arrive(empty + last, empty_threads);
  }

private:
  __device__ __forceinline__ void open() const {
    named_barrier_sync(full + stage * consumers + consumer, full_threads);
    fence_proxy_async();
  }
  template <bool ACCUMULATES> __device__ __forceinline__ void start(float (&sums)[result_tiles][4]) const {
    start_product<A, B, tile_depth, left_panel, right_panel>(
        sums, advance(left, stage * stage_bytes), advance(right, stage * stage_bytes), ACCUMULATES);
    wgmma_commit();
  }
  __device__ __forceinline__ void advance_stage() {
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
};

template <major A, major B>
__device__ __forceinline__ compute_walk<A, B> products_of(const smem<unsigned char> &bytes, int consumer) {
  typedef compute_walk<A, B> walk_of;
  walk_of walk;
  // Of the left factor 64 rows: of the only panel, or a panel.
  walk.left = wgmma_descriptor(bytes.address(consumer * warpgroup_rows * panel_row_bytes),
                               panel_bytes<walk_of::left_panel>);
  walk.right = wgmma_descriptor(bytes.address(left_bytes), panel_bytes<walk_of::right_panel>);
  walk.consumer = consumer;
  return walk;
}

// ---- Results

// Where a thread's results go: those of row g of its warp's 16, and of row g + 8.
template <class G> struct result_rows {
  G *at[2]; // the tile's first column of each
  bool exists[2];
  int columns; // of the result, from the tile's first on
};

template <class G>
__device__ __forceinline__ result_rows<G> result_rows_of(G *result, const result_tile &tile, int consumer,
                                                         int rows, int columns) {
  const int thread = int(threadIdx.x) % warpgroup_threads;
  const int row = consumer * warpgroup_rows + thread / warp_lanes * 16 + thread % warp_lanes / 4;
  result_rows<G> to;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    to.at[half] = result + int64_t(tile.row + row + half * 8) * columns + tile.column;
    to.exists[half] = row + half * 8 < rows;
  }
  to.columns = columns - tile.column;
  return to;
}

// Transposes the four words of four threads in a row, of each of several groups: thread t has word t of each.
template <int N> __device__ __forceinline__ void exchange(uint32_t (&word)[N][4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (int(threadIdx.x) & bit) != 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (i & bit) continue;
        const uint32_t got = __shfl_xor_sync(whole_warp, upper ? word[n][i] : word[n][i + bit], bit);
        word[n][i] = upper ? got : word[n][i];
        word[n][i + bit] = upper ? word[n][i + bit] : got;
      }
  }
}

// Of four threads in a row, thread t has columns 8 n + 2 t and one on in sums[n], and stores columns
// 32 j + 8 t and on: a few j at a time, so that one's shuffles run beside another's.
template <bool ADDS>
__device__ __forceinline__ void store_results(const result_rows<bf16> &to,
                                              const float (&sums)[result_tiles][4]) {
  constexpr int together = 4;
  const int column = int(threadIdx.x) % 4 * 8;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int first = 0; first < tile_columns / 32; first += together) {
      uint4 *at = reinterpret_cast<uint4 *>(to.at[half] + column + 32 * first);
      uint32_t word[together][4] = {};
      if constexpr (ADDS) {
#pragma unroll
        for (int j = 0; j < together; j++)
          if (to.exists[half] && column + 32 * (first + j) < to.columns) {
            const uint4 old = global_load(at + 4 * j);
            word[j][0] = old.x, word[j][1] = old.y, word[j][2] = old.z, word[j][3] = old.w;
          }
        exchange(word);
      }
#pragma unroll
      for (int j = 0; j < together; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float *x = &sums[4 * (first + j) + i][2 * half];
          word[j][i] = ADDS ? pack_bf16(x[0] + low_bf16(word[j][i]), x[1] + high_bf16(word[j][i]))
                            : pack_bf16(x[0], x[1]);
        }
      exchange(word);
#pragma unroll
      for (int j = 0; j < together; j++)
        if (to.exists[half] && column + 32 * (first + j) < to.columns)
          global_store(at + 4 * j, uint4{word[j][0], word[j][1], word[j][2], word[j][3]});
    }
}
template <bool ADDS>
__device__ __forceinline__ void store_results(const result_rows<float> &to,
                                              const float (&sums)[result_tiles][4]) {
  const int column = int(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int n = 0; n < result_tiles; n++) {
      if (!to.exists[half] || 8 * n >= to.columns) continue;
      float2 *at = reinterpret_cast<float2 *>(to.at[half] + column + 8 * n);
      float2 x = {sums[n][2 * half], sums[n][2 * half + 1]};
      if constexpr (ADDS) {
        const float2 old = global_load(at);
        x.x += old.x, x.y += old.y;
      }
      global_store(at, x);
    }
}

// Zeros in place of all results.
template <class G> __device__ __forceinline__ void clear_results(const result_rows<G> &to) {
  constexpr int numel = vector_numel<G>;
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll 1
    for (int column = int(threadIdx.x) % 4 * numel; column < least(to.columns, tile_columns);
         column += 4 * numel)
      if (to.exists[half]) global_store(reinterpret_cast<uint4 *>(to.at[half] + column), uint4{0, 0, 0, 0});
}

// ---- Kernels

// Which warpgroup a thread is of: 0 and 1 compute, 2 copies. In every lane the same.
__device__ __forceinline__ int warpgroup_index() {
  return __shfl_sync(whole_warp, int(threadIdx.x) / warpgroup_threads, 0);
}

// INPUT: the product with the weight as it lies; else with its transpose. The tile after this one is found
// while there is something else to wait for.
template <bool INPUT>
__global__ void __launch_bounds__(threads_count, blocks_at_once)
    multiply_rows(grouped_product<bf16> p, const FSDP_GRID_CONSTANT box_map weight, tile_counts counts) {
  constexpr major weight_major = INPUT ? major::mn : major::k;
  FSDP_SHARED_DYNAMIC(bytes);
  const grouped_shape &s = p.shape;
  const int depth = INPUT ? s.out : s.in, columns = INPUT ? s.in : s.out;
  const int steps = (depth + tile_depth - 1) / tile_depth;
  if (threadIdx.x == 0)
    for (int stage = 0; stage < stages; stage++)
      box_barrier_init(bytes.address(stages * stage_bytes + stage * 8));
  __syncthreads();
  product_walk tiles;
  int i = int(blockIdx.x);
  result_tile next = tiles.find(s, counts, i);
  const int group = warpgroup_index();
  if (group == consumers) {
    registers_release<copy_registers>();
    copy_walk<true> walk = copies_of<true>(bytes);
    left_rows next_rows;
    next_rows.load(p, next);
#pragma unroll 1
    while (next.expert >= 0) {
      const result_tile tile = next;
      const left_rows rows = next_rows;
      next = tiles.find(s, counts, i += int(gridDim.x));
      next_rows.load(p, next);
#pragma unroll 1
      for (int step = 0; step < steps; step++) {
        walk.open();
        copy_step<INPUT>(p, weight, tile, rows, step * tile_depth, walk);
        walk.close();
      }
    }
    walk.finish();
  } else {
    registers_take<compute_registers>();
    auto walk = products_of<major::k, weight_major>(bytes, group);
#pragma unroll 1
    while (next.expert >= 0) {
      const result_tile tile = next;
      float sums[result_tiles][4];
      walk.begin(steps, sums);
      next = tiles.find(s, counts, i += int(gridDim.x));
      walk.finish(sums);
      store_results<false>(result_rows_of(p.c, tile, group, tile.end - tile.first, columns), sums);
    }
  }
}

template <class G, bool ADDS>
__global__ void __launch_bounds__(threads_count, blocks_at_once)
    sum_rows(grouped_gradient<bf16, G> p, tile_counts counts) {
  FSDP_SHARED_DYNAMIC(bytes);
  const grouped_shape &s = p.shape;
  int i = int(blockIdx.x);
  result_tile next = gradient_tile(s, counts, i);
  const int group = warpgroup_index();
  if (group == consumers) {
    registers_release<copy_registers>();
    copy_walk<false> walk = copies_of<false>(bytes);
    int rows[depth_copies], next_rows[depth_copies];
    load_gathered(p, next.first, next.end, next_rows);
#pragma unroll 1
    while (next.expert >= 0) {
      const result_tile tile = next;
      next = gradient_tile(s, counts, i += int(gridDim.x));
      if (tile.first == tile.end) load_gathered(p, next.first, next.end, next_rows);
#pragma unroll 1
      for (int at = tile.first; at < tile.end; at += tile_depth) {
        const bool is_last = at + tile_depth >= tile.end;
#pragma unroll
        for (int k = 0; k < depth_copies; k++) rows[k] = next_rows[k];
        load_gathered(p, is_last ? next.first : at + tile_depth, is_last ? next.end : tile.end, next_rows);
        walk.open();
        const uint32_t to = walk.copy_address();
        copy_depth_rows<tile_rows / panel_columns>(p.d_y, rows, at, tile.end, tile.row, s.out, to);
        copy_depth_rows<tile_columns / panel_columns>(p.x, rows, at, tile.end, tile.column, s.in,
                                                      to + uint32_t(left_bytes));
        walk.close();
      }
    }
    walk.finish();
  } else {
    registers_take<compute_registers>();
    auto walk = products_of<major::mn, major::mn>(bytes, group);
#pragma unroll 1
    while (next.expert >= 0) {
      const result_tile tile = next;
      const result_rows<G> to = result_rows_of(p.d_weight + int64_t(tile.expert) * s.out * s.in, tile, group,
                                               s.out - tile.row, s.in);
      i += int(gridDim.x);
      if (tile.first == tile.end) {
        if constexpr (!ADDS) clear_results(to);
        next = gradient_tile(s, counts, i);
        continue;
      }
      float sums[result_tiles][4];
      walk.begin((tile.end - tile.first + tile_depth - 1) / tile_depth, sums);
      next = gradient_tile(s, counts, i);
      walk.finish(sums);
      store_results<ADDS>(to, sums);
    }
  }
}

// As many blocks as run at one time: what products are cut for, and no more than there are tiles.
launch_shape shape_of(int64_t tiles, launch_stream stream) {
  return {least(tiles, int64_t(product_multiprocessors())), threads_count, stream, 1, shared_bytes};
}

tile_counts counts_of(int64_t rows, int64_t columns) {
  return {int(rows), int(columns), divisor_of(band_rows * columns),
          divisor_of(rows > 0 ? rows * columns : 1)};
}

} // namespace

void grouped_hopper(const grouped_product<bf16> &p, launch_stream stream) {
  const grouped_shape &s = p.shape;
  const int64_t columns = blocks_of(p.is_input ? s.in : s.out, tile_columns);
  launch(shape_of(grouped_tiles(s, tile_rows) * columns, stream),
         p.is_input ? multiply_rows<true> : multiply_rows<false>, p,
         box_map_of(p.weight, s.in, s.out, s.experts, p.is_input ? tile_depth : tile_columns),
         counts_of(0, columns));
}

template <class G> void grouped_hopper(const grouped_gradient<bf16, G> &p, launch_stream stream) {
  const grouped_shape &s = p.shape;
  const int64_t rows = blocks_of(s.out, tile_rows), columns = blocks_of(s.in, tile_columns);
  launch(shape_of(s.experts * rows * columns, stream), p.adds ? sum_rows<G, true> : sum_rows<G, false>, p,
         counts_of(rows, columns));
}

template void grouped_hopper(const grouped_gradient<bf16, float> &p, launch_stream stream);
template void grouped_hopper(const grouped_gradient<bf16, bf16> &p, launch_stream stream);
