#include "runtime/plan/sharding/dataflow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fsdp_dataflow_destroy(fsdp_dataflow *flow) {
  if (!flow) return;
  free(flow->tensors);
  free(flow->operators);
  free(flow);
}

int fsdp_operator_letter_find(const fsdp_operator *op, char name) {
  for (int l = 0; l < op->letter_count; l++)
    if (op->letters[l].name == name) return l;
  return -1;
}

int fsdp_operand_dim(const fsdp_operator_operand *operand, int letter) {
  for (int d = 0; d < FSDP_MAX_DIMS; d++)
    if (operand->letter[d] == letter) return d;
  return -1;
}

const char *fsdp_operator_print(const fsdp_dataflow *flow, int op, char out[FSDP_OPERATOR_TEXT]) {
  const fsdp_operator *o = &flow->operators[op];
  bool shared = false;
  for (int i = 0; i < flow->operator_count && !shared; i++)
    shared = i != op && !strcmp(flow->operators[i].names[0], o->names[0]);
  snprintf(out, FSDP_OPERATOR_TEXT, "%s%s%s", o->names[0], shared ? "." : "", shared ? o->kind : "");
  return out;
}

bool fsdp_operand_joins_rows(const fsdp_dataflow *flow, const fsdp_operator *op, int operand) {
  const signed char *letters = op->operands[operand].letter;
  return flow->joins_rows && letters[0] >= 0 && letters[1] >= 0 && op->letters[letters[0]].name == 'b' &&
         op->letters[letters[1]].name == 't';
}
