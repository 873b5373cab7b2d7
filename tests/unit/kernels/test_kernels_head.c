// The head on shards of the vocabulary (head_logits, head_loss, head_backward) against naive references in
// double, and all shards together against the kernel of the whole vocabulary.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "tests/support/draws.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

// N rows, C channels, V real entries of the vocabulary, in `ranks` shards of `local` rows of the weight.
typedef struct sizes {
  int64_t N, C, V, local, ranks;
} sizes;

static const sizes shapes[] = {
    {1, 8, 257, 257, 1},     {17, 33, 257, 129, 2}, // the last entry is padding
    {17, 33, 257, 64, 6},                           // a shard with one entry, and one of padding alone
    {6, 16, 32001, 4001, 9}, {7, 5, 3, 2, 3},       {3, 4, 5, 1, 5},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

// The whole head, as every shard's tests see it.
typedef struct head {
  sizes s;
  fsdp_dtype dtype;
  double *x, *weight, *targets; // (N, C), (ranks * local, C) with zeros from V on, (N)
  double count;
  double *learned;           // (N): what a row's part of the loss is divided by; NULL: nothing
  double *logits, *d_logits; // reference: (N, ranks * local), -inf and 0 from V on
  double loss;
  double *stats;    // (ranks, N, 3), as the kernels made them
  double *products; // (ranks, N, local), likewise
} head;

static double *zeros(int64_t count) {
  return fsdp_alloc_zeroed((size_t)count, sizeof(double));
}

static void round_to(fsdp_dtype dtype, double *values, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    float value = (float)values[i];
    values[i] = (double)(dtype == FSDP_F32 ? value : fsdp_bf16_to_f32(fsdp_bf16_from_f32(value)));
  }
}

// The reference from x, weight and targets.
static void compute(head *h) {
  const sizes *s = &h->s;
  int64_t width = s->ranks * s->local;
  for (int64_t n = 0; n < s->N; n++) {
    double *logits = h->logits + n * width, *d_logits = h->d_logits + n * width, most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < width; v++) {
      logits[v] = v < s->V ? 0 : -INFINITY;
      for (int64_t c = 0; c < s->C; c++) logits[v] += h->x[n * s->C + c] * h->weight[v * s->C + c];
      most = fmax(most, logits[v]);
    }
    if ((int)h->targets[n] == FSDP_TARGET_IGNORED) continue;
    for (int64_t v = 0; v < s->V; v++) sum += exp(logits[v] - most);
    const double divisor = fmax(h->count, 1) * (h->learned ? h->learned[n] : 1);
    h->loss += (log(sum) + most - logits[(int64_t)h->targets[n]]) / divisor;
    for (int64_t v = 0; v < s->V; v++)
      d_logits[v] = (exp(logits[v] - most) / sum - (v == (int64_t)h->targets[n])) / divisor;
  }
}

// x, weight (V, C) and targets become the head's.
static head head_of(sizes s, fsdp_dtype dtype, double *x, double *weight, double *targets, double count) {
  int64_t width = s.ranks * s.local;
  head h = {.s = s, .dtype = dtype, .x = x, .targets = targets, .count = count, .weight = zeros(width * s.C)};
  memcpy(h.weight, weight, (size_t)(s.V * s.C) * sizeof *weight);
  free(weight);
  round_to(dtype, h.x, s.N * s.C);
  round_to(dtype, h.weight, s.V * s.C);
  h.logits = zeros(s.N * width), h.d_logits = zeros(s.N * width);
  h.stats = zeros(s.ranks * s.N * 3), h.products = zeros(s.N * width);
  compute(&h);
  return h;
}

static void head_free(head *h) {
  free(h->x), free(h->weight), free(h->targets), free(h->logits), free(h->d_logits), free(h->stats);
  free(h->products), free(h->learned);
}

