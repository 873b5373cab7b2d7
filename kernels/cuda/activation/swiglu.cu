// SwiGLU: s = silu(gate) * up over rows of gate|up, I columns each; silu(x) = x * sigmoid(x). A thread has
// one vector of a row.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;

template <class T> struct gated {
  T *gate_up; // backward: its gradient takes its place
  const T *d_s;
  T *s;
  int64_t I;
  int blocks_per_row;
};

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) activate(gated<T> p) {
  const int64_t n = blockIdx.x / unsigned(p.blocks_per_row);
  const int64_t c = (int64_t(blockIdx.x % unsigned(p.blocks_per_row)) * threads_count + threadIdx.x) * WIDTH;
  if (c >= p.I) return;
  float gate[WIDTH], up[WIDTH];
  load_floats<WIDTH>(p.gate_up + n * 2 * p.I + c, gate);
  load_floats<WIDTH>(p.gate_up + (n * 2 + 1) * p.I + c, up);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) gate[i] = gate[i] * sigmoid(gate[i]) * up[i];
  store_floats<WIDTH>(p.s + n * p.I + c, gate);
}

template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) differentiate(gated<T> p) {
  const int64_t n = blockIdx.x / unsigned(p.blocks_per_row);
  const int64_t c = (int64_t(blockIdx.x % unsigned(p.blocks_per_row)) * threads_count + threadIdx.x) * WIDTH;
  if (c >= p.I) return;
  float gate[WIDTH], up[WIDTH], d_s[WIDTH];
  load_floats<WIDTH>(p.gate_up + n * 2 * p.I + c, gate);
  load_floats<WIDTH>(p.gate_up + (n * 2 + 1) * p.I + c, up);
  load_floats<WIDTH>(p.d_s + n * p.I + c, d_s);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    const float sig = sigmoid(gate[i]), g = gate[i];
    gate[i] = d_s[i] * up[i] * sig * (1.0f + g * (1.0f - sig));
    up[i] = d_s[i] * g * sig;
  }
  store_floats<WIDTH>(p.gate_up + n * 2 * p.I + c, gate);
  store_floats<WIDTH>(p.gate_up + (n * 2 + 1) * p.I + c, up);
}

template <bool BACKWARD> void run(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    gated<T> p = {};
    p.gate_up = numbers_of<T>(call, BACKWARD ? 1 : 0);
    if (BACKWARD) p.d_s = numbers_of<T>(call, 0);
    if (!BACKWARD) p.s = numbers_of<T>(call, 1);
    p.I = call->attrs->intermediate;
    const bool wide = takes_vectors<T>(p.I, p.gate_up, p.d_s, p.s);
    p.blocks_per_row = int(blocks_of(p.I, int64_t(threads_count) * (wide ? width : 1)));
    void (*const kernel)(gated<T>) = BACKWARD ? (wide ? differentiate<T, width> : differentiate<T, 1>)
                                              : (wide ? activate<T, width> : activate<T, 1>);
    launch({call->attrs->batch * call->attrs->seq * p.blocks_per_row, threads_count, stream_of(call)}, kernel,
           p);
  });
}

} // namespace

void cuda_swiglu(const fsdp_kernel_call *call) {
  run<false>(call);
}

void cuda_swiglu_backward(const fsdp_kernel_call *call) {
  run<true>(call);
}
