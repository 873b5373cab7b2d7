// Gradients of attention in blocks (Dao, "FlashAttention-2", 2023, algorithm 2), the scores computed again
// from lse:
//
//   P   = exp(S - lse)        d_V = P^T d_O          d_P = d_O V^T
//   d_S = P * (d_P - delta)   d_Q = d_S K * scale    d_K = d_S^T Q * scale
//
// With dropout's factors M: d_P = M * (d_O V^T), and d_V of M * P.
//
// A task is one key/value head of one sequence: it alone adds to that head's d_K and d_V, in a fixed order.
// It holds them in fp32 in its scratch for as many keys as fit there (all of a usual sequence). See
// attention.h for names.
#include "kernels/cpu/attention/attention.h"

typedef struct head_block {
  float *q, *d_o;           // (QUERIES, padded_D); q scaled
  float *q_t, *d_o_t;       // (D, QUERIES), transposed
  float *p, *d_s;           // P^T and d_S^T (KEYS, QUERIES)
  float *d_q;               // (QUERIES, padded_D)
  float *k, *v, *d_k, *d_v; // (key_range, padded_D)
  float lse[QUERIES], delta[QUERIES];
  int64_t low[QUERIES]; // first key that each query sees
} head_block;

static int64_t fixed_floats(const attention *k) {
  return 3 * (QUERIES * k->padded_D + 16) + 2 * (k->D * QUERIES + 16) + 2 * (KEYS * QUERIES + 16);
}

static head_block divide_scratch(const attention *k, void *scratch) {
  head_block s;
  int64_t rows = QUERIES * k->padded_D, range = k->key_range * k->padded_D;
  s.q = scratch;
  s.d_o = scratch_after(s.q, rows);
  s.d_q = scratch_after(s.d_o, rows);
  s.q_t = scratch_after(s.d_q, rows);
  s.d_o_t = scratch_after(s.q_t, k->D * QUERIES);
  s.p = scratch_after(s.d_o_t, k->D * QUERIES);
  s.d_s = scratch_after(s.p, KEYS * QUERIES);
  s.k = scratch_after(s.d_s, KEYS * QUERIES);
  s.v = scratch_after(s.k, range);
  s.d_k = scratch_after(s.v, range);
  s.d_v = scratch_after(s.d_k, range);
  return s;
}

// P^T from S^T, and d_S^T from d_P^T, both in place; keys that a query does not see become zero.
static void differentiate_softmax(head_block *s, int64_t keys, int64_t first_key) {
  for (int64_t i = 0; i < keys; i++) {
    float *p = s->p + i * QUERIES, *d_s = s->d_s + i * QUERIES;
    int64_t hidden = first_key + i;           // queries before this column do not see the key,
    int64_t end = end_column(s->low, hidden); // nor from this one on
    for (int64_t c = first_column(hidden); c < end; c += FSDP_LANES) {
      fsdp_vf probability = vf_exp(vf_load(p + c) - vf_load(s->lse + c));
      vf_store(p + c, probability);
      vf_store(d_s + c, probability * (vf_load(d_s + c) - vf_load(s->delta + c)));
    }
    // The products below take whole tiles of keys and of queries, which reach this far to both sides.
    for (int64_t c = first_column(hidden - TILE_ROWS + 1); c < hidden; c++) p[c] = d_s[c] = 0;
    int64_t reach = end_column(s->low, hidden + TILE_ROWS - 1), tile_end = fsdp_round_up(end, TILE_ROWS);
    for (int64_t c = end; c < fsdp_min_i64(QUERIES, fsdp_max_i64(reach, tile_end)); c++) p[c] = d_s[c] = 0;
  }
}

// out (keys, padded_D) += a (keys, QUERIES) * b (QUERIES, padded_D), over the queries that see a key.
static void add_to_keys(const attention *k, const head_block *s, const float *a, const float *b, float *out,
                        int64_t keys, int64_t first_key) {
  for (int64_t i = 0; i < keys; i += TILE_ROWS) {
    int64_t rows = fsdp_min_i64(TILE_ROWS, keys - i);
    int64_t from = first_column(first_key + i), end = end_column(s->low, first_key + i + rows - 1);
    if (from >= end) continue;
    for (int64_t n = 0; n < k->padded_D; n += TILE_COLUMNS)
      tile(rows, end - from, a + i * QUERIES + from, b + from * k->padded_D + n, out + i * k->padded_D + n,
           (tile_strides){QUERIES, 1, k->padded_D, k->padded_D}, true);
  }
}

