// RMSNorm of each head of q and of k in rows of q|k|v, and its gradients. y = weight * (x * rstd), rstd = 1 /
// sqrt(mean(x^2) + eps) over the head's D elements, with one weight for q and one for k; v is copied. With
// g = d_y * weight: d_x = rstd * (g - x * rstd^2 * mean(g * x)), in place of d_y, and d_weight is the sum of
// d_y * x * rstd.
//
// Neighbouring lanes of a warp share a head: as many, a power of two, as have its columns in registers. In
// the backward a block walks heads that lie a grid apart, first of q and then of k. Its lanes keep their
// columns' part of d_weight, which the block adds in a fixed order and leaves in the workspace
// (sum_parts.cuh).
#include "kernels/cuda/ops.cuh"
#include "kernels/cuda/sum_parts.cuh"

namespace {

constexpr int threads_count = 256;
constexpr int64_t head_max = 256;
constexpr int thread_numel = 8; // elements of a head that a thread has, at most
constexpr int block_numel = threads_count * thread_numel;

template <class T> struct head_norm {
  const T *qkv, *q_weight, *k_weight;
  T *y;            // d_qkv in the backward
  float *rstd;     // (N, H + K)
  float *parts[2]; // (P, D), of q and of k
  int N, H, K, D, lanes;
  int steps[2]; // of the backward's walk over the heads of q and of k
  float eps;
};

// Vector i of the lane that has `lane` of a head's `lanes`: its first column.
template <int WIDTH> __device__ __forceinline__ int column_of(int lanes, int i) {
  return (i * lanes + int(threadIdx.x) % lanes) * WIDTH;
}

__device__ __forceinline__ float sum_over_head(float x, int lanes) {
  for (int bits = lanes / 2; bits > 0; bits /= 2) x += __shfl_xor_sync(whole_warp, x, bits);
  return x;
}

// Copies v, and normalises q and k.
template <class T, int WIDTH>
__device__ __forceinline__ void norm_head(const head_norm<T> &p, int64_t n, int head, bool exists) {
  constexpr int vectors = thread_numel / WIDTH;
  const int64_t at = (n * (p.H + 2 * p.K) + head) * p.D;
  const bool normed = head < p.H + p.K;
  const T *weight = head < p.H ? p.q_weight : p.k_weight;
  float x[vectors][WIDTH] = {}, sum = 0;
#pragma unroll
  for (int i = 0; i < vectors; i++) {
    const int c = column_of<WIDTH>(p.lanes, i);
    if (!exists || c >= p.D) break;
    load_floats<WIDTH>(p.qkv + at + c, x[i]);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) sum += x[i][e] * x[i][e];
  }
  const float rstd = rsqrtf(sum_over_head(sum, p.lanes) / float(p.D) + p.eps);
#pragma unroll
  for (int i = 0; i < vectors; i++) {
    const int c = column_of<WIDTH>(p.lanes, i);
    if (!exists || c >= p.D) break;
    if (normed) {
      float w[WIDTH];
      load_floats<WIDTH>(weight + c, w);
#pragma unroll
      for (int e = 0; e < WIDTH; e++) x[i][e] = w[e] * (x[i][e] * rstd);
    }
    store_floats<WIDTH>(p.y + at + c, x[i]);
  }
  if (exists && normed && int(threadIdx.x) % p.lanes == 0)
    global_store(p.rstd + n * (p.H + p.K) + head, rstd);
}

// One block per row.
template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) norm_row(head_norm<T> p) {
  const int heads = p.H + 2 * p.K, at_once = threads_count / p.lanes;
  for (int first = 0; first < heads; first += at_once) { // whole warps, for their sums
    const int head = first + int(threadIdx.x) / p.lanes;
    norm_head<T, WIDTH>(p, blockIdx.x, head, head < heads);
  }
}

// Sums the columns of the block's threads in the order of their heads, to one row of `parts`.
template <int WIDTH>
__device__ __forceinline__ void add_up(const float (&sums)[thread_numel / WIDTH][WIDTH], int D, int lanes,
                                       float *parts) {
  FSDP_SHARED(float, shared, block_numel);
  const int head = int(threadIdx.x) / lanes;
  __syncthreads(); // all reads of an earlier sum are done
#pragma unroll
  for (int i = 0; i < thread_numel / WIDTH; i++) {
    const int c = column_of<WIDTH>(lanes, i);
    if (c >= D) break;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) shared[head * D + c + e] = sums[i][e];
  }
  __syncthreads();
  for (int c = int(threadIdx.x); c < D; c += threads_count) {
    float sum = 0;
    for (int other = 0; other < threads_count / lanes; other++) sum += shared[other * D + c];
    global_store(parts + int64_t(blockIdx.x) * D + c, sum);
  }
}

// The head at `at`, if it exists: d_x in place of d_y, and its terms of d_weight added to the sums.
template <class T, int WIDTH>
__device__ __forceinline__ void differentiate_head(const head_norm<T> &p, int64_t at, float rstd, bool exists,
                                                   const T *weight,
                                                   float (&sums)[thread_numel / WIDTH][WIDTH]) {
  constexpr int vectors = thread_numel / WIDTH;
  float x[vectors][WIDTH] = {}, g[vectors][WIDTH] = {}, dot = 0;
#pragma unroll
  for (int i = 0; i < vectors; i++) {
    const int c = column_of<WIDTH>(p.lanes, i);
    if (!exists || c >= p.D) break;
    load_floats<WIDTH>(p.qkv + at + c, x[i]);
    load_floats<WIDTH>(p.y + at + c, g[i]);
    float w[WIDTH];
    load_floats<WIDTH>(weight + c, w);
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
      sums[i][e] += g[i][e] * (x[i][e] * rstd);
      g[i][e] *= w[e];
      dot += g[i][e] * x[i][e];
    }
  }
  const float shrink = rstd * rstd * (sum_over_head(dot, p.lanes) / float(p.D));
