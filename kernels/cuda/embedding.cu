// Token embedding: h[n] = weight[tokens[n] - first], rows of C channels; zeros for a token of a row that lies
// outside the weight, which may be V rows of a table of `extent`. One block per token.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 128;

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    copy_row(const int32_t *tokens, const T *weight, T *h, int64_t first, int64_t V, int64_t C,
             int64_t extent) {
  const int64_t token = global_load(tokens + blockIdx.x);
  if (token < 0 || token >= extent) __trap();
  const int64_t row = token - first;
  const bool held = row >= 0 && row < V;
  for (int64_t c = int64_t(threadIdx.x) * WIDTH; c < C; c += threads_count * WIDTH) {
    float x[WIDTH] = {};
    if (held) load_floats<WIDTH>(weight + row * C + c, x);
    store_floats<WIDTH>(h + int64_t(blockIdx.x) * C + c, x);
  }
}

} // namespace

void cuda_embedding(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, V = attrs->vocabulary, C = attrs->channels;
  const int64_t first = attrs->first_index, extent = attrs->extent ? attrs->extent : first + V;
  const fsdp_view *o = open_operands(call), *weight = &o[1], *h = &o[2];
  const auto *tokens = data_of<int32_t>(&o[0]);
  with_type(weight->dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = takes_vectors<T>(C, data_of<T>(weight), data_of<T>(h));
    launch({N, threads_count, stream_of(call)}, wide ? copy_row<T, width> : copy_row<T, 1>, tokens,
           data_of<T>(weight), numbers_of<T>(call, 2), first, V, C, extent);
  });
}
