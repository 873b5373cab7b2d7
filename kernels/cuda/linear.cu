// Products with a weight (out, in), which may be stored transposed, (in, out): y = x * weight^T (+ bias)
// (+ residual) and the gradients of x and weight. y (and d_y) are columns [out_offset, out_offset + out) of
// rows that are out_stride wide. N rows.
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

#include <utility>

namespace {

char *columns_of(const fsdp_view *y, const fsdp_op_attrs *attrs) {
  return static_cast<char *>(y->data) + attrs->out_offset * fsdp_dtype_bytes(y->dtype);
}

// What is added to y has its dtype.
const fsdp_view *added_to(const fsdp_kernel_call *call, const fsdp_view *added, const fsdp_view *y) {
  FSDP_CHECK(added->dtype == y->dtype, "%s adds %s to %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(added->dtype), fsdp_dtype_name(y->dtype));
  return added;
}

// Operands: x, weight, [bias,] [residual,] y.
template <bool BIASED, bool ADDS>
fsdp_cuda_gemm_run forward_product(const fsdp_kernel_call *call, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = call->operands, *x = &o[0], *weight = &o[1], *y = &o[2 + BIASED + ADDS];
  fsdp_cuda_gemm_run p = {};
  p.m = N, p.n = out, p.k = in;
  p.a = x->data, p.a_stride = in;
  p.b = weight->data, p.b_stride = attrs->weight_transposed ? out : in;
  p.b_transposed = !attrs->weight_transposed;
  p.c = columns_of(y, attrs), p.c_stride = attrs->out_stride;
  p.ab_dtype = x->dtype, p.c_dtype = y->dtype, p.added = updates(y) ? p.c : nullptr;
  if (BIASED) p.bias = added_to(call, &o[2], y)->data;
  if (ADDS) p.added = columns_of(added_to(call, &o[2 + BIASED], y), attrs);
  return p;
}

fsdp_cuda_gemm_run input_product(const fsdp_kernel_call *call, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = call->operands, *d_y = &o[0], *weight = &o[1], *d_x = &o[2];
  fsdp_cuda_gemm_run p = {};
  p.m = N, p.n = in, p.k = out;
  p.a = columns_of(d_y, attrs), p.a_stride = attrs->out_stride;
  p.b = weight->data, p.b_stride = attrs->weight_transposed ? out : in;
  p.b_transposed = attrs->weight_transposed;
  p.c = d_x->data, p.c_stride = in;
  p.ab_dtype = d_y->dtype, p.c_dtype = d_x->dtype, p.added = updates(d_x) ? p.c : nullptr;
  return p;
}

// d_y^T * x, or x^T * d_y for a transposed weight.
fsdp_cuda_gemm_run weight_product(const fsdp_kernel_call *call, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = call->operands, *d_y = &o[0], *x = &o[1], *d_weight = &o[2];
  fsdp_cuda_gemm_run p = {};
  p.m = out, p.n = in, p.k = N;
  p.a = columns_of(d_y, attrs), p.a_stride = attrs->out_stride;
  p.b = x->data, p.b_stride = in;
  if (attrs->weight_transposed) {
    std::swap(p.m, p.n);
    std::swap(p.a, p.b);
    std::swap(p.a_stride, p.b_stride);
  }
  p.a_transposed = true;
  p.c = d_weight->data, p.c_stride = p.n;
  p.ab_dtype = d_y->dtype, p.c_dtype = d_weight->dtype, p.added = updates(d_weight) ? p.c : nullptr;
  return p;
}

void run(const fsdp_kernel_call *call,
         fsdp_cuda_gemm_run (*product_of)(const fsdp_kernel_call *call, int64_t N)) {
  open_operands(call);
  const fsdp_cuda_gemm_run p = product_of(call, call->attrs->batch * call->attrs->seq);
  multiply(&p, stream_of(call));
}

} // namespace

void cuda_linear(const fsdp_kernel_call *call) {
  run(call, forward_product<false, false>);
}

void cuda_linear_bias(const fsdp_kernel_call *call) {
  run(call, forward_product<true, false>);
}

void cuda_linear_add(const fsdp_kernel_call *call) {
  run(call, forward_product<false, true>);
}

void cuda_linear_bias_add(const fsdp_kernel_call *call) {
  run(call, forward_product<true, true>);
}

void cuda_linear_backward_input(const fsdp_kernel_call *call) {
  run(call, input_product);
}

void cuda_linear_backward_weight(const fsdp_kernel_call *call) {
  run(call, weight_product);
}
