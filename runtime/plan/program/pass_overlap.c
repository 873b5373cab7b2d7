// Overlap of tensor parallelism's collectives in the backward: the gradient of a product's weight, which
// nothing waits for yet, is computed while the gradient of its input is on the wire.
//
//   before   weight   input   collective of the input's gradient
//   after    input    collective   weight                             on streams of their own
//
// The weight's gradient keeps the product's input alive meanwhile.
#include "runtime/plan/program/passes.h"

// Whether it makes the gradient of a layer's input, or, `of_params`, of its weight or bias.
static bool makes_gradient(const fsdp_list_node *node, bool of_params) {
  if (node->instr.kind != FSDP_INSTR_OP) return false;
  if (!of_params) return node->instr.op == fsdp_op_product_kind(FSDP_PRODUCT_INPUT);
  const fsdp_op_letters *op = fsdp_op_letters_of(node->instr.op);
  int made = op->operand_count - 1;
  return made == fsdp_op_slice_weight(op) || made == fsdp_op_slice_bias(op);
}

// The node of the input's gradient that a collective sends, past what packs it; FSDP_NO_NODE: something else
// is sent.
static int sent_product(const fsdp_nodes *list, int collective) {
  const fsdp_list_node *node = &list->nodes[collective];
  int before = node->previous;
  if (!fsdp_instr_is_collective(&node->instr) || node->instr.stream != FSDP_STREAM_TENSOR ||
      !node->is_backward)
    return FSDP_NO_NODE;
  while (before != FSDP_NO_NODE && list->nodes[before].origin == node->origin &&
         !fsdp_instr_is_collective(&list->nodes[before].instr))
    before = list->nodes[before].previous;
  bool found = before != FSDP_NO_NODE && makes_gradient(&list->nodes[before], false);
  return found ? before : FSDP_NO_NODE;
}

// Moves the gradients of weights and biases of `product`'s layer behind `collective`, in their order.
static void move_gradients(fsdp_nodes *list, int product, int collective) {
  list->cursor = list->nodes[collective].next;
  for (int n = fsdp_nodes_origin_begin(list, product), next; n != product; n = next) {
    next = list->nodes[n].next;
    if (!makes_gradient(&list->nodes[n], true)) continue;
    const fsdp_list_node moved = list->nodes[n]; // the array may move
    fsdp_nodes_insert(list, &moved);
    fsdp_nodes_remove(list, n);
  }
  list->cursor = FSDP_NO_NODE;
}

void pass_overlap(step_builder *s) {
  fsdp_nodes *list = &s->nodes;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    int product = sent_product(list, n);
    if (product != FSDP_NO_NODE) move_gradients(list, product, n);
  }
}
