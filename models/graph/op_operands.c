// Whether a launch has the operands that its row names.
#include "models/graph/op.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct launch {
  fsdp_op_kind kind;
  const fsdp_op_attrs *attrs;
  const fsdp_op_letters *op;
  const fsdp_op_extent *operands;
  int count;
  int64_t flat_elems, workspace_bytes;
  char *message;
  size_t message_bytes;
} launch;

__attribute__((format(printf, 2, 3))) static bool refuse(const launch *l, const char *format, ...) {
  va_list arguments;
  int used = snprintf(l->message, l->message_bytes, "%s", fsdp_op_name(l->kind));
  va_start(arguments, format);
  vsnprintf(l->message + used, l->message_bytes - (size_t)used, format, arguments);
  va_end(arguments);
  return false;
}

static int64_t numel_of(const fsdp_op_extent *operand) {
  return operand->bytes / fsdp_dtype_bytes(operand->dtype);
}

static bool check_count(const launch *l) {
  const fsdp_op_operand *last = &l->op->operands[l->op->operand_count - 1];
  const int named = fsdp_op_operand_count(l->op, l->attrs);
  int least = named - last->optional, most = named + (l->workspace_bytes > 0);
  if (last->repeated) most = FSDP_OP_MAX_OPERANDS;
  if (l->count >= least && l->count <= most) return true;
  return refuse(l, " takes %d to %d operands, not %d", least, most, l->count);
}

static bool check_operand(const launch *l, int index, const fsdp_op_operand *row) {
  const fsdp_op_extent *found = &l->operands[index];
  int64_t numel = fsdp_op_operand_numel(l->attrs, row, row->repeated ? numel_of(found) : l->flat_elems);
  if (found->bytes != numel * fsdp_dtype_bytes(found->dtype))
    return refuse(l, ": operand %d (%s) has %lld elements, not %lld", index, row->name,
                  (long long)numel_of(found), (long long)numel);
  if (found->access != row->access && !(row->may_add && found->access == FSDP_UPDATE))
    return refuse(l, ": operand %d (%s) is accessed as %d, not %d", index, row->name, (int)found->access,
                  (int)row->access);
  if (row->has_dtype && found->dtype != row->dtype)
    return refuse(l, ": operand %d (%s) is %s, not %s", index, row->name, fsdp_dtype_name(found->dtype),
                  fsdp_dtype_name(row->dtype));
  return true;
}

// A gemm multiplies what has one dtype; the first two operands are what it reads.
static bool check_factors(const launch *l) {
  if (!fsdp_op_makes_gemms(l->kind) || l->count < 2) return true;
  for (int i = 0; i < 2; i++)
    if (l->operands[i].access != FSDP_READ || l->op->operands[i].has_dtype) return true;
  if (l->operands[0].dtype == l->operands[1].dtype) return true;
  return refuse(l, " multiplies %s (%s) with %s (%s)", fsdp_dtype_name(l->operands[0].dtype),
                l->op->operands[0].name, fsdp_dtype_name(l->operands[1].dtype), l->op->operands[1].name);
}

static bool check_workspace(const launch *l, int index) {
  const fsdp_op_extent *found = &l->operands[index];
  if (found->dtype == FSDP_F32 && found->bytes == l->workspace_bytes && (found->access & FSDP_WRITE))
    return true;
  return refuse(l, ": a workspace of %lld %s accessed as %d, not of %lld bytes", (long long)numel_of(found),
                fsdp_dtype_name(found->dtype), (int)found->access, (long long)l->workspace_bytes);
}

static bool check_attrs(const launch *l) {
  const fsdp_op_attrs *a = l->attrs;
  if (a->out_offset < 0 || a->out_offset + a->out_features > a->out_stride)
    return refuse(l, ": columns %lld + %lld of rows of %lld", (long long)a->out_offset,
                  (long long)a->out_features, (long long)a->out_stride);
  if (!fsdp_op_letter_find(l->op, 't')) return true; // it knows rows alone
  if (a->piece < 0 || (a->piece > 0 && a->seq % a->piece != 0))
    return refuse(l, ": %lld rows of a sequence in pieces of %lld", (long long)a->seq, (long long)a->piece);
  if (a->chunk < 0 || a->chunk > a->seq)
    return refuse(l, ": a chunk of %lld of %lld rows", (long long)a->chunk, (long long)a->seq);
  return true;
}

// Operands that the launch has not are left out, and those behind them move up.
static bool is_given(const fsdp_op_letters *op, const fsdp_op_attrs *attrs, int index) {
  switch (op->operands[index].given) {
  case FSDP_GIVEN_BY_DOCUMENTS:
    return attrs->documents != 0;
  case FSDP_GIVEN_BY_LEARNED:
    return attrs->loss_of_documents;
  case FSDP_GIVEN_BY_DRAWS:
    return attrs->draws != 0;
  case FSDP_GIVEN_ALWAYS:
    break;
  }
  if (!attrs->weight_frozen) return true;
  int last = op->operand_count - 1;
  while (!(op->operands[last].access & FSDP_WRITE)) last--;
  return index != last;
}

int fsdp_op_operand_count(const fsdp_op_letters *op, const fsdp_op_attrs *attrs) {
  int count = 0;
  for (int i = 0; i < op->operand_count; i++) count += is_given(op, attrs, i);
  return count;
}

const fsdp_op_operand *fsdp_op_operand_row(const fsdp_op_letters *op, const fsdp_op_attrs *attrs, int index) {
  const fsdp_op_operand *last = &op->operands[op->operand_count - 1];
  for (int i = 0, left = index; i < op->operand_count; i++)
    if (is_given(op, attrs, i) && left-- == 0) return &op->operands[i];
  return last->repeated ? last : NULL;
}

bool fsdp_op_operands_fit(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                          const fsdp_op_extent *operands, int count, char *message, size_t message_bytes) {
  launch l = {.kind = kind,
              .attrs = attrs,
              .op = fsdp_op_letters_of(kind),
              .operands = operands,
              .count = count,
              .flat_elems = count > 0 ? numel_of(&operands[0]) : 0,
              .message = message,
              .message_bytes = message_bytes};
  l.workspace_bytes = fsdp_op_workspace_bytes(device, kind, attrs, l.flat_elems);
  bool fits = check_count(&l) && check_attrs(&l) && check_factors(&l);
  for (int i = 0; i < count && fits; i++) {
    const fsdp_op_operand *row = fsdp_op_operand_row(l.op, attrs, i);
    fits = row ? check_operand(&l, i, row) : check_workspace(&l, i);
  }
  return fits;
}
