// Gradients of LayerNorm. With z = (h - mean) * rstd and g = d_y * weight:
// d_h = rstd * (g - mean(g) - z * mean(g * z)); d_weight is the sum over rows of d_y * z, d_bias that of d_y.
//
// A block walks rows that lie a grid apart. Each thread keeps its columns' parts of d_weight and d_bias in
// registers, which the blocks leave in the workspace: those of all d_weight, then those of d_bias
// (sum_parts.cuh).
#include "kernels/cuda/norm/norm_backward.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

// A thread's columns of one row, as they lie in memory.
template <class T, int WIDTH, int CHUNKS> struct row_part { packed<T, WIDTH> h[CHUNKS], d_y[CHUNKS]; };

template <class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ void load_part(const norm_gradient<T> &p, int64_t n,
                                          row_part<T, WIDTH, CHUNKS> *part) {
  if (n >= p.N) return;
  load_row(p.h + n * p.C, p.C, part->h);
  load_row(p.d_y + n * p.C, p.C, part->d_y);
}

// z and d_y of a chunk of row n.
template <bool AHEAD, class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ void unpack_chunk(const norm_gradient<T> &p, int64_t n, int k, float mean,
                                             float rstd, const row_part<T, WIDTH, CHUNKS> &part,
                                             float (&z)[WIDTH], float (&d_y)[WIDTH]) {
  if constexpr (AHEAD) {
    unpack(part.h[k], z);
    unpack(part.d_y[k], d_y);
  } else {
    load_floats<WIDTH>(p.h + n * p.C + column_of<WIDTH>(k), z);
    load_floats<WIDTH>(p.d_y + n * p.C + column_of<WIDTH>(k), d_y);
  }
#pragma unroll
  for (int i = 0; i < WIDTH; i++) z[i] = (z[i] - mean) * rstd;
}

template <bool AHEAD, class T, int WIDTH, int CHUNKS>
__device__ __forceinline__ void store_row(const norm_gradient<T> &p, int64_t n, float mean, float rstd,
                                          float shift, float shrink, const row_part<T, WIDTH, CHUNKS> &part,
                                          const packed<T, WIDTH> (&old)[CHUNKS]) {
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    float z[WIDTH], d_h[WIDTH], weight[WIDTH];
    unpack_chunk<AHEAD>(p, n, k, mean, rstd, part, z, d_h);
    load_floats<WIDTH>(p.weight + c, weight);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) d_h[i] = rstd * (d_h[i] * weight[i] - shift - z[i] * shrink);
    if (p.adds) {
      if constexpr (AHEAD) {
        unpack(old[k], z);
      } else {
        load_floats<WIDTH>(p.d_h + n * p.C + c, z);
      }
#pragma unroll
      for (int i = 0; i < WIDTH; i++) d_h[i] += z[i];
    }
    store_floats<WIDTH>(p.d_h + n * p.C + c, d_h);
  }
}

// AHEAD: the row stays in registers, and while it is summed, the row that it is added to and the next one are
// being loaded. Else it is read again from the cache, which takes fewer registers for longer rows.
template <class T, int WIDTH, int CHUNKS, bool AHEAD>
__global__ void __launch_bounds__(threads_max, 1) backward_rows(norm_gradient<T> p) {
  float weight_sums[CHUNKS][WIDTH] = {}, bias_sums[CHUNKS][WIDTH] = {};
  row_part<T, WIDTH, CHUNKS> part, next;
  packed<T, WIDTH> old[CHUNKS];
  if constexpr (AHEAD) load_part(p, blockIdx.x, &next);
  for (int64_t n = blockIdx.x; n < p.N; n += gridDim.x) {
    const float mean = global_load(p.mean + n), rstd = global_load(p.rstd + n);
    float total = 0, dot = 0;
    if constexpr (AHEAD) {
      part = next;
      if (p.adds) load_row(p.d_h + n * p.C, p.C, old);
      load_part(p, n + gridDim.x, &next);
    }
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      const int c = column_of<WIDTH>(k);
      if (c >= p.C) break;
      float z[WIDTH], d_y[WIDTH], weight[WIDTH];
      unpack_chunk<AHEAD>(p, n, k, mean, rstd, part, z, d_y);
      load_floats<WIDTH>(p.weight + c, weight);
#pragma unroll
      for (int i = 0; i < WIDTH; i++) {
        weight_sums[k][i] += d_y[i] * z[i];
        bias_sums[k][i] += d_y[i];
        total += d_y[i] * weight[i];
        dot += d_y[i] * weight[i] * z[i];
      }
    }
    const float shift = block_sum(total) / float(p.C), shrink = block_sum(dot) / float(p.C);
    store_row<AHEAD>(p, n, mean, rstd, shift, shrink, part, old);
  }
#pragma unroll
  for (int k = 0; k < CHUNKS; k++) {
    const int c = column_of<WIDTH>(k);
    if (c >= p.C) break;
    store_floats<WIDTH>(p.weight_parts + int64_t(blockIdx.x) * p.C + c, weight_sums[k]);
    store_floats<WIDTH>(p.bias_parts + int64_t(blockIdx.x) * p.C + c, bias_sums[k]);
  }
}

} // namespace

void cuda_layernorm_backward(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  const int64_t parts = part_count_of(call, 2);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>, more = 32 / width;
    const norm_gradient<T> p = norm_gradient_of<T, true>(call, parts);
    const bool done = takes_vectors(p)
                          ? launch_rows<width, 2>(call, p, parts, backward_rows<T, width, 2, true>) ||
                                launch_rows<width, more>(call, p, parts, backward_rows<T, width, more, false>)
                          : launch_rows<1, 16>(call, p, parts, backward_rows<T, 1, 16, false>);
    FSDP_CHECK(done, "layernorm_backward: rows of %d channels are too long", p.C);
  });
  const float *weight_parts = data_of<float>(fsdp_kernel_workspace(call));
  launch_sum_parts(call, weight_parts, parts, &o[6]);
  launch_sum_parts(call, weight_parts + parts * call->attrs->channels, parts, &o[7]);
}
