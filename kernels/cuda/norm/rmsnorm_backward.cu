// Gradients of RMSNorm. With g = d_y * weight: d_h = rstd * (g - h * rstd^2 * mean(g * h)), and
// d_weight = sum over rows of d_y * h * rstd.
//
// One pass over h and d_y: a block walks rows that lie a grid apart and loads the next while it sums one.
// Each thread keeps its columns' part of d_weight in registers, which the blocks leave in the workspace
// (sum_parts.cuh).
#include "kernels/cuda/norm/norm_backward.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

// A thread's columns of rows, as they lie in memory.
template <class T, int WIDTH, int CHUNKS> struct rows_ahead {
  packed<T, WIDTH> h[CHUNKS], d_y[CHUNKS], d_h[CHUNKS];
};

// Row n's h and g = d_y * weight, its terms added to the columns' sums; returns the part of sum(g * h) that
// this thread's columns have.
template <bool AHEAD, class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ float
add_row(const norm_gradient<T> &p, int64_t n, float rstd, const rows_ahead<T, WIDTH, CHUNKS> &ahead,
        packed<T, WIDTH> (&h)[CHUNKS], float (&g)[CHUNKS][WIDTH], float (&sums)[CHUNKS][WIDTH]) {
  float dot = 0;
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    float x[WIDTH], weight[WIDTH];
    if constexpr (AHEAD) {
      h[k] = ahead.h[k];
      unpack(ahead.d_y[k], g[k]);
    } else {
      load_packed(p.h + n * p.C + c, &h[k]);
      load_floats<WIDTH>(p.d_y + n * p.C + c, g[k]);
    }
    load_floats<WIDTH>(p.weight + c, weight);
    unpack(h[k], x);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      sums[k][i] += g[k][i] * (x[i] * rstd);
      g[k][i] *= weight[i];
      dot += g[k][i] * x[i];
    }
  }
  return dot;
}

template <bool AHEAD, class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ void store_row(const norm_gradient<T> &p, int64_t n, float rstd, float shrink,
                                          const rows_ahead<T, WIDTH, CHUNKS> &ahead,
                                          const packed<T, WIDTH> (&h)[CHUNKS],
                                          const float (&g)[CHUNKS][WIDTH]) {
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    float x[WIDTH], d_h[WIDTH];
    unpack(h[k], x);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) d_h[i] = rstd * (g[k][i] - x[i] * shrink);
    if (p.adds) {
      if constexpr (AHEAD) {
        unpack(ahead.d_h[k], x);
      } else {
        load_floats<WIDTH>(p.d_h + n * p.C + c, x);
      }
#pragma unroll
      for (int i = 0; i < WIDTH; i++) d_h[i] += x[i];
    }
    store_floats<WIDTH>(p.d_h + n * p.C + c, d_h);
  }
}

// AHEAD: while a row is summed, the row it is added to and the next row are being loaded. Needs more
// registers, so it is for 16 elements per thread in whole vectors.
template <class T, int WIDTH, int CHUNKS, bool AHEAD>
__global__ void __launch_bounds__(threads_max) backward_rows(norm_gradient<T> p) {
  float sums[CHUNKS][WIDTH] = {}, g[CHUNKS][WIDTH];
  packed<T, WIDTH> h[CHUNKS];
  rows_ahead<T, WIDTH, CHUNKS> ahead;
  if constexpr (AHEAD) {
    load_row(p.h + int64_t(blockIdx.x) * p.C, p.C, ahead.h);
    load_row(p.d_y + int64_t(blockIdx.x) * p.C, p.C, ahead.d_y);
  }
  for (int64_t n = blockIdx.x; n < p.N; n += gridDim.x) {
    const float rstd = global_load(p.rstd + n);
    float dot = add_row<AHEAD>(p, n, rstd, ahead, h, g, sums);
    if constexpr (AHEAD) {
      const int64_t next = n + gridDim.x;
      if (p.adds) load_row(p.d_h + n * p.C, p.C, ahead.d_h);
      if (next < p.N) load_row(p.h + next * p.C, p.C, ahead.h);
      if (next < p.N) load_row(p.d_y + next * p.C, p.C, ahead.d_y);
    }
    dot = block_sum(dot);
    store_row<AHEAD>(p, n, rstd, rstd * rstd * (dot / float(p.C)), ahead, h, g);
  }
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    store_floats<WIDTH>(p.weight_parts + int64_t(blockIdx.x) * p.C + c, sums[k]);
  }
}

} // namespace

void cuda_rmsnorm_backward(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  const int64_t parts = part_count_of(call, 1);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>, some = 16 / width, more = 2 * some;
    const norm_gradient<T> p = norm_gradient_of<T, false>(call, parts);
    const bool done = takes_vectors(p)
                          ? launch_rows<width, some>(call, p, parts, backward_rows<T, width, some, true>) ||
                                launch_rows<width, more>(call, p, parts, backward_rows<T, width, more, false>)
                          : launch_rows<1, 16>(call, p, parts, backward_rows<T, 1, 16, false>);
    FSDP_CHECK(done, "rmsnorm_backward: rows of %d channels are too long", p.C);
  });
  launch_sum_parts(call, data_of<float>(fsdp_kernel_workspace(call)), parts, &o[5]);
}
