// Products with a weight (out, in): y = x * weight^T and its two gradients. y (and d_y) are columns
// [out_offset, out_offset + out) of rows that are out_stride wide. N rows.
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

char *columns_of(const fsdp_view *y, const fsdp_op_attrs *attrs) {
  return static_cast<char *>(y->data) + attrs->out_offset * fsdp_dtype_bytes(y->dtype);
}

void check_same(const fsdp_kernel_call *call, const fsdp_view *a, const fsdp_view *b) {
  FSDP_CHECK(a->dtype == b->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(a->dtype), fsdp_dtype_name(b->dtype));
}

fsdp_cuda_gemm_run forward_product(const fsdp_kernel_call *call, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = call->operands, *x = &o[0], *weight = &o[1], *y = &o[2];
  check_same(call, x, weight);
  fsdp_cuda_gemm_run p = {};
  p.m = N, p.n = out, p.k = in;
  p.a = x->data, p.a_stride = in;
  p.b = weight->data, p.b_stride = in, p.b_transposed = true;
  p.c = columns_of(y, attrs), p.c_stride = attrs->out_stride;
  p.ab_dtype = x->dtype, p.c_dtype = y->dtype, p.accumulate = updates(y);
  return p;
}

fsdp_cuda_gemm_run input_product(const fsdp_kernel_call *call, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = call->operands, *d_y = &o[0], *weight = &o[1], *d_x = &o[2];
  check_same(call, d_y, weight);
  fsdp_cuda_gemm_run p = {};
  p.m = N, p.n = in, p.k = out;
  p.a = columns_of(d_y, attrs), p.a_stride = attrs->out_stride;
  p.b = weight->data, p.b_stride = in;
  p.c = d_x->data, p.c_stride = in;
  p.ab_dtype = d_y->dtype, p.c_dtype = d_x->dtype, p.accumulate = updates(d_x);
  return p;
}

fsdp_cuda_gemm_run weight_product(const fsdp_kernel_call *call, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = call->operands, *d_y = &o[0], *x = &o[1], *d_weight = &o[2];
  check_same(call, d_y, x);
  fsdp_cuda_gemm_run p = {};
  p.m = out, p.n = in, p.k = N;
  p.a = columns_of(d_y, attrs), p.a_stride = attrs->out_stride, p.a_transposed = true;
  p.b = x->data, p.b_stride = in;
  p.c = d_weight->data, p.c_stride = in;
  p.ab_dtype = d_y->dtype, p.c_dtype = d_weight->dtype, p.accumulate = updates(d_weight);
  return p;
}

fsdp_cuda_gemm_run product_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq;
  open_operands(call);
  if (call->kind == FSDP_OP_LINEAR) return forward_product(call, N);
  return call->kind == FSDP_OP_LINEAR_BACKWARD_INPUT ? input_product(call, N) : weight_product(call, N);
}

void run(const fsdp_kernel_call *call) {
  const fsdp_cuda_gemm_run p = product_of(call);
  multiply(&p, call->stream);
}

} // namespace

void cuda_linear(const fsdp_kernel_call *call) {
  run(call);
}

void cuda_linear_backward_input(const fsdp_kernel_call *call) {
  run(call);
}

void cuda_linear_backward_weight(const fsdp_kernel_call *call) {
  run(call);
}
