// Causal attention with grouped key/value heads in blocks with a running softmax (Dao, "FlashAttention-2",
// 2023): o = softmax(q k^T / sqrt(D)) v, and lse = log(sum(exp(q k^T / sqrt(D)))) for the backward. See
// attention.h. With dropout, what the values are weighed by is dropped, after its sum was taken.
#include "kernels/cpu/attention/attention.h"

#include <float.h>
#include <math.h>

// One range of queries of one head, in a thread's scratch.
typedef struct query_block {
  float *q;                         // Q^T (D, QUERIES), scaled
  float *scores;                    // S^T, then P^T (KEYS, QUERIES)
  float *key_buffer, *value_buffer; // (KEYS, D), if q|k|v is not fp32
  const float *keys, *values;       // the block's rows, key_stride apart
  int64_t key_stride;
  float *out;  // O^T (D, QUERIES), not yet divided by the sums
  float *rows; // (QUERIES, D) staging, and a vector
  float most[QUERIES], sums[QUERIES];
  int64_t low[QUERIES]; // first key that each sees
} query_block;

static query_block divide_scratch(const attention *k, void *scratch) {
  query_block s;
  s.q = scratch;
  s.scores = scratch_after(s.q, k->D * QUERIES);
  s.key_buffer = scratch_after(s.scores, KEYS * QUERIES);
  s.value_buffer = scratch_after(s.key_buffer, KEYS * k->D);
  s.out = scratch_after(s.value_buffer, KEYS * k->D);
  s.rows = scratch_after(s.out, k->D * QUERIES);
  FSDP_CHECK((size_t)((char *)(s.rows + QUERIES * k->D + TRANSPOSED) - (char *)scratch) <=
                 FSDP_POOL_SCRATCH_BYTES,
             "head dimension %lld exceeds the scratch", (long long)k->D);
  return s;
}

// Hides the keys that come after a query. Keys are counted from the block's first query.
static void mask(float *scores, int64_t keys, int64_t first_key) {
  for (int64_t i = 0; i < keys; i++)
    for (int64_t c = first_column(first_key + i); c < fsdp_min_i64(QUERIES, first_key + i); c++)
      scores[i * QUERIES + c] = -INFINITY;
}

// Hides the keys that lie before a query's window or document, in tiles that see some of these keys.
static void mask_before_low(query_block *s, int64_t keys, int64_t first_key) {
  float *scores = s->scores;
  for (int64_t i = 0; i < keys; i++) {
    int64_t end = end_column(s->low, first_key + i);
    for (int64_t c = end; c < fsdp_round_up(end, TILE_COLUMNS); c++) scores[i * QUERIES + c] = -INFINITY;
  }
}

// One vector of queries over `keys` keys: the running maximum and sum, P^T in place of S^T, and the factor
// for what was summed before. The maximum is finite even if all keys so far are hidden from a query.
FSDP_INLINE fsdp_vf soften(query_block *s, float *scores, int64_t column, int64_t keys) {
  fsdp_vf old = vf_load(s->most + column), most = old, sum = {0};
  for (int64_t i = 0; i < keys; i++) most = vf_max(most, vf_load(scores + i * QUERIES));
  for (int64_t i = 0; i < keys; i++) {
    fsdp_vf p = vf_exp(vf_load(scores + i * QUERIES) - most);
    vf_store(scores + i * QUERIES, p);
    sum += p;
  }
  fsdp_vf correction = vf_exp(old - most);
  vf_store(s->most + column, most);
  vf_store(s->sums + column, vf_load(s->sums + column) * correction + sum);
  return correction;
}

static void attend_to_keys(const attention *k, query_block *s, query_range r, int64_t key, int64_t keys) {
  const int64_t first_key = key - r.position;
  product_of_keys(k, s->low, s->keys, s->key_stride, s->q, s->scores, keys, first_key);
  if (first_key + keys > 1) mask(s->scores, keys, first_key);
  if (end_column(s->low, first_key) < QUERIES) mask_before_low(s, keys, first_key);
  for (int64_t n = 0; n < QUERIES; n += TILE_COLUMNS) {
    // A query of this tile sees no key past the tile's last column, nor before the first one's first key.
    int64_t end = fsdp_min_i64(keys, n + TILE_COLUMNS - first_key);
    int64_t begin = fsdp_max_i64(0, s->low[n] - first_key), seen = end - begin;
    if (seen <= 0) continue;
    float *scores = s->scores + begin * QUERIES;
    for (int64_t c = n; c < n + TILE_COLUMNS; c += FSDP_LANES) {
      fsdp_vf correction = soften(s, scores + c, c, seen);
      for (int64_t d = 0; d < k->D; d++) {
        float *out = s->out + d * QUERIES + c;
        vf_store(out, vf_load(out) * correction);
      }
    }
    if (k->drop.draws) drop_probabilities(k, r, key, keys, n, n + TILE_COLUMNS, s->scores);
    for (int64_t d = 0; d < k->D; d += TILE_ROWS)
      tile(fsdp_min_i64(TILE_ROWS, k->D - d), seen, s->values + begin * s->key_stride + d, scores + n,
           s->out + d * QUERIES + n, (tile_strides){1, s->key_stride, QUERIES, QUERIES}, true);
  }
}

