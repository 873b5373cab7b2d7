// Linear layer and cross-entropy in one, over chunks of rows, so that the logits of only chunk_rows rows ever
// exist; definitions as in kernels/cpu/cross_entropy.c.
//
//   for each chunk: logits (rows, V) fp32 = x weight^T          gemm, into the workspace
//                   row_of_logits: losses[n], and in place of the logits their gradients (backward)
//                   d_x = d_logits weight; d_weight (+)= d_logits^T x
//   sum_losses:     loss (+)= sum of losses in order / max(count, 1)
//
// N rows, C channels, V vocabulary. Workspace: chunk_rows * V floats of logits, then N floats of losses. With
// bf16 operands the gradients of a row lie, as bf16, at the start of its logits.
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

// Two blocks fit a multiprocessor of any architecture (1536 threads, 40 registers each): one computes while
// the other waits at a barrier.
constexpr int threads_count = 768, resident = 2;
constexpr int warps_count = threads_count / warp_lanes;

struct running {
  float most, sum; // sum of exp(x - most)
};

__device__ __forceinline__ running join(running a, running b) {
  const float most = fmaxf(a.most, b.most);
  if (most == -INFINITY) return {most, 0.0f};
  return {most, a.sum * __expf(a.most - most) + b.sum * __expf(b.most - most)};
}

__device__ __forceinline__ running warp_join(running r) {
#pragma unroll
  for (int bits = warp_lanes / 2; bits > 0; bits /= 2) {
    const running other = {__shfl_xor_sync(whole_warp, r.most, bits),
                           __shfl_xor_sync(whole_warp, r.sum, bits)};
    r = join(r, other);
  }
  return r;
}

template <int WIDTH> __device__ __forceinline__ running row_statistics(const float *logits, int V) {
  FSDP_SHARED(float, most, warps_count);
  FSDP_SHARED(float, sums, warps_count);
  running r = {-INFINITY, 0.0f};
  for (int v = int(threadIdx.x) * WIDTH; v < V; v += threads_count * WIDTH) {
    float x[WIDTH];
    load_floats<WIDTH>(logits + v, x);
    float greatest = x[0], sum = 0;
#pragma unroll
    for (int i = 1; i < WIDTH; i++) greatest = fmaxf(greatest, x[i]);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += __expf(x[i] - greatest);
    r = join(r, {greatest, sum});
  }
  r = warp_join(r);
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  if (lane == 0) {
    most[warp] = r.most;
    sums[warp] = r.sum;
  }
  __syncthreads();
  r = {-INFINITY, 0.0f};
  if (lane < warps_count) r = {most[lane], sums[lane]};
  return warp_join(r);
}

struct row_set {
  float *logits;          // (rows, V)
  const int32_t *targets; // of the chunk
  const float *count;
  float *losses; // of the chunk
  int V;
};

// Replaces the logits of a row by their gradients in T, after a barrier: the target's logit is read.
// Gradients of a tile never reach past the logits that all threads have read: the next tile is read before
// the barrier after which this one is written.
template <class T, int WIDTH>
__device__ __forceinline__ void store_gradients(float *logits, int V, int target, running r, float scale) {
  constexpr int tile = threads_count * WIDTH;
  T *out = reinterpret_cast<T *>(logits);
  const float factor = scale / r.sum;
  float next[WIDTH] = {}, x[WIDTH];
  int v = int(threadIdx.x) * WIDTH;
  if (v < V) load_floats<WIDTH>(logits + v, next);
  for (int first = 0; first < V; first += tile, v += tile) {
#pragma unroll
    for (int i = 0; i < WIDTH; i++) x[i] = next[i];
    if (v + tile < V) load_floats<WIDTH>(logits + v + tile, next);
    __syncthreads();
    if (v >= V) continue;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) x[i] = __expf(x[i] - r.most) * factor - (v + i == target ? scale : 0.0f);
    store_floats<WIDTH>(out + v, x);
  }
}

template <class T, int WIDTH, bool BACKWARD>
__global__ void __launch_bounds__(threads_count, resident) row_of_logits(row_set p) {
  const int64_t row = blockIdx.x;
  const int target = global_load(p.targets + row);
  float *logits = p.logits + row * p.V;
  if (target != FSDP_TARGET_IGNORED && (target < 0 || target >= p.V)) __trap();
  if (target == FSDP_TARGET_IGNORED) {
    if (threadIdx.x == 0) global_store(p.losses + row, 0.0f);
    const float zeros[WIDTH] = {};
    if (BACKWARD)
      for (int v = int(threadIdx.x) * WIDTH; v < p.V; v += threads_count * WIDTH)
        store_floats<WIDTH>(reinterpret_cast<T *>(logits) + v, zeros);
    return;
  }
  const running r = row_statistics<WIDTH>(logits, p.V);
  if (threadIdx.x == 0) global_store(p.losses + row, logf(r.sum) + r.most - global_load(logits + target));
  if (!BACKWARD) return;
  store_gradients<T, WIDTH>(logits, p.V, target, r, 1.0f / fmaxf(global_load(p.count), 1.0f));
}

