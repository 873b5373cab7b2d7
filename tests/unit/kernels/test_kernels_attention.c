// Causal attention, forward and backward, against a reference in double that holds whole T x T matrices.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/draws.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

static double tolerance(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? 1e-5 : 1e-2;
}

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// B, T, H, K, D: groups of 1, 4, 8; sequences below, at and above a block; head dimensions that fill no
// vector.
static const int64_t shapes[][5] = {
    {1, 1, 1, 1, 64},   {3, 17, 4, 1, 64}, {1, 128, 8, 8, 64}, {2, 65, 8, 1, 80},  {1, 200, 4, 2, 128},
    {1, 1000, 1, 1, 8}, {2, 63, 3, 3, 5},  {1, 64, 4, 4, 1},   {3, 128, 8, 2, 20}, {2, 2, 2, 1, 16},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// For windows: a sequence of a block and a bit, of several blocks, and of few tasks.
static const int64_t window_shapes[][5] = {{2, 66, 4, 2, 5}, {1, 200, 2, 1, 16}, {1, 321, 1, 1, 64}};
enum { WINDOW_SHAPES = sizeof window_shapes / sizeof *window_shapes };

typedef struct heads {
  int64_t B, T, H, K, D, Q, window;
  const double *starts; // (B, T), of documents; NULL: there are none
  // (B * T + 3, 2): dropout's draws, of which the first three rows are others'; NULL: nothing is dropped.
  const double *draws;
} heads;

#define RATE 0.3f
enum { OTHERS = 3, FIRST_HEAD = 4, DROP_KEY = 77 };

static heads heads_of(const int64_t *s) {
  return (heads){s[0], s[1], s[2], s[3], s[4], (s[2] + 2 * s[3]) * s[4], 0, NULL, NULL};
}

static fsdp_op_attrs attrs_of(heads h) {
  return (fsdp_op_attrs){.batch = h.B,
                         .seq = h.T,
                         .heads = h.H,
                         .kv_heads = h.K,
                         .head_dim = h.D,
                         .window = h.window,
                         .documents = h.starts ? h.T : 0,
                         .dropout = h.draws ? RATE : 0,
                         .drop_key = DROP_KEY,
                         .draws = h.draws ? h.B * h.T + OTHERS : 0,
                         .first_row = h.draws ? OTHERS : 0,
                         .first_head = h.draws ? FIRST_HEAD : 0,
                         .head_group = h.draws ? h.H / h.K + 1 : 0};
}

// What the probability of key s is multiplied by: the heads are the first of groups that have one more.
static double factor(heads h, int64_t b, int64_t t, int64_t head, int64_t s) {
  if (!h.draws) return 1;
  const double *draw = h.draws + 2 * (OTHERS + b * h.T + t);
  const int32_t words[2] = {(int32_t)draw[0], (int32_t)draw[1]};
  const int64_t group = h.H / h.K, whole = FIRST_HEAD + head / group * (group + 1) + head % group;
  return reference_dropout(words, DROP_KEY, whole, s, (double)RATE);
}

// First key that query t sees; t is the last.
static int64_t first_seen(heads h, int64_t b, int64_t t) {
  int64_t first = h.window > 0 && t >= h.window ? t - h.window + 1 : 0;
  return h.starts && (int64_t)h.starts[b * h.T + t] > first ? (int64_t)h.starts[b * h.T + t] : first;
}

static void add_starts(kernel_case *c, heads h) {
  if (h.starts) kernel_case_input(c, FSDP_I32, h.B * h.T, FSDP_READ, h.starts);
  if (h.draws) kernel_case_input(c, FSDP_I32, 2 * (h.B * h.T + OTHERS), FSDP_READ, h.draws);
}

// Offsets in q|k|v of position t, head or key/value head `head`; in o.
static int64_t q_at(heads h, int64_t b, int64_t t, int64_t head) {
  return (b * h.T + t) * h.Q + head * h.D;
}
static int64_t k_at(heads h, int64_t b, int64_t t, int64_t head) {
  return q_at(h, b, t, h.H + head / (h.H / h.K));
}
static int64_t v_at(heads h, int64_t b, int64_t t, int64_t head) {
  return q_at(h, b, t, h.H + h.K + head / (h.H / h.K));
}
static int64_t o_at(heads h, int64_t b, int64_t t, int64_t head) {
  return ((b * h.T + t) * h.H + head) * h.D;
}

static double dot(const double *a, const double *b, int64_t D) {
  double sum = 0;
  for (int64_t d = 0; d < D; d++) sum += a[d] * b[d];
  return sum;
}

// Probabilities of query t over the keys that it sees; returns lse.
static double probabilities(heads h, const double *qkv, int64_t b, int64_t t, int64_t head, double *p) {
  double most = -1e300, sum = 0;
  for (int64_t s = first_seen(h, b, t); s <= t; s++) {
    p[s] = dot(qkv + q_at(h, b, t, head), qkv + k_at(h, b, s, head), h.D) / sqrt((double)h.D);
    most = fmax(most, p[s]);
  }
  for (int64_t s = first_seen(h, b, t); s <= t; s++) sum += p[s] = exp(p[s] - most);
  for (int64_t s = first_seen(h, b, t); s <= t; s++) p[s] /= sum;
  return most + log(sum);
}

static void forward(heads h, const double *qkv, double *o, double *lse) {
  double *p = fsdp_alloc((size_t)h.T * sizeof *p);
  for (int64_t b = 0; b < h.B; b++)
    for (int64_t head = 0; head < h.H; head++)
      for (int64_t t = 0; t < h.T; t++) {
        lse[(b * h.H + head) * h.T + t] = probabilities(h, qkv, b, t, head, p);
        double *out = o + o_at(h, b, t, head);
        for (int64_t d = 0; d < h.D; d++) out[d] = 0;
        for (int64_t s = first_seen(h, b, t); s <= t; s++) {
          const double weight = p[s] * factor(h, b, t, head, s);
          for (int64_t d = 0; d < h.D; d++) out[d] += weight * qkv[v_at(h, b, s, head) + d];
        }
      }
  free(p);
}

static void backward(heads h, const double *qkv, const double *d_o, double *d_qkv) {
  double *p = fsdp_alloc((size_t)h.T * sizeof *p), *d_p = fsdp_alloc((size_t)h.T * sizeof *d_p);
  for (int64_t i = 0; i < h.B * h.T * h.Q; i++) d_qkv[i] = 0;
  for (int64_t b = 0; b < h.B; b++)
    for (int64_t head = 0; head < h.H; head++)
      for (int64_t t = 0; t < h.T; t++) {
        const double *d_out = d_o + o_at(h, b, t, head);
        double mean = 0;
        probabilities(h, qkv, b, t, head, p);
        for (int64_t s = first_seen(h, b, t); s <= t; s++) {
          d_p[s] = factor(h, b, t, head, s) * dot(d_out, qkv + v_at(h, b, s, head), h.D);
          mean += p[s] * d_p[s];
        }
        for (int64_t s = first_seen(h, b, t); s <= t; s++) {
          const double weight = p[s] * factor(h, b, t, head, s);
          double d_score = p[s] * (d_p[s] - mean) / sqrt((double)h.D);
          int64_t q = q_at(h, b, t, head), k = k_at(h, b, s, head), v = v_at(h, b, s, head);
          for (int64_t d = 0; d < h.D; d++) {
            d_qkv[v + d] += weight * d_out[d];
            d_qkv[q + d] += d_score * qkv[k + d];
            d_qkv[k + d] += d_score * qkv[q + d];
          }
        }
      }
  free(p), free(d_p);
}

static void check_forward(heads h, fsdp_dtype dtype) {
  kernel_case c = kernel_case_of(FSDP_OP_ATTENTION, attrs_of(h), tolerance(dtype));
  double *wide = kernel_normal(9, h.B * h.T * h.Q, 1.5); // some rows are nearly one-hot
  double *qkv = kernel_case_input(&c, dtype, h.B * h.T * h.Q, FSDP_READ, wide);
  double *o = kernel_case_output(&c, dtype, h.B * h.T * h.H * h.D);
  double *lse = kernel_case_output(&c, FSDP_F32, h.B * h.H * h.T);
  add_starts(&c, h);
  forward(h, qkv, o, lse);
  kernel_case_check(&c);
  free(wide);
}

TEST(test_attention) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s += test_stride(3)) check_forward(heads_of(shapes[s]), dtypes[d]);
}

