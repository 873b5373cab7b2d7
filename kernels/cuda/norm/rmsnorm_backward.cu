// Gradients of RMSNorm. With g = d_y * weight: d_h = rstd * (g - h * rstd^2 * mean(g * h)), and
// d_weight = sum over rows of d_y * h * rstd.
//
// One pass over h and d_y: a block walks rows that lie a grid apart and loads the next while it sums one.
// Each thread keeps its columns' part of d_weight in registers, which the blocks leave in the workspace
// (sum_parts.cuh).
#include "kernels/cuda/norm/norm_rows.cuh"
#include "kernels/cuda/ops.cuh"
#include "kernels/cuda/sum_parts.cuh"

namespace {

constexpr int threads_max = 512;

template <class T> struct norm_gradient {
  const T *h, *weight, *d_y;
  const float *rstd;
  T *d_h;
  float *parts; // (P, C)
  int64_t N;
  int C;
  bool adds; // to d_h
};

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
    store_floats<WIDTH>(p.parts + int64_t(blockIdx.x) * p.C + c, sums[k]);
  }
}

template <class T, int WIDTH, int CHUNKS, bool AHEAD>
bool launch_width(const fsdp_kernel_call *call, const norm_gradient<T> &p, int64_t parts) {
  const int64_t threads = row_threads<WIDTH, CHUNKS>(p.C);
  if (threads > threads_max) return false;
  launch({parts, int(threads), stream_of(call)}, backward_rows<T, WIDTH, CHUNKS, AHEAD>, p);
  return true;
}

template <class T> void launch_rows(const fsdp_kernel_call *call, const norm_gradient<T> &p, int64_t parts) {
  constexpr int width = vector_numel<T>, chunks = 16 / width;
  const bool wide = p.C % width == 0 && is_aligned(p.h) && is_aligned(p.weight) && is_aligned(p.d_y) &&
                    is_aligned(p.d_h) && is_aligned(p.parts);
  const bool done = wide ? launch_width<T, width, chunks, true>(call, p, parts) ||
                               launch_width<T, width, 2 * chunks, false>(call, p, parts)
                         : launch_width<T, 1, 16, false>(call, p, parts);
  FSDP_CHECK(done, "rmsnorm_backward: rows of %d channels are too long", p.C);
}

} // namespace

void cuda_rmsnorm_backward(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  FSDP_CHECK(C <= INT32_MAX, "rmsnorm_backward: rows of %lld channels are too long", (long long)C);
  const fsdp_view *o = open_operands(call), *d_h = &o[4], *d_weight = &o[5];
  const fsdp_view *workspace = fsdp_kernel_workspace(call);
  const int64_t parts = workspace->numel / C;
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    norm_gradient<T> p = {};
    p.h = numbers_of<T>(call, 0);
    p.rstd = data_of<float>(&o[1]);
    p.weight = numbers_of<T>(call, 2);
    p.d_y = numbers_of<T>(call, 3);
    p.d_h = numbers_of<T>(call, 4);
    p.parts = data_of<float>(workspace);
    p.N = N;
    p.C = int(C);
    p.adds = updates(d_h);
    launch_rows(call, p, parts);
  });
  launch_sum_parts(call, data_of<float>(workspace), parts, d_weight);
}
