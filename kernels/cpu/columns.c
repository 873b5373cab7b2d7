// Columns of wide rows, copied to and from parts of their own: N rows of `stride` columns, and for each of
// `ranks` parts N rows of `width` columns. Part k has columns k * width on, counted from `first`.
#include "kernels/cpu/operand.h"

enum { CHUNK = 1024 }; // columns that are added at a time

typedef struct columns {
  const fsdp_view *rows, *parts;
  int64_t N, ranks, width, stride;
  int64_t first, real; // of a row, and columns from there on: further ones of the parts are padding
} columns;

static columns columns_of(const fsdp_kernel_call *call, int64_t ranks, int64_t first_index) {
  const fsdp_op_attrs *attrs = call->attrs;
  columns k = {.N = attrs->batch * attrs->seq,
               .ranks = ranks,
               .width = attrs->in_features,
               .stride = attrs->out_stride,
               .first = attrs->out_offset + first_index,
               .real = attrs->out_features - first_index};
  FSDP_CHECK(first_index >= 0, "%s: columns from %lld on", fsdp_op_name(call->kind), (long long)first_index);
  FSDP_CHECK(call->kind == FSDP_OP_TAKE_COLUMNS || ranks * k.width >= k.real,
             "%s: %lld parts of %lld columns do not hold %lld", fsdp_op_name(call->kind), (long long)ranks,
             (long long)k.width, (long long)k.real);
  FSDP_CHECK(call->operand_count == 2 && call->operands[0].dtype == call->operands[1].dtype,
             "%s: columns of two dtypes", fsdp_op_name(call->kind));
  return k;
}

// Columns of part `rank` that are not padding.
static int64_t real_columns(const columns *k, int64_t rank) {
  return fsdp_min_i64(k->width, fsdp_max_i64(k->real - rank * k->width, 0));
}

// The hull of these columns of the rows, as operand `index`.
static void report_rows(const fsdp_kernel_call *call, const columns *k, int index) {
  int64_t count = fsdp_min_i64(k->real, k->ranks * k->width);
  if (count > 0)
    fsdp_kernel_report(call, index, k->first, (k->N - 1) * k->stride + count, call->operands[index].access);
}

static void copy_out(void *argument, int64_t index, void *scratch) {
  const columns *k = argument;
  int64_t rank = index / k->N, n = index % k->N, count = real_columns(k, rank);
  size_t element_bytes = (size_t)fsdp_dtype_bytes(k->rows->dtype), bytes = (size_t)count * element_bytes;
  (void)scratch;
  char *part = element(k->parts, index * k->width);
  if (count > 0) memcpy(part, element(k->rows, n * k->stride + k->first + rank * k->width), bytes);
  memset(part + bytes, 0, (size_t)k->width * element_bytes - bytes);
}

static void copy_parts_out(const fsdp_kernel_call *call, columns k) {
  const fsdp_view *o = open_operands(call, PART(0));
  k.rows = &o[0], k.parts = &o[1];
  report_rows(call, &k, 0);
  fsdp_pool_run(call->pool, k.ranks * k.N, copy_out, &k);
}

void FSDP_CPU(take_columns)(const fsdp_kernel_call *call) {
  copy_parts_out(call, columns_of(call, 1, call->attrs->first_index));
}

void FSDP_CPU(split_columns)(const fsdp_kernel_call *call) {
  copy_parts_out(call, columns_of(call, call->attrs->ranks, 0));
}

static void copy_in(void *argument, int64_t index, void *scratch) {
  const columns *k = argument;
  float *buffer = scratch;
  int64_t rank = index / k->N, n = index % k->N, count = real_columns(k, rank);
  int64_t to = n * k->stride + k->first + rank * k->width, from = index * k->width;
  if (!updates(k->rows)) {
    if (count > 0)
      memcpy(element(k->rows, to), element(k->parts, from),
             (size_t)(count * fsdp_dtype_bytes(k->rows->dtype)));
    return;
  }
  for (int64_t c = 0; c < count; c += CHUNK) {
    int64_t numel = fsdp_min_i64(CHUNK, count - c);
    const float *part = load(k->parts, from + c, numel, buffer);
    float *sum = result(k->rows, to + c, buffer + CHUNK);
    if (sum == buffer + CHUNK) load_into(k->rows, to + c, numel, sum);
    for (int64_t i = 0; i < numel; i++) sum[i] += part[i];
    store(k->rows, to + c, numel, sum);
  }
}

static void copy_parts_in(const fsdp_kernel_call *call, columns k) {
  const fsdp_view *o = open_operands(call, PART(0) | PART(1));
  k.parts = &o[0], k.rows = &o[1];
  int64_t last = (k.real - 1) / k.width; // the last part that is not padding alone
  fsdp_kernel_report(call, 0, 0, ((last + 1) * k.N - 1) * k.width + real_columns(&k, last), FSDP_READ);
  report_rows(call, &k, 1);
  fsdp_pool_run(call->pool, k.ranks * k.N, copy_in, &k);
}

void FSDP_CPU(put_columns)(const fsdp_kernel_call *call) {
  FSDP_CHECK(call->attrs->in_features == call->attrs->out_features, "put_columns: %lld columns of %lld",
             (long long)call->attrs->in_features, (long long)call->attrs->out_features);
  copy_parts_in(call, columns_of(call, 1, 0));
}

void FSDP_CPU(join_columns)(const fsdp_kernel_call *call) {
  copy_parts_in(call, columns_of(call, call->attrs->ranks, 0));
}

static void zero_padding(void *argument, int64_t n, void *scratch) {
  const columns *k = argument;
  (void)scratch;
  memset(element(k->rows, n * k->width + k->real), 0,
         (size_t)((k->width - k->real) * fsdp_dtype_bytes(k->rows->dtype)));
}

void FSDP_CPU(mask_columns)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t width = attrs->in_features;
  columns k = {.rows = open_operands(call, 0), .N = attrs->batch * attrs->seq, .width = width};
  k.real = fsdp_min_i64(width, fsdp_max_i64(attrs->extent - attrs->first_index, 0));
  if (k.real < width) fsdp_pool_run(call->pool, k.N, zero_padding, &k);
}
