// Linear layers: y = x * weight^T and its two gradients, a gemm each.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

double fsdp_op_linear_flops(const fsdp_op_attrs *attrs) {
  double N = (double)attrs->batch * (double)attrs->seq;
  return 2.0 * N * (double)attrs->in_features * (double)attrs->out_features;
}

void fsdp_op_linear_emit(fsdp_graph *graph, const fsdp_node *f) {
  int x = f->operands[0].value, d_y = fsdp_backward_gradient(graph, f->operands[1].value);
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_LINEAR_BACKWARD_INPUT, f);
  n->weight_count = f->weight_count;
  memcpy(n->weights, f->weights, sizeof n->weights);
  fsdp_node_operand_add(n, d_y, FSDP_READ);
  fsdp_backward_output(graph, n, x);

  n = fsdp_backward_node(graph, FSDP_OP_LINEAR_BACKWARD_WEIGHT, f);
  fsdp_node_operand_add(n, d_y, FSDP_READ);
  fsdp_node_operand_add(n, x, FSDP_READ);
  for (int i = 0; i < f->weight_count; i++) {
    fsdp_access access;
    n->weights[n->weight_count++] = fsdp_backward_gradient_made(graph, f->weights[i], &access);
    FSDP_CHECK(access == FSDP_WRITE, "a linear weight with two uses needs a rule of its own");
  }
}

void fsdp_op_linear_describe(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands, int operand_count,
                             char *out, size_t out_bytes) {
  const fsdp_op_extent *first = &operands[0], *last = &operands[operand_count - 1];
  snprintf(out, out_bytes, " %lld -> %lld%s%s", (long long)attrs->in_features, (long long)attrs->out_features,
           last->dtype == FSDP_F32 && first->dtype != FSDP_F32 ? " to fp32" : "",
           last->access == FSDP_UPDATE ? ", added" : "");
}
