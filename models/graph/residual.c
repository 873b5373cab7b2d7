// The residual stream's sums, h = x + delta, made by the gemm that makes delta:
//
//   delta = o * weight^T                          h = x + o * weight^T
//   h, y, rstd = x + delta, and its norm    ──►   y, rstd = the norm of h
//
// So the norm reads h alone and writes y alone, in place of x and delta, h and y, and the gemm reads x: of 5
// passes over rows of the hidden size 4 are left, and 2 of them under the gemm's arithmetic. h is rounded
// once from fp32. What the backward needs is the same, and so the graph's backward is.
#include "models/graph/graph.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>

// The operands of an op that sums and normalises.
enum { RESIDUAL, DELTA };

// The operand of the norm's node that is the sum, if its row says that a norm remains once that is there; -1:
// the node makes no sum.
static int sum_of(const fsdp_node *norm, fsdp_op_remainder *rest) {
  for (int o = DELTA + 1; o < norm->operand_count; o++) {
    bool kept[FSDP_OP_MAX_OPERANDS] = {false};
    kept[o] = norm->operands[o].access == FSDP_WRITE;
    if (kept[o] && fsdp_op_remainder_of(norm->kind, kept, rest)) return o;
  }
  return -1;
}

static bool is_product(const fsdp_node *node) {
  return (node->kind == FSDP_OP_LINEAR || node->kind == FSDP_OP_LINEAR_BIAS) && node->weight_count == 1;
}

// Operands by value.
static int *count_uses(const fsdp_graph *graph) {
  int *uses = fsdp_alloc_zeroed((size_t)graph->value_count, sizeof *uses);
  for (int n = 0; n < graph->forward_count; n++)
    for (int o = 0; o < graph->forward[n].operand_count; o++) uses[graph->forward[n].operands[o].value]++;
  for (int n = 0; n < graph->backward_count; n++)
    for (int o = 0; o < graph->backward[n].operand_count; o++) uses[graph->backward[n].operands[o].value]++;
  return uses;
}

// Moves the sum from the norm into the product, whose result nothing else reads.
static void move_sum(fsdp_node *product, fsdp_node *norm, int sum, const fsdp_op_remainder *rest) {
  const fsdp_node whole = *norm;
  product->kind = product->kind == FSDP_OP_LINEAR ? FSDP_OP_LINEAR_ADD : FSDP_OP_LINEAR_BIAS_ADD;
  product->operands[1] = whole.operands[RESIDUAL];
  product->operands[2] = whole.operands[sum];
  product->operand_count = 3;
  norm->kind = rest->kind;
  norm->operand_count = rest->operand_count;
  for (int o = 0; o < rest->operand_count; o++) {
    norm->operands[o] = whole.operands[rest->operands[o]];
    if (rest->operands[o] == sum) norm->operands[o].access = FSDP_READ;
  }
}

void fsdp_graph_add_residuals(fsdp_graph *graph) {
  int *uses = count_uses(graph);
  for (int n = 0; n + 1 < graph->forward_count; n++) {
    fsdp_node *product = &graph->forward[n], *norm = product + 1;
    fsdp_op_remainder rest;
    const int sum = is_product(product) ? sum_of(norm, &rest) : -1;
    if (sum < 0) continue;
    const int delta = product->operands[1].value;
    if (norm->operands[DELTA].value == delta && uses[delta] == 2) move_sum(product, norm, sum, &rest);
  }
  free(uses);
}

bool fsdp_node_adds_residual(const fsdp_node *node) {
  return fsdp_op_residual(node->kind) >= 0;
}
