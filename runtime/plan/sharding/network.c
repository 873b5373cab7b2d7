#include "runtime/plan/sharding/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fsdp_network_destroy(fsdp_network *network) {
  if (!network) return;
  free(network->tensors);
  free(network->operators);
  free(network);
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

const char *fsdp_operator_print(const fsdp_network *network, int op, char out[FSDP_OPERATOR_TEXT]) {
  const fsdp_operator *o = &network->operators[op];
  bool shared = false;
  for (int i = 0; i < network->operator_count && !shared; i++)
    shared = i != op && !strcmp(network->operators[i].names[0], o->names[0]);
  snprintf(out, FSDP_OPERATOR_TEXT, "%s%s%s", o->names[0], shared ? "." : "", shared ? o->kind : "");
  return out;
}

bool fsdp_operand_joins_rows(const fsdp_network *network, const fsdp_operator *op, int operand) {
  const signed char *letters = op->operands[operand].letter;
  return network->joins_rows && letters[0] >= 0 && letters[1] >= 0 && op->letters[letters[0]].name == 'b' &&
         op->letters[letters[1]].name == 't';
}
