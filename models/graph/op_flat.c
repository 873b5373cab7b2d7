// Movement and state over flat ranges.
#include "models/graph/backward.h"
#include "models/graph/op_row.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdio.h>

static long long numel_of(const fsdp_op_extent *operand) {
  return (long long)(operand->bytes / fsdp_dtype_bytes(operand->dtype));
}

// Blocks leave partial sums in fp64, which a second kernel adds in a fixed order.
int64_t fsdp_op_sum_squares_cuda_bytes(const fsdp_op_attrs *attrs, int64_t flat_elems) {
  (void)attrs;
  return 8 * fsdp_max_i64(1, fsdp_min_i64(1024, (flat_elems + 8191) / 8192));
}

void fsdp_op_move_describe(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands, int operand_count,
                           char *out, size_t out_bytes) {
  (void)attrs;
  snprintf(out, out_bytes, " %lld %s to %s", numel_of(&operands[0]), fsdp_dtype_name(operands[0].dtype),
           fsdp_dtype_name(operands[operand_count - 1].dtype));
}

void fsdp_op_range_describe(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands, int operand_count,
                            char *out, size_t out_bytes) {
  (void)attrs, (void)operand_count;
  snprintf(out, out_bytes, " %lld %s", numel_of(&operands[0]), fsdp_dtype_name(operands[0].dtype));
}

void fsdp_op_adamw_describe(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands, int operand_count,
                            char *out, size_t out_bytes) {
  (void)attrs, (void)operand_count;
  snprintf(out, out_bytes, " %lld %s, moments %s", numel_of(&operands[0]), fsdp_dtype_name(operands[3].dtype),
           fsdp_dtype_name(operands[4].dtype));
}

// Both summands have the sum's gradient (backward.h).
void fsdp_op_add_emit(fsdp_graph *graph, const fsdp_node *f) {
  int source = f->operands[0].value, sum = f->operands[1].value;
  FSDP_CHECK(graph->values[source].gradient < 0, "'%s' has a gradient already", graph->values[source].name);
  graph->values[source].gradient = fsdp_backward_gradient(graph, sum);
}
