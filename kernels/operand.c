#include "kernels/operand.h"

#include "runtime/base/check.h"

static void report_all(const fsdp_kernel_call *call, int index, const fsdp_op_operand *row) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *view = &call->operands[index];
  int64_t first = 0, count = view->numel;
  if (row && row->dims[row->dim_count - 1].is_slice) {
    // The hull from the first row's first column to the last row's last.
    int64_t width = fsdp_op_dim_size(attrs, &row->dims[row->dim_count - 1], 0);
    first = attrs->out_offset;
    count = view->numel - attrs->out_stride + width;
  }
  fsdp_kernel_report(call, index, first, count, view->access);
}

const fsdp_view *fsdp_kernel_open(const fsdp_kernel_call *call, fsdp_op_device device, unsigned in_part) {
  const fsdp_op_letters *op = fsdp_op_letters_of(call->kind);
  fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS];
  char message[FSDP_OP_MESSAGE_BYTES];
  FSDP_CHECK(call->operand_count <= FSDP_OP_MAX_OPERANDS, "%s with %d operands", fsdp_op_name(call->kind),
             call->operand_count);
  for (int i = 0; i < call->operand_count; i++) {
    const fsdp_view *view = &call->operands[i];
    extents[i] = (fsdp_op_extent){view->dtype, view->access, view->numel * fsdp_dtype_bytes(view->dtype)};
  }
  FSDP_CHECK(fsdp_op_operands_fit(device, call->kind, call->attrs, extents, call->operand_count, message,
                                  sizeof message),
             "%s", message);
  for (int i = 0; call->recorder && i < call->operand_count; i++)
    if (!(in_part >> i & 1)) report_all(call, i, fsdp_op_operand_row(op, call->attrs, i));
  return call->operands;
}

const fsdp_view *fsdp_kernel_workspace(const fsdp_kernel_call *call) {
  int index = fsdp_op_operand_count(fsdp_op_letters_of(call->kind), call->attrs);
  FSDP_CHECK(call->operand_count == index + 1, "%s lacks its workspace", fsdp_op_name(call->kind));
  return &call->operands[index];
}

const int32_t *fsdp_kernel_given(const fsdp_kernel_call *call, fsdp_op_given given) {
  const fsdp_op_letters *op = fsdp_op_letters_of(call->kind);
  for (int i = 0; i < call->operand_count; i++) {
    const fsdp_op_operand *row = fsdp_op_operand_row(op, call->attrs, i);
    if (row && row->given == given) return call->operands[i].data;
  }
  return NULL;
}

void fsdp_kernel_report(const fsdp_kernel_call *call, int index, int64_t first, int64_t count,
                        fsdp_access access) {
  const fsdp_view *view = &call->operands[index];
  int64_t width = fsdp_dtype_bytes(view->dtype);
  fsdp_access_report(call->recorder, (const char *)view->data + first * width, count * width, access);
}
