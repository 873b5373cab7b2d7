// Products with a weight (out, in), which may be stored transposed, (in, out): y = x * weight^T (+ bias)
// (+ residual) and the gradients of x and weight. y (and d_y) are columns [out_offset, out_offset + out) of
// rows that are out_stride wide. N rows.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/operand.h"

// y = x * weight^T, or y += with `accumulate`, or y = added + x * weight^T, of which rows of `added` are
// `added_stride` apart.
static void multiply_forward(const fsdp_kernel_call *call, const fsdp_view *y, const void *added,
                             int64_t added_stride, bool accumulate) {
  const fsdp_view *x = &call->operands[0], *weight = &call->operands[1];
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, in = attrs->in_features, out = attrs->out_features;
  fsdp_gemm gemm = {.m = N,
                    .n = out,
                    .k = in,
                    .a = x->data,
                    .a_stride = in,
                    .b = weight->data,
                    .b_stride = attrs->weight_transposed ? out : in,
                    .b_transposed = !attrs->weight_transposed,
                    .c = element(y, attrs->out_offset),
                    .added = added,
                    .added_stride = added_stride,
                    .c_stride = attrs->out_stride,
                    .ab_dtype = x->dtype,
                    .c_dtype = y->dtype,
                    .accumulate = accumulate};
  fsdp_gemm_run(call->pool, &gemm);
}

void FSDP_CPU(linear)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  multiply_forward(call, &o[2], NULL, 0, updates(&o[2]));
}

// The gemm adds to the bias, so that the sum is rounded once.
void FSDP_CPU(linear_bias)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0), *bias = &o[2], *y = &o[3];
  FSDP_CHECK(bias->dtype == y->dtype, "linear_bias: a bias of %s beside a result of %s",
             fsdp_dtype_name(bias->dtype), fsdp_dtype_name(y->dtype));
  multiply_forward(call, y, bias->data, 0, false);
}

static void check_added(const fsdp_kernel_call *call, const fsdp_view *residual, const fsdp_view *h) {
  FSDP_CHECK(residual->dtype == h->dtype, "%s: a residual of %s beside a sum of %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(residual->dtype), fsdp_dtype_name(h->dtype));
}

void FSDP_CPU(linear_add)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  check_added(call, &o[2], &o[3]);
  multiply_forward(call, &o[3], element(&o[2], call->attrs->out_offset), call->attrs->out_stride, false);
}

void FSDP_CPU(linear_bias_add)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0), *h = &o[4];
  check_added(call, &o[3], h);
  FSDP_CPU(add_bias_to)(call, &o[2], &o[3], h);
  multiply_forward(call, h, NULL, 0, true);
}

void FSDP_CPU(linear_backward_input)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, in = attrs->in_features, out = attrs->out_features;
  const fsdp_view *o = open_operands(call, 0);
  const fsdp_view *d_y = &o[0], *weight = &o[1], *d_x = &o[2];
  fsdp_gemm gemm = {.m = N,
                    .n = in,
                    .k = out,
                    .a = element(d_y, attrs->out_offset),
                    .a_stride = attrs->out_stride,
                    .b = weight->data,
                    .b_stride = attrs->weight_transposed ? out : in,
                    .b_transposed = attrs->weight_transposed,
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
  // d_y^T * x, or x^T * d_y for a transposed weight.
  const void *columns = element(d_y, attrs->out_offset);
  bool turned = attrs->weight_transposed;
  fsdp_gemm gemm = {.m = turned ? in : out,
                    .n = turned ? out : in,
                    .k = N,
                    .a = turned ? x->data : columns,
                    .a_stride = turned ? in : attrs->out_stride,
                    .a_transposed = true,
                    .b = turned ? columns : x->data,
                    .b_stride = turned ? attrs->out_stride : in,
                    .c = d_weight->data,
                    .c_stride = turned ? out : in,
                    .ab_dtype = d_y->dtype,
                    .c_dtype = d_weight->dtype,
                    .accumulate = updates(d_weight)};
  fsdp_gemm_run(call->pool, &gemm);
}
