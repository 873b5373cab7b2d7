// Operands of ops: a kernel takes what its row names, whatever lies at the address.
#include "runtime/plan/proof/verify_internal.h"

static bool check_launch(const verifier *v, int position) {
  const fsdp_instr *instr = &v->program->instrs[position];
  const fsdp_operand *operands = &v->program->operands[instr->first_operand];
  char who[VERIFY_WHO_BYTES], messages[FSDP_OP_DEVICE_COUNT][FSDP_OP_MESSAGE_BYTES];
  fsdp_op_extent extents[FSDP_OP_MAX_OPERANDS];
  fsdp_violation found = {FSDP_VIOLATION_OPERANDS, position, -1, -1, -1, 0, ""};
  if (instr->operand_count > FSDP_OP_MAX_OPERANDS)
    return verify_reject(v, found, "%s has %d operands", verify_describe(v, position, who),
                         instr->operand_count);
  for (int o = 0; o < instr->operand_count; o++)
    extents[o] = (fsdp_op_extent){operands[o].dtype, operands[o].access, operands[o].size_bytes};
  // The list does not say which device it is for: workspaces alone depend on that.
  for (int d = 0; d < FSDP_OP_DEVICE_COUNT; d++)
    if (fsdp_op_operands_fit((fsdp_op_device)d, instr->op, &instr->attrs, extents, instr->operand_count,
                             messages[d], sizeof messages[d]))
      return true;
  return verify_reject(v, found, "%s: %s", verify_describe(v, position, who), messages[0]);
}

bool verify_launches(const verifier *v) {
  for (int i = 0; i < v->program->instr_count; i++)
    if (v->program->instrs[i].kind == FSDP_INSTR_OP && !check_launch(v, i)) return false;
  return true;
}
