// Causal attention with grouped key/value heads, forward and backward (Dao, "FlashAttention-2", 2023): shared
// by the implementations.
//
//   attention_tensor*.cu   bf16, D a multiple of 8 up to 128: tensor cores (mma.sync)
//   attention_hopper*.cu   the same by warpgroups (wgmma), on capability 9.0 alone; if FSDP_WGMMA is defined
//   attention_general.cu   fp32, bf16 of any other D up to 256, and dropout of probabilities
//
// B sequences of T queries, S positions with keys, H heads, K key/value heads, G = H / K, D head dimension,
// Q columns of what q lies in ((H + 2K) * D of q|k|v, H * D of q alone), o and d_o (B*T, H*D), lse and delta
// (B, H, T). lse = log(sum(exp(q k / sqrt(D)))), delta = rowsum(d_o * o). The query at position q sees the
// keys k with q - window < k <= q, and none before its document's first one. Queries are counted by index,
// and a block's have neighbouring positions; keys are counted by position. The maps say which rows they have.
#pragma once

#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/rows.cuh"

// Which probabilities are dropped (runtime/base/random.h): attention_general.cu alone can.
struct attention_drop {
  const int *draws; // of the op's first row, two words each; NULL: none are dropped
  uint64_t op;
  uint32_t limit;
  float scale;
  int first_head, head_group; // among the whole model's heads: the first, and how many one of its groups has
};

struct attention_shape {
  int B, T, S, H, K, G, D;
  int Q, kv_width; // columns of the matrix that k and v lie in
  bool has_kv;     // which is not that of q
  float scale;     // 1 / sqrt(D)
  int window;      // without one: past every key, from every row of a tile
  row_map queries;
  key_map keys;
  const int
      *starts;   // (B, documents): position of the first token of each position's document; NULL: none are
  int documents; // told apart
  attention_drop drop;
};

__device__ __host__ inline int64_t statistic_at(const attention_shape &s, int b, int head, int index) {
  return (int64_t(b) * s.H + head) * s.T + index;
}

attention_shape attention_shape_of(const fsdp_kernel_call *call);

// Position of the first token of the document of a sequence's position. It never decreases along a sequence.
__device__ __forceinline__ int start_of(const attention_shape &s, int b, int position) {
  return global_load(s.starts + int64_t(b) * s.documents + position);
}

// Whether the rows of queries and keys follow one another and are the same: what needs no map.
inline bool attention_is_plain(const attention_shape &s) {
  return s.queries.piece.by == s.T && !s.has_kv;
}

// k and v point at the first key head's columns.
template <class T> struct attention_forward {
  attention_shape shape;
  const T *q, *k, *v;
  T *o;
  float *lse;
};

// head_parts above 1: the heads of a group are cut over as many blocks. Each leaves its part of d_k and d_v
// in `parts`, (head_parts, B*S, 2*K*D), columns and rows as those of k|v alone; the parts are then added in
// order.
template <class T> struct attention_gradient {
  attention_shape shape;
  const T *q, *k, *v, *d_o;
  const float *lse, *delta;
  T *d_q, *d_k, *d_v;
  int head_parts;
  float *parts;
  bool rotates_back = false; // d_q and d_k become rope_backward's, with these frequencies; D is 64 or 128
  float inv_freq[64] = {};
};

void attention_tensor_forward(const attention_forward<bf16> &p, launch_stream stream);
void attention_tensor_backward(const attention_gradient<bf16> &p, launch_stream stream);

// `fenced`: with the fence that PTX asks for (models/graph/attention_kernel.h).
void attention_hopper_forward(const attention_forward<bf16> &p, bool fenced, launch_stream stream);
void attention_hopper_backward(const attention_gradient<bf16> &p, launch_stream stream);

// For T float and bf16.
template <class T> void attention_general_forward(const attention_forward<T> &p, launch_stream stream);
template <class T> void attention_general_backward(const attention_gradient<T> &p, launch_stream stream);
