// Columns of wide rows, copied to and from parts of their own: N rows of `stride` columns, and for each of
// `ranks` parts N rows of `width` columns. Part k has columns k * width on, counted from `first`. A block has
// some rows of the parts, a power of two of threads each; a thread has one vector.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;

struct columns {
  int64_t N, ranks, width, stride;
  int64_t first, real; // of a row, and columns from there on: further ones of the parts are padding
  int row_bits;        // threads of a row of a part, as a power of two
  int blocks_per_row;
};

columns columns_of(const fsdp_kernel_call *call, int64_t ranks, int64_t first_index) {
  const fsdp_op_attrs *attrs = call->attrs;
  columns k = {};
  k.N = attrs->batch * attrs->seq;
  k.ranks = ranks;
  k.width = attrs->in_features;
  k.stride = attrs->out_stride;
  k.first = attrs->out_offset + first_index;
  k.real = attrs->out_features - first_index;
  FSDP_CHECK(first_index >= 0, "%s: columns from %lld on", fsdp_op_name(call->kind), (long long)first_index);
  FSDP_CHECK(call->kind == FSDP_OP_TAKE_COLUMNS || ranks * k.width >= k.real,
             "%s: %lld parts of %lld columns do not hold %lld", fsdp_op_name(call->kind), (long long)ranks,
             (long long)k.width, (long long)k.real);
  FSDP_CHECK(ranks * k.N <= INT32_MAX, "%s: %lld parts of %lld rows", fsdp_op_name(call->kind),
             (long long)ranks, (long long)k.N);
  return k;
}

// Where a thread's vector lies, if it has one.
struct place {
  int64_t part, row; // elements of the parts and of the rows
  bool exists, is_real;
};

template <int WIDTH> __device__ __forceinline__ place place_of(const columns &k) {
  const unsigned block = blockIdx.x / unsigned(k.blocks_per_row),
                 within = blockIdx.x % unsigned(k.blocks_per_row);
  const unsigned index = block * (unsigned(threads_count) >> k.row_bits) + (threadIdx.x >> k.row_bits);
  const unsigned rank = index / unsigned(k.N), n = index % unsigned(k.N);
  const int64_t vector = (int64_t(within) << k.row_bits) + int64_t(threadIdx.x & ((1u << k.row_bits) - 1));
  const int64_t c = vector * WIDTH, column = rank * k.width + c;
  return {index * k.width + c, n * k.stride + k.first + column, rank < k.ranks && c < k.width,
          column < k.real};
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count) copy_out(const T *rows, T *parts, columns k) {
  const place at = place_of<WIDTH>(k);
  if (!at.exists) return;
  float x[WIDTH] = {};
  if (at.is_real) load_floats<WIDTH>(rows + at.row, x);
  store_floats<WIDTH>(parts + at.part, x);
}

template <class T, int WIDTH, bool ADDS>
__global__ void __launch_bounds__(threads_count) copy_in(const T *parts, T *rows, columns k) {
  const place at = place_of<WIDTH>(k);
  if (!at.exists || !at.is_real) return;
  float x[WIDTH];
  load_floats<WIDTH>(parts + at.part, x);
  if (ADDS) add_floats(rows + at.row, x);
  store_floats<WIDTH>(rows + at.row, x);
}

// Whether every part of a row starts on a whole vector and none holds columns and padding.
bool is_wide(const fsdp_kernel_call *call, const columns &k, int width) {
  return k.width % width == 0 && k.stride % width == 0 && k.first % width == 0 && k.real % width == 0 &&
         is_aligned(call->operands[0].data) && is_aligned(call->operands[1].data);
}

template <class T>
void launch_width(const fsdp_kernel_call *call, columns k, int width,
                  void (*kernel)(const T *, T *, columns)) {
  const int64_t vectors = k.width / width;
  while (1 << k.row_bits < threads_count && 1 << k.row_bits < vectors) k.row_bits++;
  k.blocks_per_row = int(blocks_of(vectors, int64_t(1) << k.row_bits));
  launch({blocks_of(k.ranks * k.N, threads_count >> k.row_bits) * k.blocks_per_row, threads_count,
          stream_of(call)},
         kernel, numbers_of<T>(call, 0), numbers_of<T>(call, 1), k);
}

// The hull of the columns that are not padding, as operand `index`.
void report_rows(const fsdp_kernel_call *call, const columns &k, int index) {
  const int64_t count = fsdp_min_i64(k.real, k.ranks * k.width);
  if (count > 0)
    fsdp_kernel_report(call, index, k.first, (k.N - 1) * k.stride + count, call->operands[index].access);
}

void copy_parts_out(const fsdp_kernel_call *call, const columns &k) {
  const fsdp_view *o = open_operands(call, 1);
  report_rows(call, k, 0);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = is_wide(call, k, width);
    launch_width<T>(call, k, wide ? width : 1, wide ? copy_out<T, width> : copy_out<T, 1>);
  });
}

void copy_parts_in(const fsdp_kernel_call *call, const columns &k) {
  const fsdp_view *o = open_operands(call, 3);
  const int64_t last = (k.real - 1) / k.width; // the last part that is not padding alone
  fsdp_kernel_report(call, 0, 0, ((last + 1) * k.N - 1) * k.width + k.real - last * k.width, FSDP_READ);
  report_rows(call, k, 1);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = is_wide(call, k, width);
    if (updates(&o[1])) {
      launch_width<T>(call, k, wide ? width : 1, wide ? copy_in<T, width, true> : copy_in<T, 1, true>);
    } else {
      launch_width<T>(call, k, wide ? width : 1, wide ? copy_in<T, width, false> : copy_in<T, 1, false>);
    }
  });
}

template <class T>
__global__ void __launch_bounds__(threads_count) zero_padding(T *y, int64_t N, int64_t width, int64_t real) {
  const int64_t index = int64_t(blockIdx.x) * threads_count + threadIdx.x, padding = width - real;
  const float zero[1] = {};
  if (index < N * padding) store_floats<1>(y + index / padding * width + real + index % padding, zero);
}

} // namespace

void cuda_take_columns(const fsdp_kernel_call *call) {
  copy_parts_out(call, columns_of(call, 1, call->attrs->first_index));
}

void cuda_split_columns(const fsdp_kernel_call *call) {
  copy_parts_out(call, columns_of(call, call->attrs->ranks, 0));
}

void cuda_put_columns(const fsdp_kernel_call *call) {
  FSDP_CHECK(call->attrs->in_features == call->attrs->out_features, "put_columns: %lld columns of %lld",
             (long long)call->attrs->in_features, (long long)call->attrs->out_features);
  copy_parts_in(call, columns_of(call, 1, 0));
}

void cuda_join_columns(const fsdp_kernel_call *call) {
  copy_parts_in(call, columns_of(call, call->attrs->ranks, 0));
}

void cuda_mask_columns(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, width = attrs->in_features;
  const int64_t real = fsdp_min_i64(width, fsdp_max_i64(attrs->extent - attrs->first_index, 0));
  const fsdp_view *o = open_operands(call, 0);
  if (real == width || N == 0) return;
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    launch({blocks_of(N * (width - real), threads_count), threads_count, stream_of(call)}, zero_padding<T>,
           numbers_of<T>(call, 0), N, width, real);
  });
}