static void check_backward(heads h, fsdp_dtype dtype) {
  int64_t N = h.B * h.T, statistics = h.B * h.H * h.T;
  kernel_case c = kernel_case_of(FSDP_OP_ATTENTION_BACKWARD, attrs_of(h), tolerance(dtype));
  double *qkv = kernel_case_input(&c, dtype, N * h.Q, FSDP_READ, NULL);
  double *o_values = fsdp_alloc((size_t)(N * h.H * h.D) * sizeof(double));
  double *lse_values = fsdp_alloc((size_t)statistics * sizeof(double));
  forward(h, qkv, o_values, lse_values);
  kernel_case_input(&c, dtype, N * h.H * h.D, FSDP_READ, o_values);
  kernel_case_input(&c, FSDP_F32, statistics, FSDP_READ, lse_values);
  double *d_o = kernel_case_input(&c, dtype, N * h.H * h.D, FSDP_READ, NULL);
  double *d_qkv = kernel_case_output(&c, dtype, N * h.Q);
  add_starts(&c, h);
  kernel_case_output(&c, FSDP_F32, statistics); // workspace
  backward(h, qkv, d_o, d_qkv);
  kernel_case_check(&c);
  free(o_values), free(lse_values);
}

TEST(test_attention_backward) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < SHAPES; s += test_stride(3)) check_backward(heads_of(shapes[s]), dtypes[d]);
}

