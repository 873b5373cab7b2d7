// Attention, RoPE and learned positions on rows in chunks and pieces (context and sequence parallelism,
// runtime/plan/mesh/rows.h), against the same ops on whole sequences: each part's results, and the sum over
// parts of what all of them add to. Padding holds numbers and changes nothing.
#include "runtime/base/check.h"
#include "runtime/plan/mesh/rows.h"
#include "tests/support/draws.h"
#include "tests/support/kernel_case.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

typedef struct shape {
  int64_t B, T, H, K, D, window; // T: positions without padding
  int parts, pieces;
} shape;

// S positions of a sequence and L of a part, both with padding; Q, KV: columns of q|k|v and of k|v.
typedef struct layout {
  shape s;
  fsdp_mesh mesh;
  fsdp_rows rows;
  int64_t S, L, Q, KV;
} layout;

static layout layout_of(shape s) {
  layout l = {.s = s, .mesh = fsdp_mesh_of(1, 1), .Q = (s.H + 2 * s.K) * s.D, .KV = 2 * s.K * s.D};
  fsdp_mesh_complete(&l.mesh);
  fsdp_mesh_resize(&l.mesh, FSDP_AXIS_CONTEXT, s.parts);
  fsdp_mesh_resize(&l.mesh, FSDP_AXIS_TENSOR, s.pieces);
  l.rows = fsdp_rows_of(&l.mesh, s.B, s.T, fsdp_mesh_axes(&l.mesh, FSDP_AXIS_CONTEXT),
                        fsdp_mesh_axes(&l.mesh, FSDP_AXIS_TENSOR));
  l.L = l.rows.local_seq;
  l.S = l.L * s.parts;
  return l;
}

static int rank_of(const layout *l, int part) {
  return fsdp_mesh_group_member(&l->mesh, l->rows.part_axes, 0, part);
}

static fsdp_op_attrs attrs_of(const layout *l, int part) {
  return (fsdp_op_attrs){.batch = l->s.B,
                         .seq = l->L,
                         .heads = l->s.H,
                         .kv_heads = l->s.K,
                         .head_dim = l->s.D,
                         .window = l->s.window,
                         .piece = l->rows.piece,
                         .chunk = l->rows.chunk,
                         .first_index = fsdp_affine_at(&l->rows.first, &l->mesh, rank_of(l, part)),
                         .second_index = fsdp_affine_at(&l->rows.second, &l->mesh, rank_of(l, part))};
}

// One of a part's rows, which holds `position` (T or more: padding) of sequence b.
typedef struct place {
  int64_t b, index, row, position;
} place;

static place place_of(const layout *l, int part, int64_t i) {
  place at = {.b = i / l->L, .index = i % l->L};
  at.row = fsdp_rows_row(&l->rows, at.b, at.index);
  at.position = fsdp_rows_position(&l->rows, &l->mesh, rank_of(l, part), at.index);
  return at;
}

// Matrices with a row of `width` for each position of each sequence: of `whole` (B, T), and one with padding.
static double *part_of(const layout *l, int part, const double *padded, int64_t width) {
  double *rows = fsdp_alloc((size_t)(l->s.B * l->L * width) * sizeof *rows);
  for (int64_t n = 0; n < l->s.B * l->L; n++) {
    place at = place_of(l, part, n);
    for (int64_t c = 0; c < width; c++)
      rows[at.row * width + c] = padded[(at.b * l->S + at.position) * width + c];
  }
  return rows;
}

static double *without_padding(const layout *l, const double *padded, int64_t width) {
  double *rows = fsdp_alloc((size_t)(l->s.B * l->s.T * width) * sizeof *rows);
  for (int64_t b = 0; b < l->s.B; b++)
    memcpy(rows + b * l->s.T * width, padded + b * l->S * width, (size_t)(l->s.T * width) * sizeof *rows);
  return rows;
}

static double *values_of(const fsdp_view *view) {
  double *values = fsdp_alloc((size_t)view->numel * sizeof *values);
  for (int64_t i = 0; i < view->numel; i++) values[i] = kernel_value(view, i);
  return values;
}

// ---- Attention

// Inputs with padding (B, S), and what whole sequences without padding give (B, T).
typedef struct whole {
  double *qkv, *d_o; // padding: numbers, and zeros
  double *o, *lse, *d_qkv;
} whole;

