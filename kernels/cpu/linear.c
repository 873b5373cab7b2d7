// Products with a weight (out, in): y = x * weight^T and its two gradients. y (and d_y) are columns
// [out_offset, out_offset + out) of rows that are out_stride wide. N rows.
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

// Reports the columns of y as the hull from the first row's first column to the last row's last.
static void touch_columns(const fsdp_kernel_call *call, const fsdp_view *y, int64_t N) {
  const fsdp_op_attrs *attrs = call->attrs;
  if (N == 0) return;
  touch_part(call, y, attrs->out_offset, (N - 1) * attrs->out_stride + attrs->out_features, y->access);
}

static int64_t check_columns(const fsdp_op_attrs *attrs) {
  FSDP_CHECK(attrs->out_offset >= 0 && attrs->out_offset + attrs->out_features <= attrs->out_stride,
             "columns %lld + %lld of rows of %lld", (long long)attrs->out_offset,
             (long long)attrs->out_features, (long long)attrs->out_stride);
  return attrs->batch * attrs->seq;
}

static void check_same(const fsdp_view *a, const fsdp_view *b, const fsdp_kernel_call *call) {
  FSDP_CHECK(a->dtype == b->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(a->dtype), fsdp_dtype_name(b->dtype));
}

void FSDP_CPU(linear)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = check_columns(attrs), in = attrs->in_features, out = attrs->out_features;
  check_count(call, 3, 3);
  const fsdp_view *x = operand(call, 0, N * in, FSDP_READ), *weight = operand(call, 1, out * in, FSDP_READ);
  const fsdp_view *y = operand(call, 2, N * attrs->out_stride, FSDP_UPDATE);
  check_same(x, weight, call);
  touch(call, x, N * in);
  touch(call, weight, out * in);
  touch_columns(call, y, N);
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
  int64_t N = check_columns(attrs), in = attrs->in_features, out = attrs->out_features;
  check_count(call, 3, 3);
  const fsdp_view *d_y = operand(call, 0, N * attrs->out_stride, FSDP_READ);
  const fsdp_view *weight = operand(call, 1, out * in, FSDP_READ),
                  *d_x = operand(call, 2, N * in, FSDP_UPDATE);
  check_same(d_y, weight, call);
  touch_columns(call, d_y, N);
  touch(call, weight, out * in);
  touch(call, d_x, N * in);
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
  int64_t N = check_columns(attrs), in = attrs->in_features, out = attrs->out_features;
  check_count(call, 3, 3);
  const fsdp_view *d_y = operand(call, 0, N * attrs->out_stride, FSDP_READ);
  const fsdp_view *x = operand(call, 1, N * in, FSDP_READ),
                  *d_weight = operand(call, 2, out * in, FSDP_UPDATE);
  check_same(d_y, x, call);
  touch_columns(call, d_y, N);
  touch(call, x, N * in);
  touch(call, d_weight, out * in);
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
