// Learned positions: h[b, t] += weight[first + t], a table of M rows of C channels; and the table's gradient,
// each row the sum over the B sequences in order. A thread has one vector of a row.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;
constexpr int sum_width = 8;

// Rows of C channels, cut into blocks of one vector per thread.
struct row_blocks {
  int64_t C;
  int threads, per_row;
};

row_blocks blocks_over(int64_t C, int width) {
  const int64_t vectors = blocks_of(C, width);
  const int threads = int(fsdp_min_i64(threads_count, fsdp_round_up(vectors, warp_lanes)));
  return {C, threads, int(blocks_of(vectors, threads))};
}

template <int WIDTH> __device__ __forceinline__ int64_t column_of(const row_blocks &rows) {
  return (int64_t(blockIdx.x % unsigned(rows.per_row)) * blockDim.x + threadIdx.x) * WIDTH;
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    add_row(const T *weight, T *h, int64_t first, int64_t seq, row_blocks rows) {
  const int64_t n = blockIdx.x / unsigned(rows.per_row), c = column_of<WIDTH>(rows);
  if (c >= rows.C) return;
  float x[WIDTH], position[WIDTH];
  load_floats<WIDTH>(h + n * rows.C + c, x);
  load_floats<WIDTH>(weight + (first + n % seq) * rows.C + c, position);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) x[i] += position[i];
  store_floats<WIDTH>(h + n * rows.C + c, x);
}

struct sequences {
  int64_t count, seq, first; // first: position of a sequence's first row
  int64_t first_row;         // of the table, that a block has
  bool adds;
};

template <class T, class G, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    sum_row(const T *d_h, G *d_weight, sequences s, row_blocks rows) {
  const int64_t row = s.first_row + blockIdx.x / unsigned(rows.per_row), t = row - s.first;
  const int64_t c = column_of<WIDTH>(rows);
  if (c >= rows.C) return;
  const int64_t count = t >= 0 && t < s.seq ? s.count : 0;
  float sum[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum[i] = 0;
#pragma unroll(WIDTH > 1 ? 4 : 1)
  for (int64_t b = 0; b < count; b++) {
    float x[WIDTH];
    load_floats<WIDTH>(d_h + (b * s.seq + t) * rows.C + c, x);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += x[i];
  }
  d_weight += row * rows.C + c;
  if (s.adds) {
    float old[WIDTH];
    load_floats<WIDTH>(d_weight, old);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += old[i];
  }
  store_floats<WIDTH>(d_weight, sum);
}

void check_positions(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK(attrs->first_index >= 0 && attrs->first_index + attrs->seq <= attrs->positions,
             "%s: positions %lld to %lld of a table of %lld", fsdp_op_name(call->kind),
             (long long)attrs->first_index, (long long)(attrs->first_index + attrs->seq - 1),
             (long long)attrs->positions);
}

} // namespace

void cuda_add_positions(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  check_positions(call);
  const fsdp_view *o = open_operands(call, 1), *weight = &o[0], *h = &o[1];
  fsdp_kernel_report(call, 0, attrs->first_index * C, attrs->seq * C, FSDP_READ);
  with_type(weight->dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = C % width == 0 && is_aligned(weight->data) && is_aligned(h->data);
    const row_blocks rows = blocks_over(C, wide ? width : 1);
    launch({N * rows.per_row, rows.threads, call->stream}, wide ? add_row<T, width> : add_row<T, 1>,
           data_of<T>(weight), numbers_of<T>(call, 1), attrs->first_index, attrs->seq, rows);
  });
}

void cuda_positions_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t C = attrs->channels;
  check_positions(call);
  const bool adds = call->operand_count == 2 && updates(&call->operands[1]); // to the positions' rows alone
  const fsdp_view *o = open_operands(call, adds ? 2 : 0), *d_h = &o[0], *d_weight = &o[1];
  if (adds) fsdp_kernel_report(call, 1, attrs->first_index * C, attrs->seq * C, FSDP_UPDATE);
  const sequences s = {attrs->batch, attrs->seq, attrs->first_index, adds ? attrs->first_index : 0, adds};
  with_type(d_h->dtype, [&](auto number) {
    using T = decltype(number);
    with_type(d_weight->dtype, [&](auto gradient) {
      using G = decltype(gradient);
      const bool wide = C % sum_width == 0 && is_aligned(d_h->data) && is_aligned(d_weight->data);
      const row_blocks rows = blocks_over(C, wide ? sum_width : 1);
      launch({(adds ? attrs->seq : attrs->positions) * rows.per_row, rows.threads, call->stream},
             wide ? sum_row<T, G, sum_width> : sum_row<T, G, 1>, data_of<T>(d_h), data_of<G>(d_weight), s,
             rows);
    });
  });
}