static kernel_case whole_backward(const shape *s, fsdp_op_attrs attrs, fsdp_dtype dtype, const double *qkv,
                                  const whole *w, const double *d_o) {
  int64_t N = s->B * s->T, Q = (s->H + 2 * s->K) * s->D;
  kernel_case c = kernel_case_of(FSDP_OP_ATTENTION_BACKWARD, attrs, 0);
  kernel_case_input(&c, dtype, N * Q, FSDP_READ, qkv);
  kernel_case_input(&c, dtype, N * s->H * s->D, FSDP_READ, w->o);
  kernel_case_input(&c, FSDP_F32, N * s->H, FSDP_READ, w->lse);
  kernel_case_input(&c, dtype, N * s->H * s->D, FSDP_READ, d_o);
  kernel_case_output(&c, dtype, N * Q);
  kernel_case_output(&c, FSDP_F32, N * s->H);
  return c;
}

static whole whole_of(const layout *l, fsdp_dtype dtype) {
  const shape *s = &l->s;
  int64_t N = s->B * s->T, width = s->H * s->D;
  whole w = {.qkv = kernel_normal(1, s->B * l->S * l->Q, 1.5),
             .d_o = kernel_normal(2, s->B * l->S * width, 1)};
  for (int64_t b = 0; b < s->B; b++)
    for (int64_t i = s->T * width; i < l->S * width; i++) w.d_o[b * l->S * width + i] = 0;
  fsdp_op_attrs attrs = {.batch = s->B, .seq = s->T, .heads = s->H, .kv_heads = s->K};
  attrs.head_dim = s->D, attrs.window = s->window;
  double *qkv = without_padding(l, w.qkv, l->Q), *d_o = without_padding(l, w.d_o, width);
  kernel_case c = kernel_case_of(FSDP_OP_ATTENTION, attrs, 0);
  kernel_case_input(&c, dtype, N * l->Q, FSDP_READ, qkv);
  kernel_case_output(&c, dtype, N * width);
  kernel_case_output(&c, FSDP_F32, N * s->H);
  kernel_case_run(&c);
  w.o = values_of(&c.operands[1]), w.lse = values_of(&c.operands[2]);
  kernel_case_free(&c);
  c = whole_backward(s, attrs, dtype, qkv, &w, d_o);
  kernel_case_run(&c);
  w.d_qkv = values_of(&c.operands[4]);
  kernel_case_free(&c);
  free(qkv), free(d_o);
  return w;
}

static void whole_free(whole *w) {
  free(w->qkv), free(w->d_o), free(w->o), free(w->lse), free(w->d_qkv);
}

// The matrix of k|v of all parts, one after the other.
static double *gathered_kv(const layout *l, const whole *w) {
  double *kv = fsdp_alloc((size_t)(l->s.B * l->S * l->KV) * sizeof *kv);
  for (int part = 0; part < l->s.parts; part++) {
    double *qkv = part_of(l, part, w->qkv, l->Q);
    for (int64_t row = 0; row < l->s.B * l->L; row++)
      memcpy(kv + (part * l->s.B * l->L + row) * l->KV, qkv + (row + 1) * l->Q - l->KV,
             (size_t)l->KV * sizeof *kv);
    free(qkv);
  }
  return kv;
}

// Which op runs: attention on rows in pieces, or context_attention with `kv`, and q in q|k|v or alone.
typedef struct run {
  const layout *l;
  const whole *w;
  int part;
  const double *kv; // NULL: attention
  int64_t width;    // columns of what q lies in: of q|k|v, or of q alone
  fsdp_dtype dtype;
  fsdp_op_attrs attrs;
} run;

// Elements of what q lies in up to the last that is accessed.
static int64_t hull_of(const run *r, int64_t N) {
  return r->kv ? (N - 1) * r->width + r->l->s.H * r->l->s.D : N * r->width;
}

static void add_qkv(kernel_case *c, const run *r) {
  const layout *l = r->l;
  int64_t N = l->s.B * l->L;
  double *qkv = part_of(l, r->part, r->w->qkv, l->Q);
  for (int64_t i = 0; r->kv && i < N * l->Q; i++)
    if (i % l->Q >= l->s.H * l->s.D) qkv[i] = NAN; // k and v are not read there
  for (int64_t n = 0; n < N; n++) memmove(qkv + n * r->width, qkv + n * l->Q, (size_t)r->width * sizeof *qkv);
  kernel_case_input(c, r->dtype, N * r->width, FSDP_READ, qkv);
  c->parts[0] = (kernel_range){0, hull_of(r, N)};
  if (r->kv) kernel_case_input(c, r->dtype, l->s.B * l->S * l->KV, FSDP_READ, r->kv);
  free(qkv);
}

