// Gradients of a norm's parameters: blocks leave partial sums over their rows, (P, C), which a second kernel
// adds in the order of the blocks. P follows from the number of rows alone, so the result does too.
#pragma once

#include "kernels/cuda/operand.cuh"

constexpr int64_t norm_parts_max = 512; // as in models/graph/op_rmsnorm.c and op_layernorm.c
constexpr int norm_sum_columns = 32, norm_sum_rows = 8;

// gradient[c] (+)= sum over P of parts[P][c]: a warp's lanes are neighbouring columns, warps share the parts.
template <class T>
__global__ void __launch_bounds__(norm_sum_columns *norm_sum_rows)
    sum_parts(const float *parts, int64_t count, int64_t C, T *gradient, bool adds) {
  FSDP_SHARED(float, sums, norm_sum_columns *norm_sum_rows);
  const int lane = int(threadIdx.x) % norm_sum_columns, row = int(threadIdx.x) / norm_sum_columns;
  const int64_t c = int64_t(blockIdx.x) * norm_sum_columns + lane;
  float sum = 0;
  if (c < C)
    for (int64_t part = row; part < count; part += norm_sum_rows) sum += global_load(parts + part * C + c);
  sums[row * norm_sum_columns + lane] = sum;
  __syncthreads();
  if (row > 0 || c >= C) return;
  for (int other = 1; other < norm_sum_rows; other++) sum += sums[other * norm_sum_columns + lane];
  if (adds) sum += to_float(global_load(gradient + c));
  global_store(gradient + c, from_float<T>(sum));
}

inline void launch_sum_parts(const fsdp_kernel_call *call, const float *parts, int64_t count,
                             const fsdp_view *gradient) {
  const int64_t C = gradient->numel;
  with_type(gradient->dtype, [&](auto number) {
    using T = decltype(number);
    launch({blocks_of(C, norm_sum_columns), norm_sum_columns * norm_sum_rows, call->stream}, sum_parts<T>,
           parts, count, C, data_of<T>(gradient), updates(gradient));
  });
}
