// Causal attention with grouped key/value heads, forward and backward (Dao, "FlashAttention-2", 2023): shared
// by the two implementations.
//
//   attention_tensor*.cu   bf16, D a multiple of 8 up to 128: tensor cores
//   attention_general.cu   fp32, and bf16 of any other D up to 256
//
// B sequences of T positions, H heads, K key/value heads, G = H / K, D head dimension, Q = (H + 2K) * D
// columns of q|k|v, o and d_o (B*T, H*D), lse and delta (B, H, T). lse = log(sum(exp(q k / sqrt(D)))), delta
// = rowsum(d_o * o). Query q sees the keys k with q - window < k <= q.
#pragma once

#include "kernels/cuda/operand.cuh"

struct attention_shape {
  int64_t Q;
  int B, T, H, K, G, D;
  float scale; // 1 / sqrt(D)
  int window;  // without one: past every key, from every row of a tile
};

// First element of a head's row in q|k|v, and in o.
__device__ __host__ inline int64_t query_at(const attention_shape &s, int b, int t, int head) {
  return (int64_t(b) * s.T + t) * s.Q + int64_t(head) * s.D;
}
__device__ __host__ inline int64_t key_at(const attention_shape &s, int b, int t, int kv_head) {
  return query_at(s, b, t, s.H + kv_head);
}
__device__ __host__ inline int64_t value_at(const attention_shape &s, int b, int t, int kv_head) {
  return query_at(s, b, t, s.H + s.K + kv_head);
}
__device__ __host__ inline int64_t output_at(const attention_shape &s, int b, int t, int head) {
  return ((int64_t(b) * s.T + t) * s.H + head) * s.D;
}
__device__ __host__ inline int64_t statistic_at(const attention_shape &s, int b, int head, int t) {
  return (int64_t(b) * s.H + head) * s.T + t;
}

// First key of the tile (of TILE keys) that holds the first key that `query` sees.
template <int TILE> __device__ __forceinline__ int first_tile(const attention_shape &s, int query) {
  return query < s.window ? 0 : (query - s.window + 1) / TILE * TILE;
}
// One past the last query that sees key `key`.
__device__ __forceinline__ int end_query(const attention_shape &s, int key) {
  return least(s.T, key + s.window);
}

template <class T> struct attention_forward {
  attention_shape shape;
  const T *qkv;
  T *o;
  float *lse;
};

template <class T> struct attention_gradient {
  attention_shape shape;
  const T *qkv, *d_o;
  const float *lse, *delta;
  T *d_qkv;
};

void attention_tensor_forward(const attention_forward<bf16> &p, void *stream);
void attention_tensor_backward(const attention_gradient<bf16> &p, void *stream);

// For T float and bf16.
template <class T> void attention_general_forward(const attention_forward<T> &p, void *stream);
template <class T> void attention_general_backward(const attention_gradient<T> &p, void *stream);