static void expect_forward(const run *r, double *o, double *lse) {
  const layout *l = r->l;
  int64_t width = l->s.H * l->s.D, T = l->s.T;
  for (int64_t n = 0; n < l->s.B * l->L; n++) {
    place at = place_of(l, r->part, n);
    if (at.position >= T) continue;
    for (int64_t i = 0; i < width; i++) o[at.row * width + i] = r->w->o[(at.b * T + at.position) * width + i];
    for (int64_t h = 0; h < l->s.H; h++)
      lse[(at.b * l->s.H + h) * l->L + at.index] = r->w->lse[(at.b * l->s.H + h) * T + at.position];
  }
}

// Runs the forward, checks it, and returns what it made.
static void run_forward(const run *r, double **o, double **lse) {
  const layout *l = r->l;
  int64_t N = l->s.B * l->L;
  kernel_case c = kernel_case_of(r->kv ? FSDP_OP_CONTEXT_ATTENTION : FSDP_OP_ATTENTION, r->attrs,
                                 kernel_tolerance(r->dtype));
  add_qkv(&c, r);
  int first = c.operand_count;
  double *expected_o = kernel_case_output(&c, r->dtype, N * l->s.H * l->s.D);
  double *expected_lse = kernel_case_output(&c, FSDP_F32, N * l->s.H);
  expect_forward(r, expected_o, expected_lse);
  kernel_case_run(&c);
  *o = values_of(&c.operands[first]), *lse = values_of(&c.operands[first + 1]);
  kernel_case_check(&c);
}

// q's columns of d_qkv; with `all`, those of k and v too. Padding has zeros. The gradient of a query that has
// one key is zero, and what bf16 leaves of it is not compared.
static void expect_d_qkv(const run *r, double *d_qkv, bool all) {
  const layout *l = r->l;
  int64_t width = l->s.H * l->s.D;
  for (int64_t n = 0; n < l->s.B * l->L; n++) {
    place at = place_of(l, r->part, n);
    const double *expected = r->w->d_qkv + (at.b * l->s.T + at.position) * l->Q;
    bool padding = at.position >= l->s.T, one = at.position == 0 || l->s.window == 1;
    for (int64_t c = 0; c < (all ? l->Q : width); c++) {
      double value = padding ? 0 : one && c < width ? (r->dtype == FSDP_F32 ? 0 : NAN) : expected[c];
      d_qkv[at.row * r->width + c] = value;
    }
  }
}

static void expect_zero_padding(const run *r, const fsdp_view *d_qkv, int64_t columns) {
  for (int64_t n = 0; n < r->l->s.B * r->l->L; n++) {
    place at = place_of(r->l, r->part, n);
    for (int64_t c = 0; at.position >= r->l->s.T && c < columns; c++)
      assert_true(kernel_value(d_qkv, at.row * r->width + c) == 0);
  }
}

// Adds this part's d_kv to `sum`, and checks q's gradient (or all, if there is no kv).
static void run_backward(const run *r, const double *o, const double *lse, double *sum) {
  const layout *l = r->l;
  int64_t N = l->s.B * l->L, width = l->s.H * l->s.D;
  kernel_case c = kernel_case_of(r->kv ? FSDP_OP_CONTEXT_ATTENTION_BACKWARD : FSDP_OP_ATTENTION_BACKWARD,
                                 r->attrs, kernel_tolerance(r->dtype));
  add_qkv(&c, r);
  double *d_o = part_of(l, r->part, r->w->d_o, width);
  kernel_case_input(&c, r->dtype, N * width, FSDP_READ, o);
  kernel_case_input(&c, FSDP_F32, N * l->s.H, FSDP_READ, lse);
  kernel_case_input(&c, r->dtype, N * width, FSDP_READ, d_o);
  int first = c.operand_count;
  expect_d_qkv(r, kernel_case_output(&c, r->dtype, N * r->width), !r->kv);
  c.parts[first] = (kernel_range){0, hull_of(r, N)};
  if (r->kv) kernel_case_output(&c, r->dtype, l->s.B * l->S * l->KV);
  kernel_case_output(&c, FSDP_F32, N * l->s.H); // workspace
  kernel_case_run(&c);
  expect_zero_padding(r, &c.operands[first], r->kv ? width : l->Q);
  for (int64_t i = 0; r->kv && i < N * r->width; i++)
    if (i % r->width >= width) assert_true(isnan(kernel_value(&c.operands[first], i)));
  for (int64_t i = 0; r->kv && i < l->s.B * l->S * l->KV; i++)
    sum[i] += kernel_value(&c.operands[first + 1], i);
  kernel_case_check(&c);
  free(d_o);
}

