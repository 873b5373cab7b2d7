// Shared by attention's forward and backward: operands, the cut into blocks, and gemms of blocks.
//
// Scores are kept transposed, S^T[key][query]: queries are the lanes of vectors, so the running softmax needs
// no sum across lanes. Every gemm of a block (S^T = K Q^T, O^T = V^T P^T, d_V = P^T d_O, d_Q = d_S K, ...)
// broadcasts its left factor, which may have any layout, and reads its right factor as rows of vectors
// (tile.h).
//
// B sequences of T queries, S positions with keys, H heads, K key/value heads, G = H / K, D head dimension, Q
// the columns of what q lies in: (H + 2K) * D of q|k|v, H * D of q alone. The query at position q sees the
// keys k with q - window < k <= q, none before its document's first one. A block's queries have neighbouring
// positions; everything inside it counts keys from the position of its first query. Which rows they lie in is
// the maps' (kernels/row_map.h): whatever is copied is copied run by run.
#pragma once

#include "kernels/cpu/attention/dropout.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/transpose.h"
#include "kernels/row_map.h"

enum {
  QUERIES = 64, // per block; a multiple of TILE_COLUMNS
  KEYS = 64,
};

typedef struct attention {
  const fsdp_kernel_call *call;
  const int32_t *starts; // (B, documents): position of the first token of each position's document; or NULL
  const fsdp_view *q, *kv, *o, *lse, *d_o, *d_q, *d_kv; // q, kv: what holds q and k|v, which may be q|k|v
  float *delta;                                         // (B, H, T): sum over D of d_o * o
  int64_t B, T, S, H, K, G, D, Q;
  int64_t kv_width, kv_column; // of the matrix with k|v: width of a row, and k's first column
  fsdp_row_map queries;
  fsdp_key_map keys;
  float scale;
  dropping drop;     // of probabilities
  int64_t window;    // without one: past every key, from every row of a block
  int64_t padded_D;  // D rounded up to TILE_COLUMNS
  int64_t key_range; // backward: keys whose gradients a task holds at a time
} attention;

// Operands: q|k|v or q, k|v; o, lse; of the backward also d_o, and d_q|d_k|d_v or d_q, d_k|d_v.
FSDP_INLINE attention open_attention(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  attention k = {.call = call, .B = attrs->batch, .T = attrs->seq, .H = attrs->heads, .K = attrs->kv_heads};
  k.D = attrs->head_dim;
  FSDP_CHECK(k.K > 0 && k.H % k.K == 0 && k.D > 0, "%lld heads over %lld key/value heads of %lld",
             (long long)k.H, (long long)k.K, (long long)k.D);
  FSDP_CHECK(attrs->window >= 0, "a window of %lld keys", (long long)attrs->window);
  k.starts = fsdp_kernel_given(call, FSDP_GIVEN_BY_DOCUMENTS);
  k.queries = fsdp_row_map_of(call);
  k.keys = fsdp_key_map_of(call, &k.queries);
  k.S = k.keys.seq;
  k.window = attrs->window > 0 && attrs->window < k.S ? attrs->window : k.S + QUERIES;
  k.G = k.H / k.K;
  bool apart = call->kind == FSDP_OP_CONTEXT_ATTENTION || call->kind == FSDP_OP_CONTEXT_ATTENTION_BACKWARD;
  k.Q = apart ? attrs->out_stride : (k.H + 2 * k.K) * k.D;
  FSDP_CHECK(k.Q >= k.H * k.D && attrs->out_offset == 0, "q in columns %lld + %lld of %lld",
             (long long)attrs->out_offset, (long long)(k.H * k.D), (long long)k.Q);
  k.kv_width = apart ? 2 * k.K * k.D : k.Q;
  k.kv_column = apart ? 0 : k.H * k.D;
  k.scale = (float)(1.0 / __builtin_sqrt((double)k.D));
  k.drop = dropping_of(call);
  FSDP_CHECK(!k.drop.draws || (k.drop.first_row >= 0 && k.drop.first_row + k.B * k.T <= attrs->draws),
             "%s: rows %lld + %lld of %lld draws", fsdp_op_name(call->kind), (long long)k.drop.first_row,
             (long long)(k.B * k.T), (long long)attrs->draws);
  k.padded_D = fsdp_round_up(k.D, TILE_COLUMNS);
  const fsdp_view *o = open_operands(call, 0);
  k.q = o++, k.kv = apart ? o++ : k.q, k.o = o++, k.lse = o++;
  if (fsdp_op_phase_of(call->kind) == FSDP_OP_IN_FORWARD) return k;
  k.d_o = o++, k.d_q = o++, k.d_kv = apart ? o : k.d_q;
  return k;
}

