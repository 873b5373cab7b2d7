#include "runtime/comm/comm_sum.h"

#include "runtime/base/check.h"
#include "runtime/base/pool.h"

struct fsdp_comm_sum {
  fsdp_pool *pool; // of one thread: a collective runs on its stream's worker
  float sums[FSDP_COMM_SUM_TILE_ELEMS];
};

fsdp_comm_sum *fsdp_comm_sum_create(void) {
  fsdp_comm_sum *sum = fsdp_alloc(sizeof *sum);
  sum->pool = fsdp_pool_create(1);
  return sum;
}

void fsdp_comm_sum_destroy(fsdp_comm_sum *sum) {
  if (!sum) return;
  fsdp_pool_destroy(sum->pool);
  free(sum);
}

// destination = source, or destination += source.
static void apply(fsdp_comm_sum *sum, fsdp_op_kind kind, fsdp_view source, fsdp_view destination) {
  static const fsdp_op_attrs attrs;
  source.access = FSDP_READ;
  destination.access = kind == FSDP_OP_ADD ? FSDP_UPDATE : FSDP_WRITE;
  const fsdp_view operands[2] = {source, destination};
  fsdp_kernel_call call = {
      .kind = kind, .attrs = &attrs, .operands = operands, .operand_count = 2, .pool = sum->pool};
  fsdp_cpu_kernels()->kernels[kind](&call);
}

void fsdp_comm_sum_add(fsdp_comm_sum *sum, bool first, const void *values, int64_t elems, fsdp_dtype dtype) {
  FSDP_CHECK(elems <= FSDP_COMM_SUM_TILE_ELEMS, "%lld elements in a tile", (long long)elems);
  // Views have no const data; a kernel only reads an operand of access READ.
  fsdp_view source = {.data = (void *)(uintptr_t)values, .numel = elems, .dtype = dtype};
  fsdp_view sums = {.data = sum->sums, .numel = elems, .dtype = FSDP_F32};
  apply(sum, first ? FSDP_OP_CAST : FSDP_OP_ADD, source, sums);
}

void fsdp_comm_sum_store(fsdp_comm_sum *sum, void *output, int64_t elems, fsdp_dtype dtype) {
  fsdp_view sums = {.data = sum->sums, .numel = elems, .dtype = FSDP_F32};
  apply(sum, FSDP_OP_CAST, sums, (fsdp_view){.data = output, .numel = elems, .dtype = dtype});
}
