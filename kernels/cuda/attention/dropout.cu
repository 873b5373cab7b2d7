// Dropout: x / (1 - rate) where the row's draw keeps the column, else 0; the gradient likewise. A thread has
// the columns that one draw decides (runtime/base/random.h).
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"
#include "runtime/base/random_math.h"

namespace {

constexpr int threads_count = 256;

template <class T> struct dropping {
  const T *x;
  T *y;                 // forward: x
  const int32_t *draws; // of the op's first row
  uint64_t op;
  uint32_t limit;
  float scale;
  int64_t rows;
  int columns, first, groups; // of a row: column 0 of the whole's `first`; draws that its columns touch
};

template <class T> __global__ void __launch_bounds__(threads_count) drop(dropping<T> p) {
  const int64_t at = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  if (at >= p.rows * p.groups) return;
  const int64_t row = at / p.groups;
  const int group = p.first / FSDP_DROPOUT_COLUMNS + int(at % p.groups);
  const int32_t first = global_load(p.draws + FSDP_DROPOUT_WORDS * row);
  const int32_t second = global_load(p.draws + FSDP_DROPOUT_WORDS * row + 1);
  uint32_t words[FSDP_DROPOUT_COLUMNS];
  fsdp_dropout_words(fsdp_dropout_key(p.op, first, second), 0, group, words);
#pragma unroll
  for (int i = 0; i < FSDP_DROPOUT_COLUMNS; i++) {
    const int column = group * FSDP_DROPOUT_COLUMNS + i - p.first;
    if (column < 0 || column >= p.columns) continue;
    const int64_t element = row * p.columns + column;
    float x[1];
    load_floats<1>(p.x + element, x);
    if (first != 0) x[0] = words[i] < p.limit ? 0.0f : x[0] * p.scale;
    store_floats<1>(p.y + element, x);
  }
}

void drop_rows(const fsdp_kernel_call *call, const fsdp_view *x, const fsdp_view *y) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t first = attrs->first_index, end = first + attrs->channels;
  FSDP_CHECK(x->dtype == y->dtype, "%s of %s into %s", fsdp_op_name(call->kind), fsdp_dtype_name(x->dtype),
             fsdp_dtype_name(y->dtype));
  FSDP_CHECK(attrs->dropout >= 0 && attrs->dropout < 1 && first >= 0 && end <= INT32_MAX,
             "%s at a rate of %g, columns %lld to %lld", fsdp_op_name(call->kind), double(attrs->dropout),
             (long long)first, (long long)end);
  with_type(x->dtype, [&](auto number) {
    using T = decltype(number);
    dropping<T> p = {};
    p.x = data_of<T>(x), p.y = data_of<T>(y);
    p.draws = fsdp_kernel_given(call, FSDP_GIVEN_BY_DRAWS) + FSDP_DROPOUT_WORDS * attrs->first_row;
    p.op = attrs->drop_key;
    p.limit = fsdp_dropout_limit(attrs->dropout), p.scale = fsdp_dropout_scale(attrs->dropout);
    p.rows = attrs->batch * attrs->seq;
    p.columns = int(attrs->channels), p.first = int(first);
    p.groups = int(blocks_of(end, FSDP_DROPOUT_COLUMNS) - first / FSDP_DROPOUT_COLUMNS);
    launch({blocks_of(p.rows * p.groups, threads_count), threads_count, stream_of(call)}, drop<T>, p);
  });
}

} // namespace

void cuda_dropout(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  drop_rows(call, &o[0], &o[0]);
}

void cuda_dropout_backward(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  drop_rows(call, &o[0], &o[1]);
}
