// Rotary position embedding in place over the q and k columns of rows of q|k|v: elements i and i + D/2 of a
// head are a pair, rotated by position * inv_freq[i]; of a head whose first R elements alone are rotated, i
// and i + R/2 are. A position counts from the start of its document. One block per row; its angles serve
// every head.
// B sequences of T positions, H heads, K key/value heads, D head dimension, Q = (H + 2K) * D.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"
#include "kernels/cuda/rows.cuh"

namespace {

constexpr int half_max = 256; // of D, which bounds the frequencies that travel with the launch
constexpr int threads_max = 256;

template <class T> struct rotation {
  T *qkv;
  row_map rows;
  document_starts documents;
  int64_t Q;
  int heads, half; // heads: of q and k; half of what is rotated of each
  int head_dim;
  float direction; // -1 rotates back: the gradient of a rotation is its inverse
  float inv_freq[half_max];
};

template <class T, int WIDTH> __global__ void __launch_bounds__(threads_max) rotate_row(rotation<T> p) {
  FSDP_SHARED(float4, cosines, half_max / 4);
  FSDP_SHARED(float4, sines, half_max / 4);
  const smem<float> cosine = cosines.template part<float>(0, half_max),
                    sine = sines.template part<float>(0, half_max);
  const float position = float(position_in_document(p.rows, p.documents, place_of(p.rows, int(blockIdx.x))));
  for (int i = int(threadIdx.x); i < p.half; i += int(blockDim.x)) {
    float s, c;
    sincosf(position * p.inv_freq[i], &s, &c);
    cosine[i] = c;
    sine[i] = p.direction * s;
  }
  __syncthreads();
  const int columns = p.half / WIDTH;
  T *row = p.qkv + int64_t(blockIdx.x) * p.Q;
  for (int v = int(threadIdx.x); v < p.heads * columns; v += int(blockDim.x)) {
    const int c = v % columns * WIDTH;
    T *low_at = row + v / columns * p.head_dim + c, *high_at = low_at + p.half;
    float low[WIDTH], high[WIDTH], turn[2][WIDTH];
    load_floats<WIDTH>(low_at, low);
    load_floats<WIDTH>(high_at, high);
    if constexpr (WIDTH == 1) {
      turn[0][0] = cosine[c];
      turn[1][0] = sine[c];
    } else {
#pragma unroll
      for (int i = 0; i < WIDTH; i += 4) {
        float4 four = cosines[(c + i) / 4], other = sines[(c + i) / 4];
        turn[0][i] = four.x, turn[0][i + 1] = four.y, turn[0][i + 2] = four.z, turn[0][i + 3] = four.w;
        turn[1][i] = other.x, turn[1][i + 1] = other.y, turn[1][i + 2] = other.z, turn[1][i + 3] = other.w;
      }
    }
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      const float a = low[i], b = high[i];
      low[i] = a * turn[0][i] - b * turn[1][i];
      high[i] = b * turn[0][i] + a * turn[1][i];
    }
    store_floats<WIDTH>(low_at, low);
    store_floats<WIDTH>(high_at, high);
  }
}

// So many that all have a vector in each round but, at most, the last warp.
int even_threads(int64_t vectors) {
  const int64_t rounds = blocks_of(vectors, threads_max);
  return int(fsdp_round_up(blocks_of(vectors, rounds), warp_lanes));
}

void run(const fsdp_kernel_call *call, float direction) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t D = attrs->head_dim, R = attrs->rotary_dim ? attrs->rotary_dim : D,
                N = attrs->batch * attrs->seq, Q = (attrs->heads + 2 * attrs->kv_heads) * D;
  FSDP_CHECK(R % 2 == 0 && R <= D && R / 2 <= half_max && attrs->inv_freq,
             "RoPE over %lld of head dimension %lld", (long long)R, (long long)D);
  const fsdp_view *qkv = open_operands(call, 1);
  // The v columns stay: of the last row only q and k belong to the range.
  fsdp_kernel_report(call, 0, 0, N * Q - attrs->kv_heads * D, FSDP_UPDATE);
  with_type(qkv->dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    rotation<T> p = {data_of<T>(qkv),
                     row_map_of(fsdp_row_map_of(call)),
                     document_starts_of(call),
                     Q,
                     int(attrs->heads + attrs->kv_heads),
                     int(R / 2),
                     int(D),
                     direction,
                     {}};
    memcpy(p.inv_freq, attrs->inv_freq, size_t(R / 2) * sizeof(float));
    const bool wide = p.half % width == 0 && D % width == 0 && is_aligned(p.qkv);
    const int64_t vectors = p.heads * (R / 2) / (wide ? width : 1);
    launch({N, even_threads(vectors), stream_of(call)}, wide ? rotate_row<T, width> : rotate_row<T, 1>, p);
  });
}

} // namespace

void cuda_rope(const fsdp_kernel_call *call) {
  run(call, 1.0f);
}

void cuda_rope_backward(const fsdp_kernel_call *call) {
  run(call, -1.0f);
}
