// RMSNorm: y = weight * (h * rstd), rstd = 1 / sqrt(mean(h^2) + eps), where h may be x + delta, stored too.
// One block per row of C channels. The row stays in registers between the sum and its use: one pass over
// memory.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

template <class T> struct norm {
  const T *x, *delta, *weight; // delta is NULL if nothing is added
  T *h, *y;
  float *rstd;
  int64_t C;
  float eps;
};

template <class T, int WIDTH, int CHUNKS> __global__ void __launch_bounds__(1024) norm_row(norm<T> p) {
  const int64_t row = int64_t(blockIdx.x) * p.C;
  packed<T, WIDTH> delta[CHUNKS];
  float h[CHUNKS][WIDTH], sum = 0;
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) { // all loads before the first store
    const int64_t c = int64_t(k * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
    if (c >= p.C) break;
    load_floats<WIDTH>(p.x + row + c, h[k]);
    if (p.delta) load_packed(p.delta + row + c, &delta[k]);
  }
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int64_t c = int64_t(k * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
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
    for (int i = 0; i < WIDTH; i++) sum += h[k][i] * h[k][i];
  }
  const float rstd = rsqrtf(block_sum(sum) / float(p.C) + p.eps);
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int64_t c = int64_t(k * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
    if (c >= p.C) break;
    float weight[WIDTH];
    load_floats<WIDTH>(p.weight + c, weight);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) h[k][i] = weight[i] * (h[k][i] * rstd);
    store_floats<WIDTH>(p.y + row + c, h[k]);
  }
  if (threadIdx.x == 0) global_store(p.rstd + blockIdx.x, rstd);
}

template <class T, int WIDTH, int CHUNKS> void launch_width(const fsdp_kernel_call *call, const norm<T> &p) {
  const int64_t vectors = blocks_of(p.C, WIDTH);
  int64_t threads = fsdp_min_i64(256, fsdp_round_up(vectors, warp_lanes));
  threads = fsdp_max_i64(threads, fsdp_round_up(blocks_of(vectors, CHUNKS), warp_lanes));
  FSDP_CHECK(threads <= 1024, "%s: rows of %lld channels are too long", fsdp_op_name(call->kind),
             (long long)p.C);
  launch({call->attrs->batch * call->attrs->seq, int(threads), stream_of(call)}, norm_row<T, WIDTH, CHUNKS>,
         p);
}

template <class T> void launch_norm(const fsdp_kernel_call *call, const norm<T> &p) {
  constexpr int width = vector_numel<T>;
  const bool wide = p.C % width == 0 && is_aligned(p.x) && is_aligned(p.delta) && is_aligned(p.weight) &&
                    is_aligned(p.h) && is_aligned(p.y);
  if (wide) {
    launch_width<T, width, 4>(call, p);
  } else {
    launch_width<T, 1, 16>(call, p);
  }
}

void run(const fsdp_kernel_call *call, bool adds) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t C = attrs->channels;
  const int after = adds ? 1 : 0; // operands shift by delta, and again by h
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    norm<T> p = {};
    p.x = numbers_of<T>(call, 0);
    if (adds) p.delta = numbers_of<T>(call, 1);
    p.weight = numbers_of<T>(call, 1 + after);
    if (adds) p.h = numbers_of<T>(call, 3);
    p.y = numbers_of<T>(call, 2 + 2 * after);
    p.rstd = data_of<float>(&o[3 + 2 * after]);
    p.C = C;
    p.eps = attrs->eps;
    launch_norm(call, p);
  });
}

} // namespace

void cuda_rmsnorm(const fsdp_kernel_call *call) {
  run(call, false);
}

void cuda_add_rmsnorm(const fsdp_kernel_call *call) {
  run(call, true);
}
