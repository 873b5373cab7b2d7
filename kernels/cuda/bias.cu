// A linear layer's bias by itself: added to y, and its gradient, the sum of d_y's rows. y and d_y are
// columns [out_offset, out_offset + out) of N rows that are out_stride wide.
//
// To add it, a thread has one vector of the bias and those of a few consecutive rows.
//
// For the gradient, a block takes 32 * WIDTH neighbouring columns of some consecutive rows, which its warps
// share; a thread keeps the sums of its WIDTH columns in registers. The block adds its warps' sums in their
// order and leaves the result in the workspace, (P, out), whose parts sum_parts adds in their order. P
// follows from N and out alone, so the order of all sums does too.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"
#include "kernels/cuda/sum_parts.cuh"

namespace {

constexpr int warps = 8, threads_count = warps * warp_lanes;
constexpr int rows_per_thread = 4; // all loaded before the first is stored

template <class T> struct biased {
  const T *bias;
  T *y;           // the first row's first column
  int64_t stride; // from row to row
  int64_t N, out;
  int blocks_per_row;
};

template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) add_to_rows(biased<T> p) {
  const int64_t c = (int64_t(blockIdx.x % unsigned(p.blocks_per_row)) * blockDim.x + threadIdx.x) * WIDTH;
  const int64_t first = int64_t(blockIdx.x / unsigned(p.blocks_per_row)) * rows_per_thread;
  if (c >= p.out) return;
  float bias[WIDTH];
  packed<T, WIDTH> y[rows_per_thread];
  load_floats<WIDTH>(p.bias + c, bias);
#pragma unroll
  for (int r = 0; r < rows_per_thread; r++)
    if (first + r < p.N) load_packed(p.y + (first + r) * p.stride + c, &y[r]);
#pragma unroll
  for (int r = 0; r < rows_per_thread; r++) {
    if (first + r >= p.N) return;
    float sum[WIDTH];
    unpack(y[r], sum);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += bias[i];
    store_floats<WIDTH>(p.y + (first + r) * p.stride + c, sum);
  }
}

template <class T> struct slice {
  const T *data;        // the first row's first column
  int64_t stride;       // from row to row
  int64_t N, out;       // rows and columns
  int64_t rows_of_part; // of a block
};

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) sum_rows(slice<T> d_y, float *parts) {
  constexpr int columns = warp_lanes * WIDTH;
  static_assert(columns <= threads_count, "a thread for each column");
  FSDP_SHARED(float, sums, warps *columns);
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  const int64_t first = int64_t(blockIdx.x) * columns;
  const int64_t begin = blockIdx.y * d_y.rows_of_part, end = least(begin + d_y.rows_of_part, d_y.N);
  float own[WIDTH] = {};
  if (first + lane * WIDTH < d_y.out) {
#pragma unroll 4
    for (int64_t n = begin + warp; n < end; n += warps) {
      float x[WIDTH];
      load_floats<WIDTH>(d_y.data + n * d_y.stride + first + lane * WIDTH, x);
#pragma unroll
      for (int i = 0; i < WIDTH; i++) own[i] += x[i];
    }
  }
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sums[warp * columns + lane * WIDTH + i] = own[i];
  __syncthreads();
  const int column = int(threadIdx.x);
  if (column >= columns || first + column >= d_y.out) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < warps; w++) sum += sums[w * columns + column];
  global_store(parts + blockIdx.y * d_y.out + first + column, sum);
}

} // namespace

void cuda_add_bias(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *bias = open_operands(call);
  const int64_t N = attrs->batch * attrs->seq, out = attrs->out_features, stride = attrs->out_stride;
  with_type(bias->dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    T *const first = numbers_of<T>(call, 1) + attrs->out_offset;
    const bool wide = out % width == 0 && stride % width == 0 && is_aligned(bias->data) && is_aligned(first);
    const int64_t vectors = out / (wide ? width : 1);
    const int threads = int(fsdp_min_i64(threads_count, fsdp_round_up(vectors, warp_lanes)));
    const biased<T> rows = {data_of<T>(bias), first, stride, N, out, int(blocks_of(vectors, threads))};
    launch({blocks_of(N, rows_per_thread) * rows.blocks_per_row, threads, stream_of(call)},
           wide ? add_to_rows<T, width> : add_to_rows<T, 1>, rows);
  });
}

void cuda_bias_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call), *workspace = fsdp_kernel_workspace(call);
  const int64_t out = attrs->out_features, N = attrs->batch * attrs->seq, parts = workspace->numel / out;
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const slice<T> d_y = {data_of<T>(&o[0]) + attrs->out_offset, attrs->out_stride, N, out,
                          blocks_of(N, parts)};
    const bool wide = is_aligned(d_y.data) && d_y.stride % width == 0 && out % width == 0;
    launch({blocks_of(out, warp_lanes * (wide ? width : 1)), threads_count, stream_of(call), parts},
           wide ? sum_rows<T, width> : sum_rows<T, 1>, d_y, data_of<float>(workspace));
  });
  launch_sum_parts(call, data_of<float>(workspace), parts, &o[1]);
}
