// Linear layers: y = x * weight^T, with or without a bias, a bias added by itself, and the gradients: a gemm
// each, and for the bias a sum over rows.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <string.h>

void fsdp_node_take_biases(fsdp_node *product, fsdp_node *adds) {
  FSDP_CHECK(product->kind == FSDP_OP_LINEAR_BIAS, "%s has no bias", fsdp_op_name(product->kind));
  *adds = *product;
  adds->kind = FSDP_OP_ADD_BIAS;
  adds->weight_count = adds->operand_count = 0;
  fsdp_node_operand_add(adds, product->operands[product->operand_count - 1].value, FSDP_UPDATE);
  product->kind = FSDP_OP_LINEAR;
  product->bias_count = 0;
}

// The gradients of `count` parameters, which this node overwrites, into `gradients`.
static void make_gradients(fsdp_graph *graph, int count, const int *params, int *gradients) {
  for (int i = 0; i < count; i++) {
    fsdp_access access;
    gradients[i] = fsdp_backward_gradient_made(graph, params[i], &access);
    FSDP_CHECK(access == FSDP_WRITE, "a linear layer's parameter with two uses needs a rule of its own");
  }
}

static void emit_weight(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_LINEAR_BACKWARD_WEIGHT, f);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, f->operands[1].value), FSDP_READ);
  fsdp_node_operand_add(n, f->operands[0].value, FSDP_READ);
  n->weight_count = f->weight_count;
  make_gradients(graph, f->weight_count, f->weights, n->weights);
}

// Of the parameters that are added to columns of the last operand, y, side by side. Of a bias that is added
// by itself, y's gradient is that of the product before, which therefore stays as it is.
void fsdp_op_bias_emit(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_BIAS_BACKWARD, f);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, f->operands[f->operand_count - 1].value), FSDP_READ);
  n->bias_count = f->bias_count;
  make_gradients(graph, f->bias_count, f->biases, n->biases);
}

static void emit_input(fsdp_graph *graph, const fsdp_node *f) {
  fsdp_node *n = fsdp_backward_node(graph, FSDP_OP_LINEAR_BACKWARD_INPUT, f);
  n->weight_count = f->weight_count;
  memcpy(n->weights, f->weights, sizeof n->weights);
  fsdp_node_operand_add(n, fsdp_backward_gradient(graph, f->operands[1].value), FSDP_READ);
  fsdp_backward_output(graph, n, f->operands[0].value);
}

// The input's gradient comes last: the input, which the weight's needs, makes room for it.
void fsdp_op_linear_emit(fsdp_graph *graph, const fsdp_node *f) {
  emit_weight(graph, f);
  if (f->bias_count) fsdp_op_bias_emit(graph, f);
  emit_input(graph, f);
}

// Parts of d_bias, each the sum of some rows: enough for a GPU's blocks, which take 256 columns each.
int64_t fsdp_op_bias_backward_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)flat_elems;
  int64_t rows = attrs->batch * attrs->seq, blocks = (attrs->out_features + 255) / 256;
  int64_t parts = fsdp_min_i64((rows + 63) / 64, fsdp_max_i64(1024 / blocks, 1));
  return 4 * attrs->out_features * parts;
}
