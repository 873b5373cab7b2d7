// Making operators: what the makers of networks share.
#pragma once

#include "runtime/plan/sharding/network.h"

// Appends an empty operator; the pointer is valid until the next call.
fsdp_operator *network_append(fsdp_network *network, const char *name, const char *kind);
// Appends an operand whose dimensions all are whole.
fsdp_operator_operand *operator_operand(fsdp_operator *op, int tensor, int list);
// Gives dimension `dim` of the operand, which has `size` items to cut, the letter `name`.
void operator_name_dim(fsdp_operator *op, fsdp_operator_operand *operand, int dim, char name, int64_t size);