// d_q (QUERIES, padded_D) += d_S (QUERIES, keys) * K (keys, padded_D).
static void add_to_queries(const attention *k, head_block *s, const float *keys_block, int64_t keys,
                           int64_t first_key) {
  for (int64_t i = 0; i < QUERIES; i += TILE_ROWS) {
    int64_t rows = fsdp_min_i64(TILE_ROWS, QUERIES - i);
    int64_t end = fsdp_min_i64(keys, i + rows - first_key); // for the last query of these
    int64_t begin = fsdp_max_i64(0, s->low[i] - first_key); // for the first
    if (begin >= end) continue;
    for (int64_t n = 0; n < k->padded_D; n += TILE_COLUMNS)
      tile(rows, end - begin, s->d_s + begin * QUERIES + i, keys_block + begin * k->padded_D + n,
           s->d_q + i * k->padded_D + n, (tile_strides){1, QUERIES, k->padded_D, k->padded_D}, true);
  }
}

static void load_queries(const attention *k, head_block *s, query_range r) {
  int64_t width = k->padded_D, statistics = (r.b * k->H + r.head) * k->T + r.index;
  copy_queries(k, k->q, k->Q, r, k->scale, s->q, width);
  copy_queries(k, k->d_o, k->H * k->D, r, 1, s->d_o, width);
  memset(s->q + r.count * width, 0, (size_t)((QUERIES - r.count) * width) * sizeof(float));
  memset(s->d_o + r.count * width, 0, (size_t)((QUERIES - r.count) * width) * sizeof(float));
  transpose_queries(s->q, width, r.count, k->D, s->q_t);
  transpose_queries(s->d_o, width, r.count, k->D, s->d_o_t);
  memset(s->d_q, 0, (size_t)(QUERIES * width) * sizeof(float));
  for (int64_t i = 0; i < QUERIES; i++) { // rows past the last: P = exp(0 - 0), times d_O = 0
    s->lse[i] = i < r.count ? ((const float *)k->lse->data)[statistics + i] : 0;
    s->delta[i] = i < r.count ? k->delta[statistics + i] : 0;
  }
}

static void store_d_q(const attention *k, head_block *s, query_range r, bool add) {
  for (int64_t i = 0; i < r.count; i++) {
    int64_t at = query_at(k, r.b, r.index + i, r.head, k->Q);
    float *d_q = s->d_q + i * k->padded_D;
    for (int64_t d = 0; d < k->D; d++) d_q[d] *= k->scale;
    if (add) { // an earlier range of keys has stored its part
      const float *old = load(k->d_q, at, k->D, s->q);
      for (int64_t d = 0; d < k->D; d++) d_q[d] += old[d];
    }
    store(k->d_q, at, k->D, d_q);
  }
}

// Everything between `keys` keys from `first` on and the queries of a range.
static void differentiate_queries(const attention *k, head_block *s, query_range r, int64_t first,
                                  int64_t keys_count) {
  int64_t width = k->padded_D, seen = first_seen(r, s->low);
  int64_t end = fsdp_min_i64(first + keys_count, r.position + r.count);
  int64_t skipped = fsdp_max_i64(0, seen - first) / KEYS * KEYS;
  load_queries(k, s, r);
  for (int64_t key = first + skipped; key < end; key += KEYS) {
    int64_t keys = fsdp_min_i64(KEYS, end - key), at = (key - first) * width, first_key = key - r.position;
    product_of_keys(k, s->low, s->k + at, width, s->q_t, s->p, keys, first_key);
    product_of_keys(k, s->low, s->v + at, width, s->d_o_t, s->d_s, keys, first_key);
    if (k->drop.draws) drop_probabilities(k, r, key, keys, 0, QUERIES, s->d_s);
    differentiate_softmax(s, keys, first_key);
    if (k->drop.draws) drop_probabilities(k, r, key, keys, 0, QUERIES, s->p);
    add_to_keys(k, s, s->p, s->d_o, s->d_v + at, keys, first_key);
    add_to_keys(k, s, s->d_s, s->q, s->d_k + at, keys, first_key);
    add_to_queries(k, s, s->k + at, keys, first_key);
  }
  store_d_q(k, s, r, seen < first);
}