// Neighbouring queries of one head: indices `index` to `index` + count - 1, of the positions from `position`
// on.
typedef struct query_range {
  int64_t b, head, index, count, position;
} query_range;

// Ranges of QUERIES in a sequence; the last one of each chunk may be shorter.
FSDP_INLINE int64_t query_ranges(const attention *k) {
  return blocks_of(k->queries.chunk, QUERIES) + blocks_of(k->T - k->queries.chunk, QUERIES);
}

FSDP_INLINE query_range query_range_of(const attention *k, int64_t b, int64_t head, int64_t i) {
  int64_t head_blocks = blocks_of(k->queries.chunk, QUERIES), end = k->queries.chunk;
  query_range r = {.b = b, .head = head, .index = i * QUERIES};
  if (i >= head_blocks) r.index = end + (i - head_blocks) * QUERIES, end = k->T;
  r.count = fsdp_min_i64(QUERIES, end - r.index);
  r.position = fsdp_row_position(&k->queries, r.index);
  return r;
}

// First element of a head's row of keys, and of values.
FSDP_INLINE int64_t key_at(const attention *k, int64_t b, int64_t position, int64_t kv_head) {
  return fsdp_key_row(&k->keys, b, position) * k->kv_width + k->kv_column + kv_head * k->D;
}
FSDP_INLINE int64_t value_at(const attention *k, int64_t b, int64_t position, int64_t kv_head) {
  return key_at(k, b, position, k->K + kv_head);
}
// First element of a head's row of queries (`width` Q), or of o and d_o (`width` H * D).
FSDP_INLINE int64_t query_at(const attention *k, int64_t b, int64_t index, int64_t head, int64_t width) {
  return fsdp_row_of(&k->queries, b, index) * width + head * k->D;
}

FSDP_INLINE fsdp_vf load_lanes(const fsdp_view *view, int64_t first) {
  if (view->dtype == FSDP_F32) return vf_load((const float *)view->data + first);
  return vf_load_bf16((const fsdp_bf16 *)view->data + first);
}

// Copies `rows` rows of `columns` elements (the first at `first`, `stride` apart) as fp32, times `factor`,
// into rows of out_stride, with zeros after the last column.
FSDP_INLINE void copy_rows(const fsdp_view *view, int64_t first, int64_t stride, int64_t rows,
                           int64_t columns, float factor, float *out, int64_t out_stride) {
  int64_t whole = columns - columns % FSDP_LANES;
  for (int64_t i = 0; i < rows; i++, first += stride, out += out_stride) {
    for (int64_t c = 0; c < whole; c += FSDP_LANES) vf_store(out + c, load_lanes(view, first + c) * factor);
    if (whole < columns) load_into(view, first + whole, columns - whole, out + whole);
    for (int64_t c = whole; c < columns; c++) out[c] *= factor;
    for (int64_t c = columns; c < out_stride; c++) out[c] = 0;
  }
}

// As copy_rows for a range's rows of `view`, which are `width` wide.
FSDP_INLINE void copy_queries(const attention *k, const fsdp_view *view, int64_t width, query_range r,
                              float factor, float *out, int64_t out_stride) {
  for (int64_t i = 0, run; i < r.count; i += run) {
    run = fsdp_min_i64(r.count - i, fsdp_row_run(&k->queries, r.index + i));
    copy_rows(view, query_at(k, r.b, r.index + i, r.head, width), width, run, k->D, factor,
              out + i * out_stride, out_stride);
  }
}

// As copy_rows for `count` keys from `position` on, or for values (head K + kv_head).
FSDP_INLINE void copy_keys(const attention *k, int64_t b, int64_t kv_head, int64_t position, int64_t count,
                           float *out, int64_t out_stride) {
  for (int64_t i = 0, run; i < count; i += run) {
    run = fsdp_min_i64(count - i, fsdp_key_run(&k->keys, position + i));
    copy_rows(k->kv, key_at(k, b, position + i, kv_head), k->kv_width, run, k->D, 1, out + i * out_stride,
              out_stride);
  }
}

