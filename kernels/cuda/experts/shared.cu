// What every row goes to beside its routed experts: its output times the sigmoid of the row's number, the
// backward of that, and the sum of both; and the rule that moves a router's correction biases. N rows, C
// channels.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;

template <class T> __device__ __forceinline__ float sigmoid_of(const T *gate) {
  return 1 / (1 + expf(-to_float(global_load(gate))));
}

// A block has a row.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) gate_row(const T *y, const T *gate, T *gated, int64_t C) {
  const float factor = sigmoid_of(gate + blockIdx.x);
  for (int64_t c = int64_t(threadIdx.x) * WIDTH; c < C; c += int64_t(blockDim.x) * WIDTH) {
    float x[WIDTH];
    load_floats<WIDTH>(y + blockIdx.x * C + c, x);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) x[i] *= factor;
    store_floats<WIDTH>(gated + blockIdx.x * C + c, x);
  }
}

// d_y = sigmoid * d_gated, in place of y; d_gate = sum(d_gated * y) * sigmoid * (1 - sigmoid).
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    differentiate_row(const T *d_gated, const T *gate, T *y, T *d_gate, bool adds, int64_t C) {
  const float factor = sigmoid_of(gate + blockIdx.x);
  float dot = 0;
  for (int64_t c = int64_t(threadIdx.x) * WIDTH; c < C; c += int64_t(blockDim.x) * WIDTH) {
    float x[WIDTH], d[WIDTH];
    load_floats<WIDTH>(y + blockIdx.x * C + c, x);
    load_floats<WIDTH>(d_gated + blockIdx.x * C + c, d);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      dot += d[i] * x[i];
      x[i] = d[i] * factor;
    }
    store_floats<WIDTH>(y + blockIdx.x * C + c, x);
  }
  dot = block_sum(dot) * factor * (1 - factor);
  if (threadIdx.x != 0) return;
  T *at = d_gate + blockIdx.x;
  global_store(at, from_float<T>(adds ? dot + to_float(global_load(at)) : dot));
}

// A thread has one vector.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) add(const T *a, const T *b, T *sum, int64_t numel) {
  const int64_t at = (int64_t(blockIdx.x) * threads_count + threadIdx.x) * WIDTH;
  if (at >= numel) return;
  float x[WIDTH], y[WIDTH];
  load_floats<WIDTH>(a + at, x);
  load_floats<WIDTH>(b + at, y);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) x[i] += y[i];
  store_floats<WIDTH>(sum + at, x);
}

// bias -= rate * sign(load), unless the step is skipped.
template <class L, class M, class C>
__global__ void __launch_bounds__(threads_count)
    move_biases(const L *load, const float *factor, M *master, C *copy, int64_t numel, float rate) {
  const int64_t at = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  if (at >= numel || global_load(factor) == FSDP_FACTOR_SKIP) return;
  const float x = to_float(global_load(load + at));
  const float bias = to_float(global_load(master + at)) - rate * float((x > 0) - (x < 0));
  global_store(master + at, from_float<M>(bias));
  if (copy) global_store(copy + at, from_float<C>(bias));
}

int row_threads(int64_t C, int width) {
  return int(fsdp_min_i64(threads_count, fsdp_round_up(blocks_of(C, width), warp_lanes)));
}

} // namespace

void cuda_shared_gate(const fsdp_kernel_call *call) {
  const int64_t N = call->attrs->batch * call->attrs->seq, C = call->attrs->channels;
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = takes_vectors<T>(C, data_of<T>(&o[0]), data_of<T>(&o[2]));
    launch({N, row_threads(C, wide ? width : 1), stream_of(call)}, wide ? gate_row<T, width> : gate_row<T, 1>,
           numbers_of<T>(call, 0), numbers_of<T>(call, 1), numbers_of<T>(call, 2), C);
  });
}

void cuda_shared_gate_backward(const fsdp_kernel_call *call) {
  const int64_t N = call->attrs->batch * call->attrs->seq, C = call->attrs->channels;
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = takes_vectors<T>(C, data_of<T>(&o[0]), data_of<T>(&o[2]));
    launch({N, row_threads(C, wide ? width : 1), stream_of(call)},
           wide ? differentiate_row<T, width> : differentiate_row<T, 1>, numbers_of<T>(call, 0),
           numbers_of<T>(call, 1), numbers_of<T>(call, 2), numbers_of<T>(call, 3), updates(&o[3]), C);
  });
}

void cuda_shared_add(const fsdp_kernel_call *call) {
  const int64_t numel = call->attrs->batch * call->attrs->seq * call->attrs->channels;
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = takes_vectors<T>(numel, data_of<T>(&o[0]), data_of<T>(&o[1]), data_of<T>(&o[2]));
    launch({blocks_of(numel, int64_t(threads_count) * (wide ? width : 1)), threads_count, stream_of(call)},
           wide ? add<T, width> : add<T, 1>, numbers_of<T>(call, 0), numbers_of<T>(call, 1),
           numbers_of<T>(call, 2), numel);
  });
}

void cuda_balance(const fsdp_kernel_call *call) {
  enum { LOAD, SCALARS, FACTOR, MASTER, M, V, COPY };
  const fsdp_view *o = open_operands(call);
  const bool has_copy = call->operand_count > COPY;
  const int64_t numel = o[LOAD].numel;
  with_type(o[LOAD].dtype, [&](auto load) {
    using L = decltype(load);
    with_type(o[MASTER].dtype, [&](auto master) {
      using W = decltype(master);
      with_type(has_copy ? o[COPY].dtype : FSDP_F32, [&](auto copy) {
        using C = decltype(copy);
        launch({blocks_of(numel, threads_count), threads_count, stream_of(call)}, move_biases<L, W, C>,
               numbers_of<L>(call, LOAD), data_of<float>(&o[FACTOR]), numbers_of<W>(call, MASTER),
               has_copy ? numbers_of<C>(call, COPY) : static_cast<C *>(nullptr), numel,
               call->attrs->balance_rate);
      });
    });
  });
}