// Every fifth target is ignored; the first is the last entry of the vocabulary.
static head drawn_head(sizes s, fsdp_dtype dtype, double count) {
  double *targets = zeros(s.N);
  for (int64_t n = 0; n < s.N; n++)
    targets[n] = n % 5 == 3 ? FSDP_TARGET_IGNORED : (double)((n * 31 + s.V - 1) % s.V);
  return head_of(s, dtype, kernel_normal(1, s.N * s.C, 1), kernel_normal(2, s.V * s.C, 0.3), targets, count);
}

static fsdp_op_attrs attrs_of(const head *h, int64_t rank) {
  return (fsdp_op_attrs){.batch = 1,
                         .seq = h->s.N,
                         .channels = h->s.C,
                         .vocabulary = h->s.local,
                         .first_index = rank * h->s.local,
                         .extent = h->s.V,
                         .ranks = h->s.ranks,
                         .loss_of_documents = h->learned != NULL};
}

// The columns of a shard out of rows as wide as all of them.
static void take_shard(const head *h, int64_t rank, const double *rows, double *shard) {
  int64_t local = h->s.local, width = h->s.ranks * local;
  for (int64_t n = 0; n < h->s.N; n++)
    memcpy(shard + n * local, rows + n * width + rank * local, (size_t)local * sizeof *shard);
}

static void copy_result(const fsdp_view *view, double *out) {
  for (int64_t i = 0; i < view->numel; i++) out[i] = kernel_value(view, i);
}

// Checks a shard's logits and statistics, and keeps what the kernel made for the ops after it.
static void check_logits(head *h, int64_t rank) {
  int64_t N = h->s.N, C = h->s.C, local = h->s.local, first = rank * local;
  kernel_case c = kernel_case_of(FSDP_OP_HEAD_LOGITS, attrs_of(h, rank), 1e-5);
  kernel_case_input(&c, h->dtype, N * C, FSDP_READ, h->x);
  kernel_case_input(&c, h->dtype, local * C, FSDP_READ, h->weight + first * C);
  kernel_case_input(&c, FSDP_I32, N, FSDP_READ, h->targets);
  double *logits = kernel_case_output(&c, FSDP_F32, N * local);
  double *stats = kernel_case_output(&c, FSDP_F32, N * 3);
  take_shard(h, rank, h->logits, logits);
  for (int64_t n = 0; n < N; n++) {
    double most = -INFINITY, sum = 0, target = h->targets[n] - (double)first;
    for (int64_t v = 0; v < local; v++) most = fmax(most, logits[n * local + v]);
    for (int64_t v = 0; v < local && first < h->s.V; v++) sum += exp(logits[n * local + v] - most);
    stats[n * 3] = most, stats[n * 3 + 1] = sum;
    stats[n * 3 + 2] =
        target >= 0 && target < (double)local ? logits[n * local + (int64_t)target] : -INFINITY;
  }
  kernel_case_run(&c);
  copy_result(&c.operands[3], h->products + rank * N * local);
  copy_result(&c.operands[4], h->stats + rank * N * 3);
  kernel_case_check(&c);
}

static void check_loss(const head *h, bool update) {
  kernel_case c = kernel_case_of(FSDP_OP_HEAD_LOSS, attrs_of(h, 0), 1e-5);
  kernel_case_input(&c, FSDP_F32, h->s.ranks * h->s.N * 3, FSDP_READ, h->stats);
  kernel_case_input(&c, FSDP_I32, h->s.N, FSDP_READ, h->targets);
  kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &h->count);
  kernel_case_result(&c, update, FSDP_F32, 1)[0] += h->loss;
  if (h->learned) kernel_case_input(&c, FSDP_I32, h->s.N, FSDP_READ, h->learned);
  kernel_case_check(&c);
}