__global__ void __launch_bounds__(threads_count)
    sum_losses(const float *losses, int64_t N, const float *count, float *loss, bool adds) {
  double sum = 0;
  for (int64_t n = threadIdx.x; n < N; n += threads_count) sum += double(global_load(losses + n));
  sum = block_sum(sum) / double(fmaxf(global_load(count), 1.0f));
  if (threadIdx.x == 0) global_store(loss, float(adds ? double(global_load(loss)) + sum : sum));
}

struct loss_head {
  const fsdp_kernel_call *call;
  const fsdp_view *x, *weight, *targets, *count, *loss, *d_x, *d_weight, *workspace;
  int64_t N, C, V, chunk_rows;
};

loss_head open_head(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  loss_head k = {};
  k.call = call;
  k.N = attrs->batch * attrs->seq;
  k.C = attrs->channels;
  k.V = attrs->vocabulary;
  k.chunk_rows = attrs->chunk_rows;
  FSDP_CHECK(k.chunk_rows > 0, "a chunk of %lld rows", (long long)k.chunk_rows);
  FSDP_CHECK(k.V <= 1 << 30, "cross-entropy over a vocabulary of %lld", (long long)k.V);
  const fsdp_view *o = open_operands(call);
  k.x = &o[0], k.weight = &o[1], k.targets = &o[2], k.count = &o[3], k.loss = &o[4];
  FSDP_CHECK(k.x->dtype == k.weight->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(k.x->dtype), fsdp_dtype_name(k.weight->dtype));
  if (call->kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD) k.d_x = &o[5], k.d_weight = &o[6];
  k.workspace = fsdp_kernel_workspace(call);
  return k;
}

char *row_at(const fsdp_view *view, int64_t element) {
  return static_cast<char *>(view->data) + element * fsdp_dtype_bytes(view->dtype);
}

void logits_product(const loss_head *k, int64_t first, int64_t rows) {
  fsdp_cuda_gemm_run p = {};
  p.m = rows, p.n = k->V, p.k = k->C;
  p.a = row_at(k->x, first * k->C), p.a_stride = k->C;
  p.b = k->weight->data, p.b_stride = k->C, p.b_transposed = true;
  p.c = k->workspace->data, p.c_stride = k->V;
  p.ab_dtype = k->x->dtype, p.c_dtype = FSDP_F32;
  multiply(&p, k->call->stream);
}

void gradient_products(const loss_head *k, int64_t first, int64_t rows) {
  const int64_t gradient_stride = k->V * 4 / fsdp_dtype_bytes(k->x->dtype);
  fsdp_cuda_gemm_run p = {};
  p.m = rows, p.n = k->C, p.k = k->V;
  p.a = k->workspace->data, p.a_stride = gradient_stride;
  p.b = k->weight->data, p.b_stride = k->C;
  p.c = row_at(k->d_x, first * k->C), p.c_stride = k->C;
  p.ab_dtype = k->x->dtype, p.c_dtype = k->d_x->dtype;
  multiply(&p, k->call->stream);
  p.m = k->V, p.n = k->C, p.k = rows, p.a_transposed = true;
  p.b = row_at(k->x, first * k->C);
  p.c = k->d_weight->data;
  p.c_dtype = k->d_weight->dtype;
  p.accumulate = first > 0 || updates(k->d_weight);
  multiply(&p, k->call->stream);
}

template <class T> void launch_rows(const loss_head *k, const row_set &p, int64_t rows) {
  const launch_shape shape = {rows, threads_count, k->call->stream};
  const bool wide = k->V % 4 == 0 && is_aligned(p.logits);
  if (k->d_x) {
    launch(shape, wide ? row_of_logits<T, 4, true> : row_of_logits<T, 1, true>, p);
  } else {
    launch(shape, wide ? row_of_logits<T, 4, false> : row_of_logits<T, 1, false>, p);
  }
}

void run(const loss_head *k) {
  auto *logits = data_of<float>(k->workspace);
  float *losses = logits + k->chunk_rows * k->V;
  const auto *count = data_of<float>(k->count);
  for (int64_t first = 0; first < k->N; first += k->chunk_rows) {
    const int64_t rows = fsdp_min_i64(k->chunk_rows, k->N - first);
    logits_product(k, first, rows);
    const row_set p = {logits, data_of<int32_t>(k->targets) + first, count, losses + first, int(k->V)};
    with_type(k->x->dtype, [&](auto number) { launch_rows<decltype(number)>(k, p, rows); });
    if (k->d_x) gradient_products(k, first, rows);
  }
  launch({1, threads_count, k->call->stream}, sum_losses, static_cast<const float *>(losses), k->N, count,
         data_of<float>(k->loss), updates(k->loss));
}

} // namespace

void cuda_linear_cross_entropy(const fsdp_kernel_call *call) {
  const loss_head k = open_head(call);
  run(&k);
}

void cuda_linear_cross_entropy_backward(const fsdp_kernel_call *call) {
  const loss_head k = open_head(call);
  run(&k);
}