// More keys than a task holds gradients of at a time, which are 128 of these (attention_backward.c).
TEST(test_attention_backward_ranges) {
  static const int64_t wide[] = {1, 300, 1, 1, 1000};
  for (int d = 0; d < 2; d += test_stride(2)) check_backward(heads_of(wide), dtypes[d]);
}

// Windows below, at and above a block, and around the length of the sequence.
TEST(test_windows) {
  for (int s = 0; s < WINDOW_SHAPES; s += test_stride(2)) {
    heads h = heads_of(window_shapes[s]);
    const int64_t windows[] = {1, 2, 20, 63, 64, 65, 130, h.T - 1, h.T, h.T + 1};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w += (size_t)test_stride(4))
      for (int d = 0; d < 2; d++) {
        h.window = windows[w];
        check_forward(h, dtypes[d]);
        check_backward(h, dtypes[d]);
      }
  }
}

// Gradients of more keys than a task holds at a time: a query's first range of keys need not be the first.
TEST(test_window_ranges) {
  static const int64_t windows[] = {1, 64, 65, 200, 299};
  heads h = heads_of((const int64_t[]){1, 300, 1, 1, 1000});
  for (size_t w = 0; w < sizeof windows / sizeof *windows; w += (size_t)test_stride(3)) {
    h.window = windows[w];
    for (int d = 0; d < 2; d += test_stride(2)) check_backward(h, dtypes[d]);
  }
}

// Probabilities are dropped after their sum was taken; a few rows drop none.
TEST(test_dropout) {
  for (int s = 0; s < SHAPES; s += test_stride(3)) {
    if (shapes[s][1] * shapes[s][2] * shapes[s][4] > 30000) continue; // the reference's factors take time
    heads h = heads_of(shapes[s]);
    double *draws = fsdp_alloc((size_t)(2 * (h.B * h.T + OTHERS)) * sizeof *draws);
    for (int64_t r = 0; r < h.B * h.T + OTHERS; r++) {
      uint32_t words[4];
      fsdp_random_words(5, 1, (uint64_t)r, words);
      draws[2 * r] = r % 11 == 10 ? 0 : (int32_t)(words[0] | 1);
      draws[2 * r + 1] = (int32_t)words[1];
    }
    h.draws = draws;
    h.window = s % 3 == 1 ? h.T / 2 : 0;
    check_forward(h, dtypes[s % 2]);
    check_backward(h, dtypes[(s + 1) % 2]);
    free(draws);
  }
}

// Documents of drawn lengths around `mean` tokens; the last ones are padding, of one token each.
static double *draw_starts(heads h, int64_t mean, uint64_t seed) {
  double *starts = fsdp_alloc((size_t)(h.B * h.T) * sizeof *starts);
  for (int64_t i = 0; i < h.B * h.T; i++) {
    int64_t t = i % h.T;
    uint32_t words[4];
    fsdp_random_words(seed, 3, (uint64_t)i, words);
    bool begins = t == 0 || t >= h.T - h.T / 16 || words[0] % (uint32_t)mean == 0;
    starts[i] = begins ? (double)t : starts[i - 1];
  }
  return starts;
}