// Padding's rows of the weight's gradient: zero, or what they were.
static void expect_padding(const head *h, const kernel_case *c, int64_t first) {
  const float *initial = c->initial[8];
  for (int64_t v = fsdp_max_i64(0, h->s.V - first); v < h->s.local; v++)
    for (int64_t i = v * h->s.C; i < (v + 1) * h->s.C; i++)
      assert_true(kernel_value(&c->operands[8], i) ==
                  (c->operands[8].access == FSDP_UPDATE ? (double)initial[i] : 0));
}

// Checks a shard's gradients; copies d_x and d_weight out of the kernel unless they are NULL.
static void check_backward(const head *h, int64_t rank, bool update, double *d_x_out, double *d_weight_out) {
  int64_t N = h->s.N, C = h->s.C, local = h->s.local, first = rank * local;
  kernel_case c = kernel_case_of(FSDP_OP_HEAD_BACKWARD, attrs_of(h, rank), kernel_tolerance(h->dtype));
  kernel_case_input(&c, FSDP_F32, h->s.ranks * N * 3, FSDP_READ, h->stats);
  kernel_case_input(&c, FSDP_I32, N, FSDP_READ, h->targets);
  kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &h->count);
  kernel_case_input(&c, h->dtype, N * C, FSDP_READ, h->x);
  kernel_case_input(&c, h->dtype, local * C, FSDP_READ, h->weight + first * C);
  kernel_case_result(&c, update, FSDP_F32, 1)[0] += h->loss;
  double *logits = kernel_case_input(&c, FSDP_F32, N * local, FSDP_UPDATE, h->products + rank * N * local);
  double *d_x = kernel_case_result(&c, update, h->dtype, N * C);
  double *d_weight = kernel_case_result(&c, update, update ? FSDP_F32 : h->dtype, local * C);
  if (h->learned) kernel_case_input(&c, FSDP_I32, N, FSDP_READ, h->learned);
  take_shard(h, rank, h->d_logits, logits);
  for (int64_t n = 0; n < N; n++)
    for (int64_t v = 0; v < local; v++)
      for (int64_t i = 0; i < C; i++) {
        d_x[n * C + i] += logits[n * local + v] * h->weight[(first + v) * C + i];
        d_weight[v * C + i] += logits[n * local + v] * h->x[n * C + i];
      }
  // bf16 gradients lie in half of each row; of the products they say the same.
  for (int64_t i = 0; h->dtype == FSDP_BF16 && i < N * local; i++) logits[i] = NAN;
  kernel_case_run(&c);
  expect_padding(h, &c, first);
  if (d_x_out) copy_result(&c.operands[7], d_x_out), copy_result(&c.operands[8], d_weight_out);
  kernel_case_check(&c);
}

static double distance(const double *a, const double *b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sqrt(sum);
}

static double norm(const double *a, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; i++) sum += a[i] * a[i];
  return sqrt(sum);
}

// The sum of the shards' d_x, and their rows of d_weight, against the kernel of the whole vocabulary.
static void expect_whole(const head *h, const double *d_x_parts, const double *d_weight) {
  int64_t N = h->s.N, C = h->s.C, V = h->s.V;
  fsdp_op_attrs attrs = {.batch = 1,
                         .seq = N,
                         .channels = C,
                         .vocabulary = V,
                         .chunk_rows = N,
                         .loss_of_documents = h->learned != NULL};
  kernel_case c = kernel_case_of(FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD, attrs, 0);
  kernel_case_input(&c, h->dtype, N * C, FSDP_READ, h->x);
  kernel_case_input(&c, h->dtype, V * C, FSDP_READ, h->weight);
  kernel_case_input(&c, FSDP_I32, N, FSDP_READ, h->targets);
  kernel_case_input(&c, FSDP_F32, 1, FSDP_READ, &h->count);
  kernel_case_output(&c, FSDP_F32, 1);
  kernel_case_output(&c, h->dtype, N * C);
  kernel_case_output(&c, h->dtype, V * C);
  if (h->learned) kernel_case_input(&c, FSDP_I32, N, FSDP_READ, h->learned);
  kernel_case_output(&c, FSDP_F32, N * V);
  kernel_case_run(&c);
  double *sum = zeros(N * C), *d_x = zeros(N * C), *whole = zeros(V * C);
  copy_result(&c.operands[5], d_x), copy_result(&c.operands[6], whole);
  for (int64_t rank = 0; rank < h->s.ranks; rank++)
    for (int64_t i = 0; i < N * C; i++) sum[i] += d_x_parts[rank * N * C + i];
  double tolerance = kernel_tolerance(h->dtype), parts = norm(d_x_parts, h->s.ranks * N * C);
  assert_true(fabs(kernel_value(&c.operands[4], 0) - h->loss) <= 1e-5 * h->loss);
  assert_true(distance(sum, d_x, N * C) <= tolerance * parts);
  assert_true(distance(d_weight, whole, V * C) <= tolerance * norm(whole, V * C));
  kernel_case_free(&c);
  free(sum), free(d_x), free(whole);
}

