// Sums over flat ranges, in fp64 beyond eight elements, in an order that follows from the range's length
// alone; and the clip factor. A long range is summed in two stages: each block writes its part to the
// workspace, then one block sums the parts.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;
constexpr int width = 8;

template <class T> struct range {
  const T *data;
  int64_t count;
  bool squares;
  double weight; // of the sum
};

template <class T, int WIDTH> __device__ __forceinline__ double sum_vector(const T *data, bool squares) {
  float x[WIDTH], sum = 0;
  load_floats<WIDTH>(data, x);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum += squares ? x[i] * x[i] : x[i];
  return double(sum);
}

// This block's part of the sum.
template <class T, int WIDTH> __device__ __forceinline__ double sum_part(const range<T> &r) {
  const int64_t vectors = r.count / WIDTH, stride = int64_t(gridDim.x) * threads_count;
  const int64_t own = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  double sum = 0;
#pragma unroll 4
  for (int64_t v = own; v < vectors; v += stride) sum += sum_vector<T, WIDTH>(r.data + v * WIDTH, r.squares);
  for (int64_t i = vectors * WIDTH + own; i < r.count; i += stride)
    sum += sum_vector<T, 1>(r.data + i, r.squares);
  return r.weight * block_sum(sum);
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) sum_parts(range<T> r, double *parts) {
  const double sum = sum_part<T, WIDTH>(r);
  if (threadIdx.x == 0) global_store(parts + blockIdx.x, sum);
}

__global__ void __launch_bounds__(threads_count)
    sum_up(const double *parts, int count, float *out, bool adds) {
  double sum = 0;
  for (int i = int(threadIdx.x); i < count; i += threads_count) sum += global_load(parts + i);
  sum = block_sum(sum);
  if (threadIdx.x == 0) global_store(out, float(adds ? double(global_load(out)) + sum : sum));
}

// In one block, with no workspace.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) sum_at_once(range<T> r, float *out, bool adds) {
  const double sum = sum_part<T, WIDTH>(r);
  if (threadIdx.x == 0) global_store(out, float(adds ? double(global_load(out)) + sum : sum));
}

void run(const fsdp_kernel_call *call, bool squares) {
  const fsdp_view *source = &open_operands(call)[0], *sum = &call->operands[1];
  const int64_t count = source->numel;
  with_type(source->dtype, [&](auto number) {
    using T = decltype(number);
    const range<T> r = {data_of<T>(source), count, squares, squares ? double(call->attrs->norm_weight) : 1.0};
    const bool wide = is_aligned(r.data);
    auto *out = data_of<float>(sum);
    if (call->operand_count == 2) {
      launch({1, threads_count, stream_of(call)}, wide ? sum_at_once<T, width> : sum_at_once<T, 1>, r, out,
             updates(sum));
      return;
    }
    const fsdp_view *workspace = fsdp_kernel_workspace(call);
    auto *parts = reinterpret_cast<double *>(data_of<float>(workspace));
    const int64_t blocks = workspace->numel / 2;
    launch({blocks, threads_count, stream_of(call)}, wide ? sum_parts<T, width> : sum_parts<T, 1>, r, parts);
    launch({1, threads_count, stream_of(call)}, sum_up, static_cast<const double *>(parts), int(blocks), out,
           updates(sum));
  });
}

__global__ void clip(const float *sum, float *norm, float *factor, float max_norm, float norm_limit) {
  const float n = sqrtf(global_load(sum)), f = max_norm / (n + 1e-6f);
  global_store(norm, n);
  global_store(factor, FSDP_NORM_SKIPS(n, norm_limit) ? FSDP_FACTOR_SKIP
                       : max_norm == 0 || f > 1.0f    ? 1.0f
                                                      : f);
}

} // namespace

void cuda_sum_squares(const fsdp_kernel_call *call) {
  run(call, true);
}

void cuda_sum(const fsdp_kernel_call *call) {
  run(call, false);
}

void cuda_clip_factor(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  launch({1, 1, stream_of(call)}, clip, data_of<float>(&o[0]), data_of<float>(&o[1]), data_of<float>(&o[2]),
         call->attrs->max_norm, call->attrs->norm_limit);
}