// Documents shorter and longer than a block of queries, alone and with windows shorter and longer than they.
TEST(test_documents) {
  for (int s = 0; s < WINDOW_SHAPES; s++) {
    heads h = heads_of(window_shapes[s]);
    const int64_t means[] = {1, 3, 20, 90, 250}, windows[] = {0, 2, 40, 150};
    for (size_t i = 0; i < 20; i += (size_t)test_stride(7)) {
      double *starts = draw_starts(h, means[i / 4], i);
      h.starts = starts;
      h.window = windows[i % 4];
      for (int d = 0; d < 2; d++) {
        check_forward(h, dtypes[d]);
        check_backward(h, dtypes[d]);
      }
      free(starts);
    }
  }
}

// Gradients of more keys than a task holds at a time.
TEST(test_document_ranges) {
  heads h = heads_of((const int64_t[]){1, 300, 1, 1, 1000});
  for (int64_t mean = 5; mean < 400; mean *= 5 * test_stride(3)) {
    double *starts = draw_starts(h, mean, 5);
    h.starts = starts;
    check_backward(h, FSDP_F32);
    free(starts);
  }
}

typedef struct results {
  kernel_case forward, backward;
} results;

// Both directions in fp32. With `poisoned` >= 0, the key and value of that position and d_o of the last
// `unknown` positions are NaN.
static results run_both(heads h, int64_t poisoned, int64_t unknown) {
  int64_t N = h.T, width = h.H * h.D;
  double *qkv = kernel_normal(1, N * h.Q, 1), *d_o = kernel_normal(2, N * width, 1);
  if (poisoned >= 0)
    for (int64_t i = h.H * h.D; i < h.Q; i++) qkv[poisoned * h.Q + i] = NAN;
  for (int64_t i = (N - unknown) * width; i < N * width; i++) d_o[i] = NAN;
  results r = {kernel_case_of(FSDP_OP_ATTENTION, attrs_of(h), 0),
               kernel_case_of(FSDP_OP_ATTENTION_BACKWARD, attrs_of(h), 0)};
  kernel_case_input(&r.forward, FSDP_F32, N * h.Q, FSDP_READ, qkv);
  kernel_case_output(&r.forward, FSDP_F32, N * width);
  kernel_case_output(&r.forward, FSDP_F32, N * h.H);
  add_starts(&r.forward, h);
  kernel_case_run(&r.forward);
  double *made[2];
  for (int i = 0; i < 2; i++) {
    const fsdp_view *view = &r.forward.operands[1 + i];
    made[i] = fsdp_alloc((size_t)view->numel * sizeof(double));
    for (int64_t e = 0; e < view->numel; e++) made[i][e] = kernel_value(view, e);
  }
  kernel_case_input(&r.backward, FSDP_F32, N * h.Q, FSDP_READ, qkv);
  kernel_case_input(&r.backward, FSDP_F32, N * width, FSDP_READ, made[0]);
  kernel_case_input(&r.backward, FSDP_F32, N * h.H, FSDP_READ, made[1]);
  kernel_case_input(&r.backward, FSDP_F32, N * width, FSDP_READ, d_o);
  kernel_case_output(&r.backward, FSDP_F32, N * h.Q);
  add_starts(&r.backward, h);
  kernel_case_output(&r.backward, FSDP_F32, N * h.H);
  kernel_case_run(&r.backward);
  free(qkv), free(d_o), free(made[0]), free(made[1]);
  return r;
}

static void free_results(results *r) {
  kernel_case_free(&r->forward), kernel_case_free(&r->backward);
}

// A window that hides nothing: the bits of none.
TEST(test_window_of_all) {
  heads h = heads_of((const int64_t[]){1, 100, 2, 1, 20});
  results none = run_both(h, -1, 0);
  for (h.window = h.T; h.window <= h.T + 1; h.window++) {
    results all = run_both(h, -1, 0);
    for (int i = 1; i < 3; i++)
      assert_memory_equal(all.forward.operands[i].data, none.forward.operands[i].data,
                          (size_t)none.forward.operands[i].numel * 4);
    assert_memory_equal(all.backward.operands[4].data, none.backward.operands[4].data,
                        (size_t)(h.T * h.Q) * 4);
    free_results(&all);
  }
  free_results(&none);
}

// A query that sees itself alone: nothing depends on the scores, whatever is rounded, and d_v is d_o.
TEST(test_window_of_one) {
  heads h = heads_of((const int64_t[]){1, 100, 6, 6, 13});
  h.window = 1;
  results r = run_both(h, -1, 0);
  const fsdp_view *d_o = &r.backward.operands[3], *d_qkv = &r.backward.operands[4];
  for (int64_t t = 0; t < h.T; t++)
    for (int64_t head = 0; head < h.H; head++)
      for (int64_t d = 0; d < h.D; d++) {
        assert_true(kernel_value(d_qkv, q_at(h, 0, t, head) + d) == 0);
        assert_true(kernel_value(d_qkv, k_at(h, 0, t, head) + d) == 0);
        assert_true(kernel_value(d_qkv, v_at(h, 0, t, head) + d) ==
                    kernel_value(d_o, o_at(h, 0, t, head) + d));
      }
  free_results(&r);
}