// out[c][i] = in[i][c] for rows of QUERIES, zero for i >= rows.
FSDP_INLINE void transpose_queries(const float *in, int64_t in_stride, int64_t rows, int64_t columns,
                                   float *out) {
  if (rows < QUERIES) memset(out, 0, (size_t)(columns * QUERIES) * sizeof *out);
  for (int64_t i = 0; i < rows; i += TRANSPOSED) {
    const float *some[TRANSPOSED];
    for (int64_t r = 0; r < TRANSPOSED; r++) some[r] = in + (i + r) * in_stride;
    transpose_rows(some, fsdp_min_i64(TRANSPOSED, rows - i), columns, QUERIES, out + i);
  }
}

// First column of the block that sees key `key` (counted from the block's first query), rounded down to a
// whole tile.
FSDP_INLINE int64_t first_column(int64_t key) {
  return key <= 0 ? 0 : key / TILE_COLUMNS * TILE_COLUMNS;
}

// The first key that each column of a range's block sees, by window and document. It never decreases. Columns
// past the range's end count to the last query's document.
FSDP_INLINE void find_low(const attention *k, query_range r, int64_t low[QUERIES]) {
  for (int64_t c = 0; c < QUERIES; c++) {
    low[c] = c - k->window + 1;
    if (!k->starts) continue;
    int64_t position = r.position + fsdp_min_i64(c, r.count - 1);
    int64_t start = k->starts[r.b * k->call->attrs->documents + position];
    low[c] = fsdp_max_i64(low[c], start - r.position);
  }
}

// One past the last column of the block that sees key `key`; 0: no column does, all see later keys alone.
FSDP_INLINE int64_t end_column(const int64_t low[QUERIES], int64_t key) {
  if (low[QUERIES - 1] <= key) return QUERIES;
  int64_t begin = 0, end = QUERIES - 1; // the last column does not see it
  while (begin < end) {
    int64_t middle = (begin + end) / 2;
    if (low[middle] <= key)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// Position of the first key that a range's first query sees.
FSDP_INLINE int64_t first_seen(query_range r, const int64_t low[QUERIES]) {
  return fsdp_max_i64(0, r.position + low[0]);
}

// A query head's number among those of the whole model.
FSDP_INLINE int64_t whole_head(const attention *k, int64_t head) {
  const fsdp_op_attrs *attrs = k->call->attrs;
  const int64_t group = attrs->head_group ? attrs->head_group : k->G;
  return attrs->first_head + head / k->G * group + head % k->G;
}

// Values (KEYS, QUERIES) times the factors of a range's probabilities: of `keys` keys from `key` on, a
// multiple of KEYS, and columns [begin, end) of queries. Columns past the range's end stay.
FSDP_INLINE void drop_probabilities(const attention *k, query_range r, int64_t key, int64_t keys,
                                    int64_t begin, int64_t end, float *values) {
  float factors[KEYS];
  _Static_assert((int)KEYS == (int)DROPPED_COLUMNS, "one call gives the factors of a block's keys");
  for (int64_t c = begin; c < fsdp_min_i64(end, r.count); c++) {
    const int64_t row = fsdp_row_of(&k->queries, r.b, r.index + c);
    if (!drops_row(&k->drop, row)) continue;
    drop_factors(&k->drop, key_of_row(&k->drop, row), whole_head(k, r.head), key / FSDP_DROPOUT_COLUMNS,
                 factors, 1);
    for (int64_t i = 0; i < keys; i++) values[i * QUERIES + c] *= factors[i];
  }
}

// c (keys, QUERIES) = a (keys, D) * b (D, QUERIES), only the columns that see a key, in whole tiles:
// `first_key` is the block's first key counted from its first query.
FSDP_INLINE void product_of_keys(const attention *k, const int64_t *low, const float *a, int64_t a_stride,
                                 const float *b, float *c, int64_t keys, int64_t first_key) {
  for (int64_t i = 0; i < keys; i += TILE_ROWS) {
    int64_t rows = fsdp_min_i64(TILE_ROWS, keys - i), end = end_column(low, first_key + i + rows - 1);
    for (int64_t n = first_column(first_key + i); n < end; n += TILE_COLUMNS)
      tile(rows, k->D, a + i * a_stride, b + n, c + i * QUERIES + n,
           (tile_strides){a_stride, 1, QUERIES, QUERIES}, false);
  }
}