static void store_queries(const attention *k, query_block *s, query_range r) {
  float *lse = (float *)k->lse->data + (r.b * k->H + r.head) * k->T + r.index;
  for (int64_t d = (k->D - 1) / TRANSPOSED * TRANSPOSED; d >= 0; d -= TRANSPOSED) {
    const float *columns[TRANSPOSED];
    for (int64_t i = 0; i < TRANSPOSED; i++) columns[i] = s->out + (d + i) * QUERIES;
    transpose_rows(columns, fsdp_min_i64(TRANSPOSED, k->D - d), r.count, k->D, s->rows + d);
  }
  for (int64_t i = 0; i < r.count; i++) {
    float inverse = 1.0f / s->sums[i], *row = s->rows + i * k->D;
    lse[i] = s->most[i] + logf(s->sums[i]);
    for (int64_t d = 0; d < k->D; d++) row[d] *= inverse;
    store(k->o, query_at(k, r.b, r.index + i, r.head, k->H * k->D), k->D, row);
  }
}

// Both are broadcast element by element, so fp32 rows that follow one another are used in place.
static void load_keys(const attention *k, query_block *s, int64_t b, int64_t key, int64_t keys,
                      int64_t kv_head) {
  if (k->kv->dtype == FSDP_F32 && fsdp_key_run(&k->keys, key) >= keys) {
    s->keys = element(k->kv, key_at(k, b, key, kv_head));
    s->values = element(k->kv, value_at(k, b, key, kv_head));
    s->key_stride = k->kv_width;
    return;
  }
  copy_keys(k, b, kv_head, key, keys, s->key_buffer, k->D);
  copy_keys(k, b, k->K + kv_head, key, keys, s->value_buffer, k->D);
  s->keys = s->key_buffer;
  s->values = s->value_buffer;
  s->key_stride = k->D;
}

// Prefetches the next block's keys and values into the second-level cache, as far as their rows follow one
// another. Rows are too far apart for the core's prefetcher, so each would cost a wait.
static void prefetch_keys(const attention *k, int64_t b, int64_t key, int64_t keys, int64_t kv_head) {
  int64_t bytes = k->D * fsdp_dtype_bytes(k->kv->dtype), run = fsdp_key_run(&k->keys, key);
  int64_t stride = k->kv_width * fsdp_dtype_bytes(k->kv->dtype);
  const char *key_row = element(k->kv, key_at(k, b, key, kv_head));
  const char *value_row = element(k->kv, value_at(k, b, key, kv_head));
  for (int64_t i = 0; i < fsdp_min_i64(keys, run); i++, key_row += stride, value_row += stride)
    for (int64_t at = 0; at < bytes; at += 64) {
      __builtin_prefetch(key_row + at, 0, 2);
      __builtin_prefetch(value_row + at, 0, 2);
    }
}

static void attend(void *argument, int64_t index, void *scratch) {
  const attention *k = argument;
  int64_t ranges = query_ranges(k), head = index / ranges % k->H, b = index / ranges / k->H;
  // The longest rows of the triangle first, so that threads finish together.
  query_range r = query_range_of(k, b, head, ranges - 1 - index % ranges);
  int64_t end = r.position + r.count;
  query_block s = divide_scratch(k, scratch);
  find_low(k, r, s.low);
  copy_queries(k, k->q, k->Q, r, k->scale, s.rows, k->D);
  transpose_queries(s.rows, k->D, r.count, k->D, s.q);
  memset(s.out, 0, (size_t)(k->D * QUERIES) * sizeof *s.out);
  for (int i = 0; i < QUERIES; i++) s.most[i] = -FLT_MAX, s.sums[i] = 0;
  for (int64_t key = first_seen(r, s.low) / KEYS * KEYS; key < end; key += KEYS) {
    int64_t keys = fsdp_min_i64(KEYS, end - key), next = key + KEYS;
    load_keys(k, &s, b, key, keys, head / k->G);
    if (next < end) prefetch_keys(k, b, next, fsdp_min_i64(KEYS, end - next), head / k->G);
    attend_to_keys(k, &s, r, key, keys);
  }
  store_queries(k, &s, r);
}

void FSDP_CPU(attention)(const fsdp_kernel_call *call) {
  attention k = open_attention(call);
  fsdp_pool_run(call->pool, k.B * k.H * query_ranges(&k), attend, &k);
}

void FSDP_CPU(context_attention)(const fsdp_kernel_call *call) {
  FSDP_CPU(attention)(call);
}
