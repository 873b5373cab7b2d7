#include "models/graph/op.h"

#include "runtime/base/check.h"

static const char *const names[FSDP_OP_KIND_COUNT] = {
    [FSDP_OP_EMBEDDING] = "embedding",
    [FSDP_OP_RMSNORM] = "rmsnorm",
    [FSDP_OP_ADD_RMSNORM] = "add_rmsnorm",
    [FSDP_OP_LINEAR] = "linear",
    [FSDP_OP_ROPE] = "rope",
    [FSDP_OP_ATTENTION] = "attention",
    [FSDP_OP_SWIGLU] = "swiglu",
    [FSDP_OP_LINEAR_CROSS_ENTROPY] = "linear_cross_entropy",
    [FSDP_OP_EMBEDDING_BACKWARD] = "embedding_backward",
    [FSDP_OP_RMSNORM_BACKWARD] = "rmsnorm_backward",
    [FSDP_OP_LINEAR_BACKWARD_INPUT] = "linear_backward_input",
    [FSDP_OP_LINEAR_BACKWARD_WEIGHT] = "linear_backward_weight",
    [FSDP_OP_ROPE_BACKWARD] = "rope_backward",
    [FSDP_OP_ATTENTION_BACKWARD] = "attention_backward",
    [FSDP_OP_SWIGLU_BACKWARD] = "swiglu_backward",
    [FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD] = "linear_cross_entropy_backward",
    [FSDP_OP_CAST] = "cast",
    [FSDP_OP_ADD] = "add",
    [FSDP_OP_ZERO] = "zero",
    [FSDP_OP_SUM_SQUARES] = "sum_squares",
    [FSDP_OP_SUM] = "sum",
    [FSDP_OP_CLIP_FACTOR] = "clip_factor",
    [FSDP_OP_ADAMW] = "adamw",
    [FSDP_OP_CHECKSUM] = "checksum",
    [FSDP_OP_POISON] = "poison",
};

const char *fsdp_op_name(fsdp_op_kind kind) {
  FSDP_CHECK((unsigned)kind < FSDP_OP_KIND_COUNT && names[kind], "op kind %d has no name", (int)kind);
  return names[kind];
}

bool fsdp_op_has_products(fsdp_op_kind kind) {
  return kind == FSDP_OP_LINEAR || kind == FSDP_OP_LINEAR_BACKWARD_INPUT ||
         kind == FSDP_OP_LINEAR_BACKWARD_WEIGHT || kind == FSDP_OP_LINEAR_CROSS_ENTROPY ||
         kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD;
}

double fsdp_op_flops(fsdp_op_kind kind, const fsdp_op_attrs *attrs) {
  double T = (double)attrs->seq, N = (double)attrs->batch * T;
  double linear = 2.0 * N * (double)attrs->in_features * (double)attrs->out_features;
  double head = 2.0 * N * (double)attrs->channels * (double)attrs->vocabulary;
  // One of attention's products over the T (T + 1) / 2 pairs that the causal mask leaves.
  double pairs = N * (T + 1.0) * (double)(attrs->heads * attrs->head_dim);
  switch (kind) {
  case FSDP_OP_LINEAR:
  case FSDP_OP_LINEAR_BACKWARD_INPUT:
  case FSDP_OP_LINEAR_BACKWARD_WEIGHT:
    return linear;
  case FSDP_OP_ATTENTION: // q k^T and p v
    return 2.0 * pairs;
  case FSDP_OP_ATTENTION_BACKWARD: // the scores again, d_p, d_q, d_k and d_v
    return 5.0 * pairs;
  case FSDP_OP_LINEAR_CROSS_ENTROPY:
    return head;
  case FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD: // logits, d_x and d_weight
    return 3.0 * head;
  default:
    return 0.0;
  }
}