// Tiles out of the window are not computed: a NaN in a key or a query's gradient spreads over the tiles that
// see some of it, and no further.
TEST(test_tiles_before_window) {
  heads h = heads_of((const int64_t[]){1, 512, 2, 1, 20});
  h.window = 70;
  int64_t far = 64 + h.window + 64, width = h.H * h.D; // tiles of 64 queries, of 64 keys
  results r = run_both(h, 0, 1);
  const fsdp_view *o = &r.forward.operands[1], *d_qkv = &r.backward.operands[4];
  assert_true(isnan(kernel_value(o, 0)));
  for (int64_t t = far; t < h.T; t++)
    for (int64_t i = 0; i < width; i++) assert_true(isfinite(kernel_value(o, t * width + i)));
  for (int64_t t = far; t < h.T - far; t++)
    for (int64_t i = 0; i < h.Q; i++) assert_true(isfinite(kernel_value(d_qkv, t * h.Q + i)));
  free_results(&r);
}

// One document in each sequence: the bits of none.
TEST(test_one_document) {
  heads h = heads_of((const int64_t[]){1, 100, 2, 1, 20});
  results none = run_both(h, -1, 0);
  double *starts = fsdp_alloc_zeroed((size_t)h.T, sizeof *starts);
  h.starts = starts;
  results one = run_both(h, -1, 0);
  for (int i = 1; i < 3; i++)
    assert_memory_equal(one.forward.operands[i].data, none.forward.operands[i].data,
                        (size_t)none.forward.operands[i].numel * 4);
  assert_memory_equal(one.backward.operands[4].data, none.backward.operands[4].data, (size_t)(h.T * h.Q) * 4);
  free_results(&one);
  free_results(&none);
  free(starts);
}

// Tiles of other documents are not computed: a NaN in the first document's key spreads over the tiles that
// see some of that document, and no further.
TEST(test_tiles_before_document) {
  heads h = heads_of((const int64_t[]){1, 512, 2, 1, 20});
  double *starts = fsdp_alloc_zeroed((size_t)h.T, sizeof *starts);
  int64_t second = 150, far = 192, width = h.H * h.D; // whole tiles of the second document begin there
  for (int64_t t = second; t < h.T; t++) starts[t] = (double)second;
  h.starts = starts;
  results r = run_both(h, 0, 0);
  const fsdp_view *o = &r.forward.operands[1], *d_qkv = &r.backward.operands[4];
  assert_true(isnan(kernel_value(o, 149 * width)));
  for (int64_t t = far; t < h.T; t++) {
    for (int64_t i = 0; i < width; i++) assert_true(isfinite(kernel_value(o, t * width + i)));
    for (int64_t i = 0; i < width; i++) assert_true(isfinite(kernel_value(d_qkv, t * h.Q + i)));
  }
  free_results(&r);
  free(starts);
}

// The reference's backward by central differences of its forward.
static void check_reference(int64_t window) {
  heads h = heads_of((const int64_t[]){1, 5, 4, 2, 3});
  h.window = window;
  int64_t size = h.B * h.T * h.Q, out = h.B * h.T * h.H * h.D;
  double *qkv = kernel_normal(1, size, 1), *d_o = kernel_normal(2, out, 1), *o = kernel_normal(3, out, 1);
  double *lse = kernel_normal(4, h.B * h.H * h.T, 1), *d_qkv = kernel_normal(5, size, 1);
  backward(h, qkv, d_o, d_qkv);
  for (int64_t i = 0; i < size; i++) {
    double kept = qkv[i], values[2];
    for (int side = 0; side < 2; side++) {
      qkv[i] = kept + (side ? -1e-5 : 1e-5);
      forward(h, qkv, o, lse);
      values[side] = dot(o, d_o, out);
    }
    qkv[i] = kept;
    assert_true(fabs((values[0] - values[1]) / 2e-5 - d_qkv[i]) < 1e-7);
  }
  free(qkv), free(d_o), free(o), free(lse), free(d_qkv);
}

TEST(test_reference_slope) {
  check_reference(0);
  check_reference(2);
}
