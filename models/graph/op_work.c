// What an op does, from its row and its operands' letters.
#include "models/graph/op_row.h"

fsdp_op_work fsdp_op_work_of(fsdp_op_kind kind, const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                             int operand_count) {
  const fsdp_op_row *row = fsdp_op_row_of(kind);
  const fsdp_op_letters *op = fsdp_op_letters_of(kind);
  bool repeated = op->operands[op->operand_count - 1].repeated;
  fsdp_op_work work = {.flops = fsdp_op_flops(kind, attrs)};
  for (int i = 0; i < operand_count && (repeated || i < fsdp_op_operand_count(op, attrs)); i++) {
    if (operands[i].access == FSDP_UPDATE) work.added_bytes += (double)operands[i].bytes;
    work.bytes += (double)operands[i].bytes;
  }
  work.bytes += work.added_bytes;
  if (row->work) row->work(attrs, operands, &work);
  return work;
}
