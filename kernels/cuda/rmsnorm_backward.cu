// Gradients of RMSNorm. With g = d_y * weight: d_h = rstd * (g - h * rstd^2 * mean(g * h)), and
// d_weight = sum over rows of d_y * h * rstd.
//
// One pass over h and d_y: a block walks rows that lie a grid apart, each thread keeps its columns' part of
// d_weight in registers, and the blocks' parts (workspace, (P, C)) are summed by a second kernel in the order
// of the blocks. How many blocks there are follows from N alone, so the result does too.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_max = 512;
constexpr int64_t parts_max = 512; // as in fsdp_op_workspace_bytes
constexpr int sum_columns = 32, sum_rows = 8;

template <class T> struct norm_gradient {
  const T *h, *weight, *d_y;
  const float *rstd;
  T *d_h;
  float *parts; // (P, C)
  int64_t N, C;
  bool adds; // to d_h
};

template <class T, int WIDTH, int CHUNKS>
__global__ void __launch_bounds__(threads_max) backward_rows(norm_gradient<T> p) {
  float sums[CHUNKS][WIDTH];
#pragma unroll
  for (int k = 0; k < CHUNKS; k++)
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sums[k][i] = 0;
  for (int64_t n = blockIdx.x; n < p.N; n += gridDim.x) {
    float h[CHUNKS][WIDTH], g[CHUNKS][WIDTH], dot = 0;
    const float rstd = global_load(p.rstd + n);
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      const int64_t c = int64_t(k * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
      if (c >= p.C) break;
      float weight[WIDTH];
      load_floats<WIDTH>(p.h + n * p.C + c, h[k]);
      load_floats<WIDTH>(p.d_y + n * p.C + c, g[k]);
      load_floats<WIDTH>(p.weight + c, weight);
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        sums[k][i] += g[k][i] * (h[k][i] * rstd);
        g[k][i] *= weight[i];
        dot += g[k][i] * h[k][i];
      }
    }
    const float shrink = rstd * rstd * (block_sum(dot) / float(p.C));
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      const int64_t c = int64_t(k * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
      if (c >= p.C) break;
      float d_h[WIDTH];
#pragma unroll
      for (int i = 0; i < WIDTH; i++) d_h[i] = rstd * (g[k][i] - h[k][i] * shrink);
      if (p.adds) {
        load_floats<WIDTH>(p.d_h + n * p.C + c, h[k]);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) d_h[i] += h[k][i];
      }
      store_floats<WIDTH>(p.d_h + n * p.C + c, d_h);
    }
  }
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int64_t c = int64_t(k * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
    if (c >= p.C) break;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) global_store(p.parts + int64_t(blockIdx.x) * p.C + c + i, sums[k][i]);
  }
}

// d_weight[c] (+)= sum over P of parts[P][c]: a warp's lanes are neighbouring columns, warps share the parts.
template <class T>
__global__ void __launch_bounds__(sum_columns *sum_rows)
    sum_parts(const float *parts, int64_t count, int64_t C, T *d_weight, bool adds) {
  FSDP_SHARED(float, sums, sum_columns *sum_rows);
  const int lane = int(threadIdx.x) % sum_columns, row = int(threadIdx.x) / sum_columns;
  const int64_t c = int64_t(blockIdx.x) * sum_columns + lane;
  float sum = 0;
  if (c < C)
    for (int64_t part = row; part < count; part += sum_rows) sum += global_load(parts + part * C + c);
  sums[row * sum_columns + lane] = sum;
  __syncthreads();
  if (row > 0 || c >= C) return;
  for (int other = 1; other < sum_rows; other++) sum += sums[other * sum_columns + lane];
  if (adds) sum += to_float(global_load(d_weight + c));
  global_store(d_weight + c, from_float<T>(sum));
}

template <class T, int WIDTH, int CHUNKS>
bool launch_width(const fsdp_kernel_call *call, const norm_gradient<T> &p, int64_t parts) {
  const int64_t vectors = blocks_of(p.C, WIDTH);
  int64_t threads = fsdp_min_i64(256, fsdp_round_up(vectors, warp_lanes));
  threads = fsdp_max_i64(threads, fsdp_round_up(blocks_of(vectors, CHUNKS), warp_lanes));
  if (threads > threads_max) return false;
  launch({parts, int(threads), call->stream}, backward_rows<T, WIDTH, CHUNKS>, p);
  return true;
}

template <class T> void launch_rows(const fsdp_kernel_call *call, const norm_gradient<T> &p, int64_t parts) {
  constexpr int width = vector_numel<T>, chunks = 16 / width;
  const bool wide =
      p.C % width == 0 && is_aligned(p.h) && is_aligned(p.weight) && is_aligned(p.d_y) && is_aligned(p.d_h);
  const bool done = wide ? launch_width<T, width, chunks>(call, p, parts) ||
                               launch_width<T, width, 2 * chunks>(call, p, parts)
                         : launch_width<T, 1, 16>(call, p, parts);
  FSDP_CHECK(done, "rmsnorm_backward: rows of %lld channels are too long", (long long)p.C);
}

} // namespace

void cuda_rmsnorm_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  const int64_t parts = fsdp_min_i64(N, parts_max);
  check_count(call, 7, 7);
  const fsdp_view *h = operand(call, 0, N * C, FSDP_READ);
  const fsdp_view *d_h = operand_of(call, 4, N * C, FSDP_UPDATE, h->dtype);
  const fsdp_view *d_weight = operand(call, 5, C, FSDP_UPDATE);
  float *workspace =
      data_of<float>(workspace_of(call, 6, fsdp_op_workspace_bytes(FSDP_OP_CUDA, call->kind, attrs, 0)));
  with_type(h->dtype, [&](auto number) {
    using T = decltype(number);
    norm_gradient<T> p = {};
    p.h = data_of<T>(h);
    p.rstd = data_of<float>(operand_of(call, 1, N, FSDP_READ, FSDP_F32));
    p.weight = data_of<T>(operand_of(call, 2, C, FSDP_READ, h->dtype));
    p.d_y = data_of<T>(operand_of(call, 3, N * C, FSDP_READ, h->dtype));
    p.d_h = data_of<T>(d_h);
    p.parts = workspace;
    p.N = N;
    p.C = C;
    p.adds = updates(d_h);
    launch_rows(call, p, parts);
  });
  with_type(d_weight->dtype, [&](auto number) {
    using T = decltype(number);
    launch({blocks_of(C, sum_columns), sum_columns * sum_rows, call->stream}, sum_parts<T>, workspace, parts,
           C, data_of<T>(d_weight), updates(d_weight));
  });
}
