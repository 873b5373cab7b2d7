#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/size.h"

int64_t fsdp_cuda_workspace_bytes(fsdp_op_kind kind, const fsdp_op_attrs *attrs, int64_t flat_numel) {
  switch (kind) {
  case FSDP_OP_ATTENTION_BACKWARD:
    return 4 * attrs->batch * attrs->heads * attrs->seq;
  case FSDP_OP_LINEAR_CROSS_ENTROPY:
  case FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD:
    return 4 * (attrs->chunk_rows * attrs->vocabulary + attrs->batch * attrs->seq);
  case FSDP_OP_EMBEDDING_BACKWARD:
    return 4 * (attrs->vocabulary + 1 + attrs->batch * attrs->seq);
  case FSDP_OP_RMSNORM_BACKWARD:
    return 4 * attrs->channels * fsdp_min_i64(attrs->batch * attrs->seq, 512);
  case FSDP_OP_SUM_SQUARES:
    return 8 * fsdp_max_i64(1, fsdp_min_i64(1024, (flat_numel + 8191) / 8192));
  default:
    return 0;
  }
}
