// Gradient of the embedding's weight (V, C): each row is the sum of d_h over the positions of its token, in
// the order of the positions, without atomic additions. The weight may be V rows of a table of `extent`, from
// `base` on: tokens of other rows are skipped, and so is the padding token.
//
//   sort_tokens  offsets (V + 1): where each token's positions start; positions (N), ascending per token.
//                A block owns a range of tokens: it counts the smaller ones and its own, then lists its own.
//   sum_rows     one block per row of d_weight (or part of it, if C is large)
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int sort_threads = 256; // also tokens of a block's range
constexpr int per_thread = 8;
constexpr int tile_numel = sort_threads * per_thread;
constexpr int sum_threads = 256;
constexpr int sum_width = 8;

// The sum over the threads before this one; *total over all. Contains barriers.
__device__ __forceinline__ int sum_before(int x, int *total) {
  FSDP_SHARED(int, warps, warp_lanes);
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  const int sum = warp_sum_so_far(x);
  if (lane == warp_lanes - 1) warps[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < sort_threads / warp_lanes; w++) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - x;
}

// N tokens, rows of a table of `extent`; the rows of the weight begin at `base`. padding: the padding token,
// or -1.
struct token_range {
  const int32_t *tokens;
  int64_t N, base, extent, padding;
};

// Lists the tile's tokens in [first, first + sort_threads) in order: entry = position in the tile *
// sort_threads + row in the range. Returns their number, the same in every thread; *smaller counts this
// thread's tokens below.
__device__ __forceinline__ int list_tile(const token_range &p, int64_t tile, int64_t first,
                                         const smem<int> &list, int *smaller) {
  int own[per_thread], count = 0, total;
#pragma unroll
  for (int j = 0; j < per_thread; j++) {
    const int64_t n = tile + int64_t(threadIdx.x) * per_thread + j;
    own[j] = -1;
    if (n >= p.N) continue;
    const int64_t id = global_load(p.tokens + n), token = id - p.base;
    if (id < 0 || id >= p.extent) __trap();
    if (id == p.padding) continue;
    if (token < first) ++*smaller;
    if (token < first || token >= first + sort_threads) continue;
    own[j] = (int(threadIdx.x) * per_thread + j) * sort_threads + int(token - first);
    count++;
  }
  int at = sum_before(count, &total); // its barriers also end the use of the previous tile's list
#pragma unroll
  for (int j = 0; j < per_thread; j++)
    if (own[j] >= 0) list[at++] = own[j];
  __syncthreads();
  return total;
}

__global__ void __launch_bounds__(sort_threads)
    sort_tokens(token_range p, int64_t V, int32_t *offsets, int32_t *positions) {
  FSDP_SHARED(int, list, tile_numel);
  const int64_t first = int64_t(blockIdx.x) * sort_threads, row = first + threadIdx.x;
  int smaller = 0, count = 0, total;
  for (int64_t tile = 0; tile < p.N; tile += tile_numel) {
    const int listed = list_tile(p, tile, first, list, &smaller);
    for (int i = 0; i < listed; i++) count += int(list[i]) % sort_threads == int(threadIdx.x);
  }
  sum_before(smaller, &total);
  const int start = total;
  int cursor = start + sum_before(count, &total);
  if (row < V) global_store(offsets + row, cursor);
  if (row == V - 1) global_store(offsets + V, cursor + count);
  if (total == 0) return; // the whole block
  for (int64_t tile = 0; tile < p.N; tile += tile_numel) {
    const int listed = list_tile(p, tile, first, list, &smaller);
    for (int i = 0; i < listed; i++) {
      const int entry = list[i];
      if (entry % sort_threads != int(threadIdx.x)) continue;
      global_store(positions + cursor++, int32_t(tile + entry / sort_threads));
    }
  }
}

template <class T> struct row_sum {
  const int32_t *offsets, *positions;
  const T *d_h;
  void *d_weight;
  int64_t C;
  int blocks_per_row;
  bool adds;
};

template <class T, class G, int WIDTH>
__global__ void __launch_bounds__(sum_threads, 4) sum_rows(row_sum<T> p) {
  const int64_t row = blockIdx.x / unsigned(p.blocks_per_row);
  const int64_t c = (int64_t(blockIdx.x % unsigned(p.blocks_per_row)) * blockDim.x + threadIdx.x) * WIDTH;
  const int from = global_load(p.offsets + row), to = global_load(p.offsets + row + 1);
  if (c >= p.C || (p.adds && from == to)) return;
  G *d_weight = static_cast<G *>(p.d_weight) + row * p.C + c;
  float sum[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum[i] = 0;
#pragma unroll(WIDTH > 1 ? 4 : 1)
  for (int at = from; at < to; at++) {
    float d_h[WIDTH];
    load_floats<WIDTH>(p.d_h + int64_t(global_load(p.positions + at)) * p.C + c, d_h);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += d_h[i];
  }
  if (p.adds) {
    float old[WIDTH];
    load_floats<WIDTH>(d_weight, old);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += old[i];
  }
  store_floats<WIDTH>(d_weight, sum);
}

} // namespace

void cuda_embedding_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, V = attrs->vocabulary, C = attrs->channels;
  const int64_t base = attrs->first_index, extent = attrs->extent ? attrs->extent : base + V;
  const int64_t padding = attrs->padding_token - 1;
  FSDP_CHECK(N < INT32_MAX, "embedding_backward: %lld positions", (long long)N);
  const fsdp_view *o = open_operands(call), *d_h = &o[1], *d_weight = &o[2];
  const token_range range = {data_of<int32_t>(&o[0]), N, base, extent, padding};
  auto *offsets = data_of<int32_t>(fsdp_kernel_workspace(call));
  auto *positions = offsets + V + 1;
  launch({blocks_of(V, sort_threads), sort_threads, stream_of(call)}, sort_tokens, range, V, offsets,
         positions);
  with_type(d_h->dtype, [&](auto number) {
    using T = decltype(number);
    with_type(d_weight->dtype, [&](auto gradient) {
      using G = decltype(gradient);
      const bool wide = C % sum_width == 0 && is_aligned(d_h->data) && is_aligned(d_weight->data);
      row_sum<T> p = {offsets, positions, data_of<T>(d_h), d_weight->data, C, 0, updates(d_weight)};
      const int64_t vectors = wide ? C / sum_width : C;
      const int threads = int(fsdp_min_i64(sum_threads, fsdp_round_up(vectors, warp_lanes)));
      p.blocks_per_row = int(blocks_of(vectors, threads));
      launch({V * p.blocks_per_row, threads, stream_of(call)},
             wide ? sum_rows<T, G, sum_width> : sum_rows<T, G, 1>, p);
    });
  });
}
