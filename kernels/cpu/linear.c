// Products with a weight (out, in): y = x * weight^T and its two gradients. y (and d_y) are columns
// [out_offset, out_offset + out) of rows that are out_stride wide. N rows.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

static void check_same(const fsdp_view *a, const fsdp_view *b, const fsdp_kernel_call *call) {
  FSDP_CHECK(a->dtype == b->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(a->dtype), fsdp_dtype_name(b->dtype));
}

void FSDP_CPU(linear)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = open_operands(call, 0);
  const fsdp_view *x = &o[0], *weight = &o[1], *y = &o[2];
  check_same(x, weight, call);
  fsdp_gemm gemm = {.m = N,
                    .n = out,
                    .k = in,
                    .a = x->data,
                    .a_stride = in,
                    .b = weight->data,
                    .b_stride = in,
                    .b_transposed = true,
                    .c = element(y, attrs->out_offset),
                    .c_stride = attrs->out_stride,
                    .ab_dtype = x->dtype,
                    .c_dtype = y->dtype,
                    .accumulate = updates(y)};
  fsdp_gemm_run(call->pool, &gemm);
}

void FSDP_CPU(linear_backward_input)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = open_operands(call, 0);
  const fsdp_view *d_y = &o[0], *weight = &o[1], *d_x = &o[2];
  check_same(d_y, weight, call);
  fsdp_gemm gemm = {.m = N,
                    .n = in,
                    .k = out,
                    .a = element(d_y, attrs->out_offset),
                    .a_stride = attrs->out_stride,
                    .b = weight->data,
                    .b_stride = in,
                    .c = d_x->data,
                    .c_stride = in,
                    .ab_dtype = d_y->dtype,
                    .c_dtype = d_x->dtype,
                    .accumulate = updates(d_x)};
  fsdp_gemm_run(call->pool, &gemm);
}

void FSDP_CPU(linear_backward_weight)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = open_operands(call, 0);
  const fsdp_view *d_y = &o[0], *x = &o[1], *d_weight = &o[2];
  check_same(d_y, x, call);
  fsdp_gemm gemm = {.m = out,
                    .n = in,
                    .k = N,
                    .a = element(d_y, attrs->out_offset),
                    .a_stride = attrs->out_stride,
                    .a_transposed = true,
                    .b = x->data,
                    .b_stride = in,
                    .c = d_weight->data,
                    .c_stride = in,
                    .ab_dtype = d_y->dtype,
                    .c_dtype = d_weight->dtype,
                    .accumulate = updates(d_weight)};
  fsdp_gemm_run(call->pool, &gemm);
}