static void check_head(head h) {
  int64_t N = h.s.N, C = h.s.C, local = h.s.local;
  double *d_x = zeros(h.s.ranks * N * C), *d_weight = zeros(h.s.ranks * local * C);
  for (int64_t rank = 0; rank < h.s.ranks; rank++) check_logits(&h, rank);
  for (int update = 0; update < 2; update++) check_loss(&h, update);
  for (int64_t rank = 0; rank < h.s.ranks; rank++) {
    check_backward(&h, rank, true, NULL, NULL);
    check_backward(&h, rank, false, d_x + rank * N * C, d_weight + rank * local * C);
  }
  expect_whole(&h, d_x, d_weight);
  head_free(&h);
  free(d_x), free(d_weight);
}

TEST(test_shards) {
  for (int d = 0; d < 2; d++)
    for (int shape = 0; shape < SHAPES; shape += test_stride(2))
      check_head(drawn_head(shapes[shape], dtypes[d], 11));
  check_head(drawn_head(shapes[2], FSDP_F32, 0)); // no target counted anywhere: the divisor is 1
}

// The means over documents: a row's part is divided by the targets of its own.
TEST(test_documents) {
  for (int shape = 0; shape < SHAPES; shape += test_stride(2)) {
    head h = drawn_head(shapes[shape], dtypes[shape % 2], 3);
    h.learned = zeros(h.s.N);
    for (int64_t n = 0; n < h.s.N; n++) h.learned[n] = (double)(1 + n % 7);
    h.loss = 0;
    memset(h.d_logits, 0, (size_t)(h.s.N * h.s.ranks * h.s.local) * sizeof *h.d_logits);
    compute(&h);
    check_head(h);
  }
}

// Logits near 30000, near -30000, and far apart, all of them integers: no exponential overflows, and none of
// the largest vanishes.
TEST(test_large_logits) {
  enum { N = 4, V = 11 };
  const double rows[N][2] = {{30000, 1}, {-30000, 1}, {1, 900}, {30000, 0}};
  double *x = zeros(N * 2), *weight = zeros(V * 2), *targets = zeros(N);
  for (int n = 0; n < N; n++) x[n * 2] = rows[n][0], x[n * 2 + 1] = rows[n][1], targets[n] = n * 3;
  for (int v = 0; v < V; v++) weight[v * 2] = 1, weight[v * 2 + 1] = v * 7 % V - 5;
  check_head(head_of((sizes){N, 2, V, 3, 5}, FSDP_F32, x, weight, targets, N));
}

// Nothing but ignored targets: no loss, no gradient.
TEST(test_all_ignored) {
  sizes s = {5, 8, 13, 7, 2};
  double *targets = zeros(s.N);
  for (int n = 0; n < s.N; n++) targets[n] = FSDP_TARGET_IGNORED;
  head h = head_of(s, FSDP_F32, kernel_normal(1, s.N * s.C, 1), kernel_normal(2, s.V * s.C, 1), targets, 5);
  assert_true(h.loss == 0);
  check_head(h);
}
