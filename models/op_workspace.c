#include "models/op.h"

#include "runtime/base/size.h"

// On the CPU tiles live in the threads' own scratch; only what a whole op shares is planned.
static int64_t cpu_bytes(fsdp_op_kind kind, const fsdp_op_attrs *attrs) {
  switch (kind) {
  case FSDP_OP_ATTENTION_BACKWARD:
    return 4 * attrs->batch * attrs->heads * attrs->seq;
  case FSDP_OP_LINEAR_CROSS_ENTROPY:
  case FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD:
    return 4 * attrs->chunk_rows * attrs->vocabulary;
  default:
    return 0;
  }
}

// On CUDA, blocks leave partial sums behind that a second kernel adds in a fixed order.
static int64_t cuda_bytes(fsdp_op_kind kind, const fsdp_op_attrs *attrs, int64_t flat_elems) {
  int64_t rows = attrs->batch * attrs->seq;
  switch (kind) {
  case FSDP_OP_ATTENTION_BACKWARD:
    return 4 * attrs->batch * attrs->heads * attrs->seq;
  case FSDP_OP_LINEAR_CROSS_ENTROPY:
  case FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD:
    return 4 * (attrs->chunk_rows * attrs->vocabulary + rows);
  case FSDP_OP_EMBEDDING_BACKWARD:
    return 4 * (attrs->vocabulary + 1 + rows);
  case FSDP_OP_RMSNORM_BACKWARD:
    return 4 * attrs->channels * fsdp_min_i64(rows, 512);
  case FSDP_OP_SUM_SQUARES:
    return 8 * fsdp_max_i64(1, fsdp_min_i64(1024, (flat_elems + 8191) / 8192));
  default:
    return 0;
  }
}

int64_t fsdp_op_workspace_bytes(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                                int64_t flat_elems) {
  return device == FSDP_OP_CUDA ? cuda_bytes(kind, attrs, flat_elems) : cpu_bytes(kind, attrs);
}
