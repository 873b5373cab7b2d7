// GELU in GPT-2's form: y = x/2 * (1 + tanh(u)) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3). A
// thread has one vector.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;
constexpr float cubic = 0.044715f;
constexpr float twice = 1.5957691216f; // 2 * sqrt(2/pi)
constexpr float far = 16.0f;           // beyond it the sigmoid is 0 or 1, and x^2 would overflow at last

template <class T> struct activation {
  T *x; // backward: its gradient takes its place
  const T *d_y;
  T *y;
  int64_t vectors;
};

// Keeps NaN.
__device__ __forceinline__ float clamp(float x) {
  return x > far ? far : x < -far ? -far : x;
}

__device__ __forceinline__ float sigmoid(float near) {
  return __fdividef(1.0f, 1.0f + __expf(near * -twice * (1.0f + cubic * (near * near))));
}

// d/dx of x * s, s = sigmoid(2u): s + x * s * (1 - s) * 2u'.
__device__ __forceinline__ float slope(float x) {
  const float near = clamp(x), s = sigmoid(near);
  return s + near * s * (1.0f - s) * twice * (1.0f + 3 * cubic * (near * near));
}

template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) activate(activation<T> p) {
  const int64_t vector = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  if (vector >= p.vectors) return;
  float x[WIDTH];
  load_floats<WIDTH>(p.x + vector * WIDTH, x);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) x[i] *= sigmoid(clamp(x[i]));
  store_floats<WIDTH>(p.y + vector * WIDTH, x);
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) differentiate(activation<T> p) {
  const int64_t vector = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  if (vector >= p.vectors) return;
  float x[WIDTH], d_y[WIDTH];
  load_floats<WIDTH>(p.x + vector * WIDTH, x);
  load_floats<WIDTH>(p.d_y + vector * WIDTH, d_y);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) x[i] = d_y[i] * slope(x[i]);
  store_floats<WIDTH>(p.x + vector * WIDTH, x);
}

template <bool BACKWARD> void run(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    activation<T> p = {};
    p.x = numbers_of<T>(call, BACKWARD ? 1 : 0);
    if (BACKWARD) p.d_y = numbers_of<T>(call, 0);
    if (!BACKWARD) p.y = numbers_of<T>(call, 1);
    const bool wide = takes_vectors<T>(o[0].numel, p.x, p.d_y, p.y);
    p.vectors = o[0].numel / (wide ? width : 1);
    void (*const kernel)(activation<T>) = BACKWARD ? (wide ? differentiate<T, width> : differentiate<T, 1>)
                                                   : (wide ? activate<T, width> : activate<T, 1>);
    launch({blocks_of(p.vectors, threads_count), threads_count, stream_of(call)}, kernel, p);
  });
}

} // namespace

void cuda_gelu(const fsdp_kernel_call *call) {
  run<false>(call);
}

void cuda_gelu_backward(const fsdp_kernel_call *call) {
  run<true>(call);
}
