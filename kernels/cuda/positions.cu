// Learned positions: each row of h += its position's row of the weight, a table of M rows of C channels; and
// the table's gradient, each row the sum over the B sequences in order. A position counts from the start of
// its document, of which a sequence has several. Positions of M or more are padding: they are left out. A
// thread has one vector of a row.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"
#include "kernels/cuda/rows.cuh"

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
    add_row(const T *weight, T *h, row_map map, document_starts documents, int M, row_blocks rows) {
  const int n = int(blockIdx.x / unsigned(rows.per_row));
  const int64_t c = column_of<WIDTH>(rows);
  const int position = position_in_document(map, documents, place_of(map, n));
  if (c >= rows.C || position >= M) return;
  float x[WIDTH], added[WIDTH];
  load_floats<WIDTH>(h + n * rows.C + c, x);
  load_floats<WIDTH>(weight + position * rows.C + c, added);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) x[i] += added[i];
  store_floats<WIDTH>(h + n * rows.C + c, x);
}

// The table's rows that a launch has: those of two ranges of positions, or all (one range).
struct table_rows {
  int first, count, second;
  bool adds;
};

template <class T, class G, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    sum_row(const T *d_h, G *d_weight, row_map map, table_rows table, row_blocks rows) {
  const int at = int(blockIdx.x / unsigned(rows.per_row));
  const int position = at < table.count ? table.first + at : table.second + at - table.count;
  const int64_t c = column_of<WIDTH>(rows);
  if (c >= rows.C) return;
  const int index = index_of(map, position), count = index >= 0 ? map.batch.by : 0;
  float sum[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum[i] = 0;
#pragma unroll(WIDTH > 1 ? 4 : 1)
  for (int b = 0; b < count; b++) {
    float x[WIDTH];
    load_floats<WIDTH>(d_h + row_of(map, b, index) * rows.C + c, x);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += x[i];
  }
  d_weight += position * rows.C + c;
  if (table.adds) {
    float old[WIDTH];
    load_floats<WIDTH>(d_weight, old);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += old[i];
  }
  store_floats<WIDTH>(d_weight, sum);
}

// As sum_row for all the table's rows: each is added to by a row of every document that is long enough. A
// warp looks for them among 32 rows at a time.
template <class T, class G, int WIDTH>
__global__ void __launch_bounds__(threads_count)
    sum_row_of_documents(const T *d_h, G *d_weight, row_map map, document_starts documents, bool adds,
                         row_blocks rows) {
  const int position = int(blockIdx.x / unsigned(rows.per_row)), lane = int(threadIdx.x) % warp_lanes;
  const int64_t c = column_of<WIDTH>(rows);
  float sum[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) sum[i] = 0;
  for (int b = 0; b < map.batch.by; b++)
    for (int first = 0; first < map.seq; first += warp_lanes) {
      const int index = first + lane;
      uint32_t found = __ballot_sync(
          whole_warp, index < map.seq && position_in_document(map, documents, {b, index}) == position);
      for (; found != 0; found &= found - 1) {
        if (c >= rows.C) continue;
        float x[WIDTH];
        load_floats<WIDTH>(d_h + row_of(map, b, first + __ffs(int(found)) - 1) * rows.C + c, x);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sum[i] += x[i];
      }
    }
  if (c >= rows.C) return;
  d_weight += position * rows.C + c;
  if (adds) {
    float old[WIDTH];
    load_floats<WIDTH>(d_weight, old);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += old[i];
  }
  store_floats<WIDTH>(d_weight, sum);
}

// The positions' rows of the table, of both chunks.
struct used_rows {
  fsdp_row_range chunks[2];
};
used_rows used_rows_of(const fsdp_kernel_call *call, const fsdp_row_map &map) {
  const int64_t M = call->attrs->positions;
  if (call->attrs->documents) return {{{0, M}, {}}}; // any of them
  return {{fsdp_row_positions(&map, 0, M), fsdp_row_positions(&map, 1, M)}};
}
void report_rows(const fsdp_kernel_call *call, int operand, const used_rows &used, fsdp_access access) {
  const int64_t C = call->attrs->channels;
  for (const fsdp_row_range &range : used.chunks)
    fsdp_kernel_report(call, operand, range.first * C, range.count * C, access);
}

} // namespace

void cuda_add_positions(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  const fsdp_row_map map = fsdp_row_map_of(call);
  const fsdp_view *o = open_operands(call, 1), *weight = &o[0], *h = &o[1];
  report_rows(call, 0, used_rows_of(call, map), FSDP_READ);
  with_type(weight->dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    const bool wide = takes_vectors<T>(C, data_of<T>(weight), data_of<T>(h));
    const row_blocks rows = blocks_over(C, wide ? width : 1);
    launch({N * rows.per_row, rows.threads, stream_of(call)}, wide ? add_row<T, width> : add_row<T, 1>,
           data_of<T>(weight), numbers_of<T>(call, 1), row_map_of(map), document_starts_of(call),
           int(attrs->positions), rows);
  });
}

void cuda_positions_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t C = attrs->channels;
  const fsdp_row_map map = fsdp_row_map_of(call);
  const bool adds = call->operand_count >= 2 && updates(&call->operands[1]); // to the positions' rows alone
  const fsdp_view *o = open_operands(call, adds ? 2 : 0), *d_h = &o[0], *d_weight = &o[1];
  used_rows used = {{{0, attrs->positions}, {}}};
  if (adds) {
    used = used_rows_of(call, map);
    report_rows(call, 1, used, FSDP_UPDATE);
  }
  const fsdp_row_range *chunks = used.chunks;
  const table_rows table = {int(chunks[0].first), int(chunks[0].count), int(chunks[1].first), adds};
  const int64_t count = chunks[0].count + chunks[1].count;
  with_type(d_h->dtype, [&](auto number) {
    using T = decltype(number);
    with_type(d_weight->dtype, [&](auto gradient) {
      using G = decltype(gradient);
      const bool wide = C % sum_width == 0 && is_aligned(d_h->data) && is_aligned(d_weight->data);
      const row_blocks rows = blocks_over(C, wide ? sum_width : 1);
      if (attrs->documents) {
        launch({attrs->positions * rows.per_row, rows.threads, stream_of(call)},
               wide ? sum_row_of_documents<T, G, sum_width> : sum_row_of_documents<T, G, 1>, data_of<T>(d_h),
               data_of<G>(d_weight), row_map_of(map), document_starts_of(call), adds, rows);
        return;
      }
      launch({count * rows.per_row, rows.threads, stream_of(call)},
             wide ? sum_row<T, G, sum_width> : sum_row<T, G, 1>, data_of<T>(d_h), data_of<G>(d_weight),
             row_map_of(map), table, rows);
    });
  });
}
