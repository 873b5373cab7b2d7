// Sums over rows, of a parameter's gradient: blocks leave partial sums of C columns in the workspace, (P, C),
// and a second kernel adds them in the order of the blocks. P follows from the op's shape alone
// (models/graph/op_*.c), so the result does too.
#pragma once

#include "kernels/cuda/operand.cuh"

constexpr int parts_columns = 32, parts_rows = 8;

// sum[c] (+)= sum over P of parts[P][c]: a warp's lanes are neighbouring columns, warps share the parts. Each
// source has its own: linkers merge no kernels that stand in the tests' list of them.
template <class T>
static __global__ void __launch_bounds__(parts_columns *parts_rows)
    sum_parts(const float *parts, int64_t count, int64_t C, T *out, bool adds) {
  FSDP_SHARED(float, sums, parts_columns *parts_rows);
  const int lane = int(threadIdx.x) % parts_columns, row = int(threadIdx.x) / parts_columns;
  const int64_t c = int64_t(blockIdx.x) * parts_columns + lane;
  float sum = 0;
  if (c < C)
    for (int64_t part = row; part < count; part += parts_rows) sum += global_load(parts + part * C + c);
  sums[row * parts_columns + lane] = sum;
  __syncthreads();
  if (row > 0 || c >= C) return;
  for (int other = 1; other < parts_rows; other++) sum += sums[other * parts_columns + lane];
  if (adds) sum += to_float(global_load(out + c));
  global_store(out + c, from_float<T>(sum));
}

static inline void launch_sum_parts(const fsdp_kernel_call *call, const float *parts, int64_t count,
                                    const fsdp_view *out) {
  with_type(out->dtype, [&](auto number) {
    using T = decltype(number);
    launch({blocks_of(out->numel, parts_columns), parts_columns * parts_rows, stream_of(call)}, sum_parts<T>,
           parts, count, out->numel, data_of<T>(out), updates(out));
  });
}
