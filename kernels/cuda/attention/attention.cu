// Attention's launchers: operands, rowsum(d_o * o), and which of the implementations runs.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/ops.cuh"

#include <math.h>

namespace {

constexpr int threads_count = 256;
constexpr int warps = threads_count / warp_lanes;
constexpr int64_t general_head_max = 256;

attention_shape shape_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t H = attrs->heads, K = attrs->kv_heads, D = attrs->head_dim;
  FSDP_CHECK(K > 0 && H % K == 0 && D > 0, "%lld heads over %lld key/value heads of %lld", (long long)H,
             (long long)K, (long long)D);
  FSDP_CHECK(D <= general_head_max, "%s: head dimension %lld exceeds %lld", fsdp_op_name(call->kind),
             (long long)D, (long long)general_head_max);
  FSDP_CHECK(attrs->seq < INT32_MAX / 4 && attrs->batch * H <= 65535,
             "%s: %lld sequences of %lld, %lld heads", fsdp_op_name(call->kind), (long long)attrs->batch,
             (long long)attrs->seq, (long long)H);
  FSDP_CHECK(attrs->window >= 0, "%s: a window of %lld keys", fsdp_op_name(call->kind),
             (long long)attrs->window);
  attention_shape s = {};
  s.B = int(attrs->batch);
  s.T = int(attrs->seq);
  s.H = int(H);
  s.K = int(K);
  s.G = int(H / K);
  s.D = int(D);
  s.window = attrs->window > 0 && attrs->window < attrs->seq ? int(attrs->window) : INT32_MAX / 2;
  s.Q = (H + 2 * K) * D;
  s.scale = float(1.0 / sqrt(double(D)));
  return s;
}

// Rows must start on 16 bytes for cp.async.
bool fits_tensor_cores(const attention_shape &s, const void *qkv, const void *o, const void *d_o,
                       const void *d_qkv) {
  return s.D % 8 == 0 && s.D <= 128 && is_aligned(qkv) && is_aligned(o) && is_aligned(d_o) &&
         is_aligned(d_qkv);
}

// One warp per row of o of one head.
template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    sum_delta(attention_shape s, const T *o, const T *d_o, float *delta) {
  const int64_t index = int64_t(blockIdx.x) * warps + int(threadIdx.x) / warp_lanes; // (B, T, H)
  if (index >= int64_t(s.B) * s.T * s.H) return;                                     // whole warps
  float sum = 0;
  for (int c = int(threadIdx.x) % warp_lanes * WIDTH; c < s.D; c += warp_lanes * WIDTH) {
    float x[WIDTH], y[WIDTH];
    load_floats<WIDTH>(o + index * s.D + c, x);
    load_floats<WIDTH>(d_o + index * s.D + c, y);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum += x[i] * y[i];
  }
  sum = warp_sum(sum);
  const int64_t row = index / s.H;
  if (threadIdx.x % warp_lanes == 0)
    global_store(delta + statistic_at(s, int(row / s.T), int(index % s.H), int(row % s.T)), sum);
}

} // namespace

void cuda_attention(const fsdp_kernel_call *call) {
  const fsdp_view *views = open_operands(call), *qkv = &views[0];
  const attention_shape s = shape_of(call);
  auto *lse = data_of<float>(&views[2]);
  with_type(qkv->dtype, [&](auto number) {
    using T = decltype(number);
    const attention_forward<T> p = {s, data_of<T>(qkv), numbers_of<T>(call, 1), lse};
    if constexpr (sizeof(T) == 2) {
      if (fits_tensor_cores(s, p.qkv, p.o, nullptr, nullptr)) {
        attention_tensor_forward(p, call->stream);
        return;
      }
    }
    attention_general_forward(p, call->stream);
  });
}

void cuda_attention_backward(const fsdp_kernel_call *call) {
  const fsdp_view *views = open_operands(call), *qkv = &views[0];
  const attention_shape s = shape_of(call);
  const int64_t N = int64_t(s.B) * s.T;
  const auto *lse = data_of<float>(&views[2]);
  auto *delta = data_of<float>(fsdp_kernel_workspace(call));
  with_type(qkv->dtype, [&](auto number) {
    using T = decltype(number);
    const T *o = numbers_of<T>(call, 1), *d_o = numbers_of<T>(call, 3);
    const bool wide = s.D % 4 == 0 && is_aligned(o) && is_aligned(d_o);
    launch({blocks_of(N * s.H, warps), threads_count, call->stream}, wide ? sum_delta<T, 4> : sum_delta<T, 1>,
           s, o, d_o, delta);
    const attention_gradient<T> p = {s, data_of<T>(qkv), d_o, lse, delta, numbers_of<T>(call, 4)};
    if constexpr (sizeof(T) == 2) {
      if (fits_tensor_cores(s, p.qkv, nullptr, p.d_o, p.d_qkv)) {
        attention_tensor_backward(p, call->stream);
        return;
      }
    }
    attention_general_backward(p, call->stream);
  });
}
