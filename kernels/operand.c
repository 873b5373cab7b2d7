#include "kernels/operand.h"

#include "runtime/base/check.h"

// The row's entry for operand `index`, or NULL: a workspace.
static const fsdp_op_operand *row_operand(const fsdp_op_letters *op, int index) {
  const fsdp_op_operand *last = &op->operands[op->operand_count - 1];
  if (index < op->operand_count) return &op->operands[index];
  return last->repeated ? last : NULL;
}

static void check_count(const fsdp_kernel_call *call, const fsdp_op_letters *op, int64_t workspace_bytes) {
  const fsdp_op_operand *last = &op->operands[op->operand_count - 1];
  int least = op->operand_count - last->optional, most = op->operand_count + (workspace_bytes > 0);
  if (last->repeated) most = FSDP_OP_MAX_OPERANDS;
  FSDP_CHECK(call->operand_count >= least && call->operand_count <= most,
             "%s takes %d to %d operands, not %d", fsdp_op_name(call->kind), least, most,
             call->operand_count);
}

static void check_operand(const fsdp_kernel_call *call, int index, const fsdp_op_operand *row,
                          int64_t flat_elems) {
  const fsdp_view *view = &call->operands[index];
  const char *op = fsdp_op_name(call->kind);
  int64_t numel = fsdp_op_operand_numel(call->attrs, row, row->repeated ? view->numel : flat_elems);
  FSDP_CHECK(view->numel == numel, "%s: operand %d (%s) has %lld elements, not %lld", op, index, row->name,
             (long long)view->numel, (long long)numel);
  FSDP_CHECK(view->access == row->access || (row->may_add && view->access == FSDP_UPDATE),
             "%s: operand %d (%s) is accessed as %d, not %d", op, index, row->name, (int)view->access,
             (int)row->access);
  FSDP_CHECK(!row->has_dtype || view->dtype == row->dtype, "%s: operand %d (%s) is %s, not %s", op, index,
             row->name, fsdp_dtype_name(view->dtype), fsdp_dtype_name(row->dtype));
}

static void check_workspace(const fsdp_kernel_call *call, int index, int64_t bytes) {
  const fsdp_view *view = &call->operands[index];
  FSDP_CHECK(view->dtype == FSDP_F32 && 4 * view->numel == bytes && (view->access & FSDP_WRITE),
             "%s: a workspace of %lld %s accessed as %d, not of %lld bytes", fsdp_op_name(call->kind),
             (long long)view->numel, fsdp_dtype_name(view->dtype), (int)view->access, (long long)bytes);
}

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
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t flat_elems = call->operand_count > 0 ? call->operands[0].numel : 0;
  int64_t workspace_bytes = fsdp_op_workspace_bytes(device, call->kind, attrs, flat_elems);
  check_count(call, op, workspace_bytes);
  FSDP_CHECK(attrs->out_offset >= 0 && attrs->out_offset + attrs->out_features <= attrs->out_stride,
             "%s: columns %lld + %lld of rows of %lld", fsdp_op_name(call->kind),
             (long long)attrs->out_offset, (long long)attrs->out_features, (long long)attrs->out_stride);
  for (int i = 0; i < call->operand_count; i++) {
    const fsdp_op_operand *row = row_operand(op, i);
    if (row) {
      check_operand(call, i, row, flat_elems);
    } else {
      check_workspace(call, i, workspace_bytes);
    }
    if (call->recorder && !(in_part >> i & 1)) report_all(call, i, row);
  }
  return call->operands;
}

const fsdp_view *fsdp_kernel_workspace(const fsdp_kernel_call *call) {
  int index = fsdp_op_letters_of(call->kind)->operand_count;
  FSDP_CHECK(call->operand_count == index + 1, "%s lacks its workspace", fsdp_op_name(call->kind));
  return &call->operands[index];
}

void fsdp_kernel_report(const fsdp_kernel_call *call, int index, int64_t first, int64_t count,
                        fsdp_access access) {
  const fsdp_view *view = &call->operands[index];
  int64_t width = fsdp_dtype_bytes(view->dtype);
  fsdp_access_report(call->recorder, (const char *)view->data + first * width, count * width, access);
}
