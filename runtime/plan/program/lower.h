// What the files that lower graph nodes share.
#pragma once

#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

typedef struct lowering {
  step_builder *s;
  int *tensor_of_value; // by graph value; -1: not made yet
  int origin;
  bool is_backward;
} lowering;

// The tensor, or the range of a unit, that a node's operand is; a value that is written gets a new tensor.
fsdp_operand lower_operand(lowering *l, const fsdp_node_operand *operand);
// The range of a parameter inside its unit's buffer, of weights or of gradients.
fsdp_operand lower_parameter(const step_builder *s, const fsdp_value *v, fsdp_access access);
// Appends the node's op on the compute stream. Operands in the row's order.
void lower_op(lowering *l, const fsdp_node *node, const fsdp_op_attrs *attrs, const fsdp_operand *operands,
              int count);
// Says which graph node the list's node `index` comes from.
void lower_mark(lowering *l, const fsdp_node *node, int index);
// A tensor between the instructions of one node.
int lower_temporary(lowering *l, const fsdp_node *node, const char *what, int64_t bytes);

// A change of placement: a collective, and what packs and unpacks columns (lower_redistribute.c).
void lower_redistribute(lowering *l, const fsdp_node *node);

// The head with cross-entropy over a vocabulary that is cut: in chunks of rows, each of several instructions
// (lower_head.c).
bool lower_is_cut_head(const fsdp_node *node);
void lower_cut_head(lowering *l, const fsdp_node *node);

// Behind an evaluation's head: the logits of one row, into the builder's `logits` (lower_head.c).
void lower_logits(lowering *l, const fsdp_node *head);
