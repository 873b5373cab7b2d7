// The logits of a linear head and their gradients: what linear_cross_entropy (whole rows) and the head's ops
// on a shard of the vocabulary (head.cu) share; definitions as in kernels/cpu/logits.h. A block has one row.
#pragma once

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/operand.cuh"

// Two blocks fit a multiprocessor of any architecture (1536 threads, 40 registers each): one computes while
// the other waits at a barrier.
constexpr int logits_threads = 768, logits_resident = 2;

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

// Of the first `count` logits of a row, in every thread; {-inf, 0} of none. All are read before the barrier.
template <int WIDTH> __device__ __forceinline__ running row_statistics(const float *logits, int count) {
  constexpr int warps_count = logits_threads / warp_lanes;
  FSDP_SHARED(float, most, warps_count);
  FSDP_SHARED(float, sums, warps_count);
  running r = {-INFINITY, 0.0f};
  const int whole = count - count % WIDTH, rest = whole + int(threadIdx.x);
  for (int v = int(threadIdx.x) * WIDTH; v < whole; v += logits_threads * WIDTH) {
    float x[WIDTH];
    load_floats<WIDTH>(logits + v, x);
    float greatest = x[0], sum = 0;
#pragma unroll
    for (int i = 1; i < WIDTH; i++) greatest = fmaxf(greatest, x[i]);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += __expf(x[i] - greatest);
    r = join(r, {greatest, sum});
  }
  if (rest < count) r = join(r, {global_load(logits + rest), 1.0f});
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

// Replaces the logits of a row by their gradients in T, after a barrier: the target's logit is read. `target`
// is the target's column; one outside [0, V) belongs to another shard.
// Gradients of a tile never reach past the logits that all threads have read: the next tile is read before
// the barrier after which this one is written.
template <class T, int WIDTH>
__device__ __forceinline__ void store_gradients(float *logits, int V, int target, running r, float scale) {
  constexpr int tile = logits_threads * WIDTH;
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

// The gradients of a row whose target is ignored.
template <class T, int WIDTH> __device__ __forceinline__ void clear_gradients(float *logits, int V) {
  const float zeros[WIDTH] = {};
  for (int v = int(threadIdx.x) * WIDTH; v < V; v += logits_threads * WIDTH)
    store_floats<WIDTH>(reinterpret_cast<T *>(logits) + v, zeros);
}

// 1 / count of the loss; the count of no target at all is taken as 1.
__device__ __forceinline__ float loss_scale(const float *count) {
  return 1.0f / fmaxf(global_load(count), 1.0f);
}

// The targets of a row's document, by which its part of the loss is divided; 1: the loss is a mean over
// targets.
__device__ __forceinline__ float learned_of(const int32_t *learned, int64_t row) {
  return learned ? float(global_load(learned + row)) : 1.0f;
}

// loss (+)= the sum of the block's threads' `sum` / max(count, 1).
__device__ __forceinline__ void store_loss(double sum, const float *count, float *loss, bool adds) {
  sum = block_sum(sum) / double(fmaxf(global_load(count), 1.0f));
  if (threadIdx.x == 0) global_store(loss, float(adds ? double(global_load(loss)) + sum : sum));
}

inline void check_head_dtypes(const fsdp_kernel_call *call, const fsdp_view *x, const fsdp_view *weight) {
  FSDP_CHECK(x->dtype == weight->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(x->dtype), fsdp_dtype_name(weight->dtype));
  FSDP_CHECK(call->attrs->vocabulary <= 1 << 30, "cross-entropy over a vocabulary of %lld",
             (long long)call->attrs->vocabulary);
}

// Whether a row of V logits takes 16-byte accesses.
inline bool has_wide_rows(const float *logits, int64_t V) {
  return V % 4 == 0 && is_aligned(logits);
}

// The gemms of rows [first, first + rows) of x, whose logits lie at `logits`.
struct logits_gemms {
  launch_stream stream;
  const fsdp_view *x, *weight; // (N, C), (V, C)
  int64_t first, rows, V, C;
  float *logits; // (rows, V)
};

inline char *row_at(const fsdp_view *view, int64_t element) {
  return static_cast<char *>(view->data) + element * fsdp_dtype_bytes(view->dtype);
}

inline void multiply_logits(const logits_gemms &k) {
  fsdp_cuda_gemm_run p = {};
  p.m = k.rows, p.n = k.V, p.k = k.C;
  p.a = row_at(k.x, k.first * k.C), p.a_stride = k.C;
  p.b = k.weight->data, p.b_stride = k.C, p.b_transposed = true;
  p.c = k.logits, p.c_stride = k.V;
  p.ab_dtype = k.x->dtype, p.c_dtype = FSDP_F32;
  multiply(&p, k.stream);
}

// These rows of d_x, and d_weight (null: it is left out), are overwritten or added to, as their accesses say;
// `adds_weight`: d_weight is added to whatever its access.
inline void multiply_gradients(const logits_gemms &k, const fsdp_view *d_x, const fsdp_view *d_weight,
                               bool adds_weight) {
  fsdp_cuda_gemm_run p = {};
  p.m = k.rows, p.n = k.C, p.k = k.V;
  p.a = k.logits, p.a_stride = k.V * 4 / fsdp_dtype_bytes(k.x->dtype);
  p.b = k.weight->data, p.b_stride = k.C;
  p.c = row_at(d_x, k.first * k.C), p.c_stride = k.C;
  p.ab_dtype = k.x->dtype, p.c_dtype = d_x->dtype;
  p.added = updates(d_x) ? p.c : nullptr;
  multiply(&p, k.stream);
  if (!d_weight) return;
  p.m = k.V, p.n = k.C, p.k = k.rows, p.a_transposed = true;
  p.b = row_at(k.x, k.first * k.C);
  p.c = d_weight->data;
  p.c_dtype = d_weight->dtype;
  p.added = adds_weight || updates(d_weight) ? p.c : nullptr;
  multiply(&p, k.stream);
}