// The sum over parts of d_kv against the whole's d_k and d_v; exactly zero where there is padding.
static void check_d_kv(const layout *l, const whole *w, const double *sum, double tolerance) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < l->s.parts * l->s.B * l->L * l->KV; i++) {
    int part = (int)(i / (l->s.B * l->L * l->KV));
    place at = place_of(l, part, i / l->KV % (l->s.B * l->L));
    int64_t c = i % l->KV;
    double value = sum[(part * l->s.B * l->L + at.row) * l->KV + c];
    if (at.position >= l->s.T) {
      assert_true(value == 0);
      continue;
    }
    double expected = w->d_qkv[(at.b * l->s.T + at.position) * l->Q + l->s.H * l->s.D + c];
    error += (value - expected) * (value - expected), size += expected * expected;
  }
  if (!(sqrt(error) <= tolerance * sqrt(size)))
    fail_msg("the sum of d_kv is off by %.3g of %.3g", sqrt(error), sqrt(size));
}

static void check_attention(shape s, fsdp_dtype dtype) {
  layout l = layout_of(s);
  whole w = whole_of(&l, dtype);
  double *kv = gathered_kv(&l, &w), *o, *lse;
  enum { IN_QKV, APART, ALONE, WAYS };
  for (int way = s.parts == 1 ? IN_QKV : APART; way < WAYS; way++) {
    double *sum = calloc((size_t)(s.B * l.S * l.KV), sizeof *sum);
    for (int part = 0; part < s.parts; part++) {
      run r = {&l, &w, part, way ? kv : NULL, way == ALONE ? s.H * s.D : l.Q, dtype, attrs_of(&l, part)};
      if (way) r.attrs.kv_seq = l.S, r.attrs.kv_parts = s.parts, r.attrs.kv_piece = l.rows.piece;
      if (way) r.attrs.out_stride = r.width;
      run_forward(&r, &o, &lse);
      run_backward(&r, o, lse, sum);
      free(o), free(lse);
    }
    if (way) check_d_kv(&l, &w, sum, 2 * kernel_tolerance(dtype)); // each part's is rounded
    free(sum);
  }
  whole_free(&w);
  free(kv);
}

TEST(test_attention_of_parts) {
  // One position; chunks of a block and a bit; pieces that end inside a chunk; padding alone in a tail.
  static const shape shapes[] = {{1, 1, 1, 1, 4, 0, 1, 1},    {2, 1, 2, 1, 4, 0, 3, 2},
                                 {1, 270, 2, 1, 16, 0, 2, 1}, {2, 300, 4, 2, 8, 0, 2, 3},
                                 {1, 33, 5, 5, 7, 0, 2, 2},   {1, 150, 2, 2, 64, 70, 1, 4},
                                 {1, 520, 2, 1, 20, 65, 4, 1}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i += (size_t)test_stride(2))
    for (int d = 0; d < 2; d++) check_attention(shapes[i], dtypes[d]);
}

TEST(test_random_parts) {
  random_source random = {.seed = 11};
  static const int64_t dims[] = {1, 3, 8, 13, 20, 64, 80};
  for (int i = 0; i < test_draws(40, 6); i++) {
    shape s = {.B = random_int(&random, 1, 3), .T = random_int(&random, 1, 200)};
    s.K = random_int(&random, 1, 3);
    s.H = s.K * random_int(&random, 1, 4);
    s.D = dims[random_int(&random, 0, 6)];
    s.window = random_int(&random, 0, 1) ? random_int(&random, 1, (int)s.T + 5) : 0;
    s.parts = random_int(&random, 1, 4), s.pieces = random_int(&random, 1, 4);
    check_attention(s, dtypes[i % 2]);
  }
}

// More keys than a task holds gradients of at a time, which are 128 of these (attention_backward.c).
TEST(test_ranges_of_parts) {
  static const shape shapes[] = {{1, 300, 1, 1, 1000, 0, 2, 3}, {1, 300, 1, 1, 1000, 65, 2, 1}};
  for (int i = 0; i < 2; i += test_stride(2)) check_attention(shapes[i], FSDP_F32);
}

// ---- RoPE and learned positions

static double *whole_result(kernel_case *c, int operand) {
  kernel_case_run(c);
  double *values = values_of(&c->operands[operand]);
  kernel_case_free(c);
  return values;
}

