#include "runtime/plan/sharding/network_build.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

fsdp_operator *network_append(fsdp_network *network, const char *name, const char *kind) {
  network->operators = fsdp_grow(network->operators, network->operator_count + 1, &network->operator_capacity,
                                 sizeof *network->operators);
  fsdp_operator *op = &network->operators[network->operator_count++];
  *op = (fsdp_operator){.name_count = 1, .node = -1, .gathered_letter = -1};
  snprintf(op->names[0], sizeof op->names[0], "%s", name);
  snprintf(op->kind, sizeof op->kind, "%s", kind);
  return op;
}

fsdp_operator_operand *operator_operand(fsdp_operator *op, int tensor, int list) {
  FSDP_CHECK(op->operand_count < FSDP_OPERATOR_OPERANDS, "too many operands of %s", op->names[0]);
  fsdp_operator_operand *operand = &op->operands[op->operand_count++];
  *operand = (fsdp_operator_operand){.tensor = tensor, .list = list};
  memset(operand->letter, -1, sizeof operand->letter);
  return operand;
}

void operator_name_dim(fsdp_operator *op, fsdp_operator_operand *operand, int dim, char name, int64_t size) {
  FSDP_CHECK(name >= 'a' && name <= 'z', "dimension %d of an operand of %s has no letter", dim, op->names[0]);
  int l = fsdp_operator_letter_find(op, name);
  if (l < 0) {
    FSDP_CHECK(op->letter_count < FSDP_OPERATOR_LETTERS, "too many letters of %s", op->names[0]);
    l = op->letter_count++;
    op->letters[l] = (fsdp_operator_letter){.name = name, .size = size, .limit = size};
  }
  if (size > op->letters[l].size) op->letters[l].size = size;
  if (size < op->letters[l].limit) op->letters[l].limit = size;
  operand->letter[dim] = (signed char)l;
}