// Everything between `range` keys from `first` on and the queries that see them.
static void differentiate_range(const attention *k, head_block *s, int64_t b, int64_t kv_head, int64_t first,
                                int64_t range) {
  for (int64_t head = kv_head * k->G; head < (kv_head + 1) * k->G; head++)
    for (int64_t i = 0; i < query_ranges(k); i++) {
      query_range r = query_range_of(k, b, head, i);
      if (r.position + r.count <= first) continue;
      find_low(k, r, s->low);
      if (r.position + s->low[0] < first + range) differentiate_queries(k, s, r, first, range);
    }
}

static void differentiate(void *argument, int64_t index, void *scratch) {
  const attention *k = argument;
  int64_t b = index / k->K, kv_head = index % k->K, width = k->padded_D;
  head_block s = divide_scratch(k, scratch);
  for (int64_t first = 0; first < k->S; first += k->key_range) {
    int64_t range = fsdp_min_i64(k->key_range, k->S - first);
    copy_keys(k, b, kv_head, first, range, s.k, width);
    copy_keys(k, b, k->K + kv_head, first, range, s.v, width);
    memset(s.d_k, 0, (size_t)(range * width) * sizeof(float));
    memset(s.d_v, 0, (size_t)(range * width) * sizeof(float));
    differentiate_range(k, &s, b, kv_head, first, range);
    for (int64_t i = 0; i < range; i++) {
      store(k->d_kv, key_at(k, b, first + i, kv_head), k->D, s.d_k + i * width);
      store(k->d_kv, value_at(k, b, first + i, kv_head), k->D, s.d_v + i * width);
    }
  }
}

enum { CHAINS = 4 }; // sums at a time: each of their additions waits for the one before

// Sums the channels in their order, as tile.h does: of a query that sees one key the delta is d_P, to the
// bit, and the gradient of its score zero.
static void sum_delta(void *argument, int64_t n, void *scratch) {
  const attention *k = argument;
  int64_t b = n / k->T, t = n % k->T, D = k->D;
  float *o_buffer = scratch, *d_o_buffer = scratch_after(o_buffer, CHAINS * D);
  for (int64_t head = 0; head < k->H; head += CHAINS) {
    const int64_t at = query_at(k, b, t, head, k->H * D), heads = fsdp_min_i64(CHAINS, k->H - head);
    const float *o = load(k->o, at, heads * D, o_buffer), *d_o = load(k->d_o, at, heads * D, d_o_buffer);
    float sums[CHAINS] = {0};
    for (int64_t d = 0; d < D; d++)
      for (int64_t i = 0; i < heads; i++) sums[i] += o[i * D + d] * d_o[i * D + d];
    for (int64_t i = 0; i < heads; i++) k->delta[(b * k->H + head + i) * k->T + t] = sums[i];
  }
}

void FSDP_CPU(attention_backward)(const fsdp_kernel_call *call) {
  attention k = open_attention(call);
  k.delta = fsdp_kernel_workspace(call)->data;
  int64_t range =
      ((int64_t)(FSDP_POOL_SCRATCH_BYTES / sizeof(float)) - fixed_floats(&k) - 64) / (4 * k.padded_D);
  k.key_range = fsdp_min_i64(fsdp_round_up(k.S, KEYS), range / KEYS * KEYS);
  FSDP_CHECK(k.key_range > 0, "head dimension %lld exceeds the scratch", (long long)k.D);
  fsdp_pool_run(call->pool, k.B * k.T, sum_delta, &k);
  fsdp_pool_run(call->pool, k.B * k.K, differentiate, &k);
  if (call->attrs->rotates_back) FSDP_CPU(rotate_back)(call, k.d_q);
}

void FSDP_CPU(context_attention_backward)(const fsdp_kernel_call *call) {
  FSDP_CPU(attention_backward)(call);
}