static void check_rope(shape s, fsdp_op_kind kind, fsdp_dtype dtype) {
  layout l = layout_of(s);
  float inv_freq[64];
  for (int i = 0; i < s.D / 2; i++) inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)s.D);
  fsdp_op_attrs attrs = {.batch = s.B, .seq = l.S, .heads = s.H, .kv_heads = s.K, .head_dim = s.D};
  attrs.inv_freq = inv_freq;
  double *qkv = kernel_normal(3, s.B * l.S * l.Q, 1);
  kernel_case c = kernel_case_of(kind, attrs, 0);
  kernel_case_input(&c, dtype, s.B * l.S * l.Q, FSDP_UPDATE, qkv);
  double *rotated = whole_result(&c, 0);
  for (int part = 0; part < s.parts; part++) {
    attrs = attrs_of(&l, part);
    attrs.inv_freq = inv_freq;
    c = kernel_case_of(kind, attrs, 0);
    double *rows = part_of(&l, part, qkv, l.Q), *expected = part_of(&l, part, rotated, l.Q);
    memcpy(kernel_case_input(&c, dtype, s.B * l.L * l.Q, FSDP_UPDATE, rows), expected,
           (size_t)(s.B * l.L * l.Q) * sizeof *expected);
    c.sparse[0] = true; // the v columns are left alone
    c.tolerance = 1e-6; // of other levels' instructions
    kernel_case_check(&c);
    free(rows), free(expected);
  }
  free(qkv), free(rotated);
}

TEST(test_rope_of_parts) {
  random_source random = {.seed = 12};
  for (int i = 0; i < test_draws(20, 6); i++) {
    shape s = {random_int(&random, 1, 3), random_int(&random, 1, 60), 2, 1, 2 * random_int(&random, 1, 9), 0,
               random_int(&random, 1, 4), random_int(&random, 1, 4)};
    check_rope(s, i % 2 ? FSDP_OP_ROPE : FSDP_OP_ROPE_BACKWARD, dtypes[i / 2 % 2]);
  }
}

// A table of M rows: C channels are the shape's D. Rows of padding keep what they have.
static void check_add_positions(const layout *l, int64_t M, const double *weight, const double *h) {
  const shape *s = &l->s;
  for (int part = 0; part < s->parts; part++) {
    fsdp_op_attrs attrs = attrs_of(l, part);
    attrs.channels = s->D, attrs.positions = M;
    kernel_case c = kernel_case_of(FSDP_OP_ADD_POSITIONS, attrs, 1e-6);
    kernel_case_input(&c, FSDP_F32, M * s->D, FSDP_READ, weight);
    double *rows = part_of(l, part, h, s->D);
    double *expected = kernel_case_input(&c, FSDP_F32, s->B * l->L * s->D, FSDP_UPDATE, rows);
    for (int64_t n = 0; n < l->s.B * l->L; n++) {
      place at = place_of(l, part, n);
      for (int64_t k = 0; at.position < M && k < s->D; k++)
        expected[at.row * s->D + k] += weight[at.position * s->D + k];
    }
    c.sparse[0] = true; // the rows of its positions
    kernel_case_check(&c);
    free(rows);
  }
}

// The sum over parts, where each is written, and added to.
static void check_positions_backward(const layout *l, int64_t M, const double *d_h, bool adds) {
  const shape *s = &l->s;
  for (int part = 0; part < s->parts; part++) {
    fsdp_op_attrs attrs = attrs_of(l, part);
    attrs.channels = s->D, attrs.positions = M;
    kernel_case c = kernel_case_of(FSDP_OP_POSITIONS_BACKWARD, attrs, 1e-6);
    double *rows = part_of(l, part, d_h, s->D);
    kernel_case_input(&c, FSDP_F32, s->B * l->L * s->D, FSDP_READ, rows);
    double *d_weight = kernel_case_result(&c, adds, FSDP_F32, M * s->D);
    for (int64_t n = 0; n < l->s.B * l->L; n++) {
      place at = place_of(l, part, n);
      for (int64_t k = 0; at.position < M && k < s->D; k++)
        d_weight[at.position * s->D + k] += d_h[(at.b * l->S + at.position) * s->D + k];
    }
    c.sparse[1] = adds;
    kernel_case_check(&c);
    free(rows);
  }
}

// Tables that end at the last position, inside padding, and after it.
TEST(test_positions_of_parts) {
  random_source random = {.seed = 13};
  for (int i = 0; i < test_draws(30, 6); i++) {
    shape s = {random_int(&random, 1, 3), random_int(&random, 1, 40), 1, 1, random_int(&random, 1, 20), 0,
               random_int(&random, 1, 4), random_int(&random, 1, 4)};
    layout l = layout_of(s);
    int64_t M = s.T + (i % 3) * ((l.S - s.T + 2) / 2);
    double *weight = kernel_normal(4, M * s.D, 1), *h = kernel_normal(5, s.B * l.S * s.D, 1);
    check_add_positions(&l, M, weight, h);
    check_positions_backward(&l, M, h, false);
    check_positions_backward(&l, M, h, true);
    free(weight), free(h);
  }
}
