#include "models/graph/op.h"

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

// About 64 MiB of fp32 logits, at least 64 rows, and at least a sixteenth of all (every chunk reads and
// writes the head's whole weight gradient: 126 of them would take 8% of an 8B model's step from a GPU's
// memory), 1024 at most.
//
// A bf16 gradient is rounded after every chunk, so there a quarter of all rows, in whole tiles of a product,
// within 2 GiB of logits: as many bytes as an fp32 copy of an 8B model's gradient would take, with a fourth
// of its traffic. Four roundings are 1.6 times as far off as one, sixteen 2.9 times.
int64_t fsdp_op_chunk_rows(int64_t rows, int64_t vocabulary, fsdp_dtype gradient) {
  const int64_t tile = 128, logits_max = ((int64_t)2 << 30) / 4;
  int64_t chunk = fsdp_max_i64(64, ((int64_t)16 << 20) / vocabulary);
  chunk = fsdp_min_i64(fsdp_max_i64(chunk, rows / 16), 1024);
  if (gradient != FSDP_F32) {
    int64_t quarter = fsdp_round_up((rows + 3) / 4, tile);
    chunk = fsdp_max_i64(chunk, fsdp_min_i64(quarter, logits_max / vocabulary / tile * tile));
  }
  return fsdp_min_i64(rows, chunk);
}

int64_t fsdp_op_workspace_bytes(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                                int64_t flat_elems) {
  return device == FSDP_OP_CUDA ? cuda_bytes(kind, attrs, flat_elems) : cpu_bytes(kind, attrs);
}
