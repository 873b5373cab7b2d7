// LayerNorm: y = weight * ((h - mean) * rstd) + bias, rstd = 1 / sqrt(variance + eps). RMSNorm: y = weight *
// (h * rstd), rstd = 1 / sqrt(mean(h^2) + eps). h may be x + delta, stored too. One block per row of C
// channels. The row stays in registers between its sums and their use: one pass over memory.
#include "kernels/cuda/norm/norm_rows.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

template <class T> struct norm {
  const T *x, *delta, *weight, *bias; // delta is NULL if nothing is added; bias of LayerNorm, and so is mean
  T *h, *y;
  float *mean, *rstd;
  int64_t C;
  float eps;
};

// This thread's columns of h, which are stored if they are a sum; returns their sum.
template <class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ float load_sum(const norm<T> &p, int64_t row, float (&h)[CHUNKS][WIDTH]) {
  packed<T, WIDTH> delta[CHUNKS];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) { // all loads before the first store
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    load_floats<WIDTH>(p.x + row + c, h[k]);
    if (p.delta) load_packed(p.delta + row + c, &delta[k]);
  }
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    if (p.delta) {
      float added[WIDTH];
      unpack(delta[k], added);
#pragma unroll
      for (int i = 0; i < WIDTH; i++)
        h[k][i] = to_float(from_float<T>(h[k][i] + added[i])); // as it is stored
      store_floats<WIDTH>(p.h + row + c, h[k]);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += h[k][i];
  }
  return sum;
}

template <bool CENTERS, class T, int WIDTH, int CHUNKS>
__global__ void __launch_bounds__(1024) norm_row(norm<T> p) {
  const int64_t row = int64_t(blockIdx.x) * p.C;
  float h[CHUNKS][WIDTH], squares = 0, mean = load_sum(p, row, h);
  if constexpr (CENTERS) mean = block_sum(mean) / float(p.C);
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    if (column_of<WIDTH>(k) >= p.C) break;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      if constexpr (CENTERS) h[k][i] -= mean;
      squares += h[k][i] * h[k][i];
    }
  }
  const float rstd = rsqrtf(block_sum(squares) / float(p.C) + p.eps);
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    float weight[WIDTH], bias[WIDTH];
    load_floats<WIDTH>(p.weight + c, weight);
    if constexpr (CENTERS) load_floats<WIDTH>(p.bias + c, bias);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      if constexpr (CENTERS)
        h[k][i] = weight[i] * (h[k][i] * rstd) + bias[i];
      else
        h[k][i] = weight[i] * (h[k][i] * rstd);
    }
    store_floats<WIDTH>(p.y + row + c, h[k]);
  }
  if (threadIdx.x == 0) {
    if constexpr (CENTERS) global_store(p.mean + blockIdx.x, mean);
    global_store(p.rstd + blockIdx.x, rstd);
  }
}

template <bool CENTERS, class T, int WIDTH, int CHUNKS>
void launch_width(const fsdp_kernel_call *call, const norm<T> &p) {
  const int64_t threads = row_threads<WIDTH, CHUNKS>(p.C);
  FSDP_CHECK(threads <= 1024, "%s: rows of %lld channels are too long", fsdp_op_name(call->kind),
             (long long)p.C);
  launch({call->attrs->batch * call->attrs->seq, int(threads), stream_of(call)},
         norm_row<CENTERS, T, WIDTH, CHUNKS>, p);
}

template <bool CENTERS> void run(const fsdp_kernel_call *call, bool adds) {
  const int after = adds ? 1 : 0; // operands shift by delta, and again by h
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    norm<T> p = {};
    p.x = numbers_of<T>(call, 0);
    if (adds) p.delta = numbers_of<T>(call, 1);
    p.weight = numbers_of<T>(call, 1 + after);
    if (CENTERS) p.bias = numbers_of<T>(call, 2 + after);
    if (adds) p.h = numbers_of<T>(call, 3 + CENTERS);
    p.y = numbers_of<T>(call, 2 + CENTERS + 2 * after);
    if (CENTERS) p.mean = data_of<float>(&o[4 + 2 * after]);
    p.rstd = data_of<float>(&o[3 + 2 * CENTERS + 2 * after]);
    p.C = call->attrs->channels;
    p.eps = call->attrs->eps;
    if (takes_vectors<T>(p.C, p.x, p.delta, p.weight, p.bias, p.h, p.y)) {
      launch_width<CENTERS, T, width, 4>(call, p);
    } else {
      launch_width<CENTERS, T, 1, 16>(call, p);
    }
  });
}

} // namespace

void cuda_rmsnorm(const fsdp_kernel_call *call) {
  run<false>(call, false);
}

void cuda_add_rmsnorm(const fsdp_kernel_call *call) {
  run<false>(call, true);
}

void cuda_layernorm(const fsdp_kernel_call *call) {
  run<true>(call, false);
}

void cuda_add_layernorm(const fsdp_kernel_call *call) {
  run<true>(call, true);
}