#pragma unroll
  for (int i = 0; i < vectors; i++) {
    const int c = column_of<WIDTH>(p.lanes, i);
    if (!exists || c >= p.D) break;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) g[i][e] = rstd * (g[i][e] - x[i][e] * shrink);
    store_floats<WIDTH>(p.y + at + c, g[i]);
  }
}

// The heads of q (ROLE 0) or of k (1) that are this block's.
template <int ROLE, class T, int WIDTH> __device__ __forceinline__ void walk_heads(const head_norm<T> &p) {
  const int heads = ROLE ? p.K : p.H, before = ROLE ? p.H : 0, at_once = threads_count / p.lanes;
  const T *weight = ROLE ? p.k_weight : p.q_weight;
  float sums[thread_numel / WIDTH][WIDTH] = {};
  const int first = int(blockIdx.x) * at_once + int(threadIdx.x) / p.lanes, stride = int(gridDim.x) * at_once;
  const int step_rows = stride / heads, step_heads = stride % heads;
  int n = first / heads, head = first % heads;
  for (int i = 0; i < p.steps[ROLE]; i++) { // whole warps, for their sums
    const bool exists = n < p.N;
    const float rstd = exists ? global_load(p.rstd + int64_t(n) * (p.H + p.K) + before + head) : 0.0f;
    const int64_t at = (int64_t(n) * (p.H + 2 * p.K) + before + head) * p.D;
    differentiate_head<T, WIDTH>(p, at, rstd, exists, weight, sums);
    n += step_rows;
    head += step_heads;
    if (head >= heads) head -= heads, n++;
  }
  add_up<WIDTH>(sums, p.D, p.lanes, p.parts[ROLE]);
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) differentiate_heads(head_norm<T> p) {
  walk_heads<0, T, WIDTH>(p);
  walk_heads<1, T, WIDTH>(p);
}

// Of the forward's or the backward's operands: qkv, weights, y or d_qkv, rstd.
template <class T> head_norm<T> norm_of(const fsdp_kernel_call *call, int weights, int y, int rstd) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK(attrs->batch * attrs->seq <= INT32_MAX / 2, "%s: %lld sequences of %lld",
             fsdp_op_name(call->kind), (long long)attrs->batch, (long long)attrs->seq);
  FSDP_CHECK(attrs->head_dim <= head_max, "%s: head dimension %lld exceeds %lld", fsdp_op_name(call->kind),
             (long long)attrs->head_dim, (long long)head_max);
  head_norm<T> p = {};
  p.qkv = numbers_of<T>(call, 0);
  p.q_weight = numbers_of<T>(call, weights);
  p.k_weight = numbers_of<T>(call, weights + 1);
  p.y = numbers_of<T>(call, y);
  p.rstd = data_of<float>(&call->operands[rstd]);
  p.N = int(attrs->batch * attrs->seq);
  p.H = int(attrs->heads);
  p.K = int(attrs->kv_heads);
  p.D = int(attrs->head_dim);
  p.eps = attrs->eps;
  for (p.lanes = 1; p.lanes * thread_numel < p.D;) p.lanes *= 2;
  return p;
}

template <class T> bool is_wide(const head_norm<T> &p) {
  return takes_vectors<T>(p.D, p.qkv, p.q_weight, p.k_weight, p.y);
}

} // namespace

void cuda_qk_norm(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    const head_norm<T> p = norm_of<T>(call, 1, 3, 4);
    launch({p.N, threads_count, stream_of(call)}, is_wide(p) ? norm_row<T, vector_numel<T>> : norm_row<T, 1>,
           p);
  });
}

void cuda_qk_norm_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t D = attrs->head_dim, K = attrs->kv_heads, N = attrs->batch * attrs->seq,
                Q = (attrs->heads + 2 * K) * D;
  const fsdp_view *o = open_operands(call, 1u << 0 | 1u << 4), *workspace = fsdp_kernel_workspace(call);
  // The v columns stay: of the last row only q and k belong to the range.
  fsdp_kernel_report(call, 0, 0, N * Q - K * D, FSDP_READ);
  fsdp_kernel_report(call, 4, 0, N * Q - K * D, FSDP_UPDATE);
  auto *parts = data_of<float>(workspace);
  const int64_t part_count = workspace->numel / (2 * D);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    head_norm<T> p = norm_of<T>(call, 2, 4, 1);
    p.parts[0] = parts;
    p.parts[1] = parts + part_count * D;
    const int64_t at_once = part_count * (threads_count / p.lanes);
    p.steps[0] = int(blocks_of(N * p.H, at_once));
    p.steps[1] = int(blocks_of(N * p.K, at_once));
    launch({part_count, threads_count, stream_of(call)},
           is_wide(p) ? differentiate_heads<T, vector_numel<T>> : differentiate_heads<T, 1>, p);
  });
  launch_sum_parts(call, parts, part_count, &o[5]);
  launch_sum_parts(call, parts + part_count * D, part_count, &o[6]);
}
