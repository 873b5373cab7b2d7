// Embedding, RMSNorm, RoPE and SwiGLU against naive references in double.
#include "runtime/base/check.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

#include <math.h>

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};
static const int64_t shapes[][3] = {{1, 1, 1}, {1, 17, 80}, {3, 5, 257}, {2, 33, 512}}; // B, T, C

static fsdp_op_attrs rows_attrs(const int64_t *shape) {
  return (fsdp_op_attrs){.batch = shape[0], .seq = shape[1], .channels = shape[2], .eps = 1e-5f};
}

static void expect_rmsnorm(const double *h, const double *weight, double *y, double *rstd, int64_t N,
                           int64_t C) {
  for (int64_t n = 0; n < N; n++) {
    double sum = 0;
    for (int64_t c = 0; c < C; c++) sum += h[n * C + c] * h[n * C + c];
    rstd[n] = 1 / sqrt(sum / (double)C + (double)1e-5f);
    for (int64_t c = 0; c < C; c++) y[n * C + c] = weight[c] * h[n * C + c] * rstd[n];
  }
}

TEST(test_rmsnorm) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < 4; s++) {
      int64_t N = shapes[s][0] * shapes[s][1], C = shapes[s][2];
      kernel_case c = kernel_case_of(FSDP_OP_RMSNORM, rows_attrs(shapes[s]), kernel_tolerance(dtypes[d]));
      double *h = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
      double *weight = kernel_case_input(&c, dtypes[d], C, FSDP_READ, NULL);
      double *y = kernel_case_output(&c, dtypes[d], N * C), *rstd = kernel_case_output(&c, FSDP_F32, N);
      expect_rmsnorm(h, weight, y, rstd, N, C);
      kernel_case_check(&c);
    }
}

TEST(test_add_rmsnorm) {
  for (int d = 0; d < 2; d++)
    for (int s = 0; s < 4; s++) {
      int64_t N = shapes[s][0] * shapes[s][1], C = shapes[s][2];
      kernel_case c = kernel_case_of(FSDP_OP_ADD_RMSNORM, rows_attrs(shapes[s]), kernel_tolerance(dtypes[d]));
      double *x = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
      double *delta = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
      double *weight = kernel_case_input(&c, dtypes[d], C, FSDP_READ, NULL);
      double *h = kernel_case_output(&c, dtypes[d], N * C);
      double *y = kernel_case_output(&c, dtypes[d], N * C), *rstd = kernel_case_output(&c, FSDP_F32, N);
      for (int64_t i = 0; i < N * C; i++) h[i] = x[i] + delta[i];
      expect_rmsnorm(h, weight, y, rstd, N, C);
      kernel_case_check(&c);
    }
}

// Central difference of sum(d_y * y) by h[n, c]: only row n matters.
static double rmsnorm_slope(double *h, const double *weight, const double *d_y, int64_t C, int64_t c) {
  double kept = h[c], values[2];
  for (int side = 0; side < 2; side++) {
    double sum = 0, value = 0;
    h[c] = kept + (side ? -1e-4 : 1e-4);
    for (int64_t i = 0; i < C; i++) sum += h[i] * h[i];
    for (int64_t i = 0; i < C; i++)
      value += d_y[i] * weight[i] * h[i] / sqrt(sum / (double)C + (double)1e-5f);
    values[side] = value;
  }
  h[c] = kept;
  return (values[0] - values[1]) / 2e-4;
}

TEST(test_rmsnorm_backward) {
  for (int d = 0; d < 2; d++)
    for (int update = 0; update < 2; update++)
      for (int s = 0; s < 3; s++) {
        int64_t N = shapes[s][0] * shapes[s][1], C = shapes[s][2];
        if (C == 1) continue; // the gradient of a single normalised channel cancels to rounding
        fsdp_dtype weight_dtype = update ? FSDP_F32 : dtypes[d]; // both are allowed
        kernel_case c =
            kernel_case_of(FSDP_OP_RMSNORM_BACKWARD, rows_attrs(shapes[s]), kernel_tolerance(dtypes[d]));
        double *h = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
        double *rstd_values = kernel_normal(1, N, 1), *y = kernel_normal(1, N * C, 1),
               *ones = kernel_normal(1, C, 1);
        expect_rmsnorm(h, ones, y, rstd_values, N, C);
        double *rstd = kernel_case_input(&c, FSDP_F32, N, FSDP_READ, rstd_values);
        double *weight = kernel_case_input(&c, dtypes[d], C, FSDP_READ, NULL);
        double *d_y = kernel_case_input(&c, dtypes[d], N * C, FSDP_READ, NULL);
        double *d_h = kernel_case_result(&c, update, dtypes[d], N * C);
        double *d_weight = kernel_case_result(&c, update, weight_dtype, C);
        for (int64_t i = 0; i < N * C; i++) {
          int64_t row = i / C * C;
          d_h[i] += rmsnorm_slope(h + row, weight, d_y + row, C, i % C);
          d_weight[i % C] += d_y[i] * h[i] * rstd[i / C];
        }
        kernel_case_check(&c);
        free(rstd_values), free(y), free(ones);
      }
}

static double *tokens_of(int64_t N, int64_t V) {
  double *tokens = fsdp_alloc((size_t)N * sizeof *tokens);
  for (int64_t n = 0; n < N; n++) tokens[n] = (double)(n * n * 7 % V);
  tokens[N - 1] = (double)(V - 1);
  return tokens;
}

static const int64_t vocabularies[] = {1, 257, 32001};

TEST(test_embedding) {
  for (int d = 0; d < 4; d++) // weight and activations each in both dtypes
    for (int v = 0; v < 3; v++) {
      int64_t N = 3 * 17, C = 33, V = vocabularies[v];
      fsdp_op_attrs attrs = {.batch = 3, .seq = 17, .channels = C, .vocabulary = V};
      kernel_case c = kernel_case_of(FSDP_OP_EMBEDDING, attrs, d ? 1e-2 : 0);
      double *drawn = tokens_of(N, V), *tokens = kernel_case_input(&c, FSDP_I32, N, FSDP_READ, drawn);
      double *weight = kernel_case_input(&c, dtypes[d / 2], V * C, FSDP_READ, NULL);
      double *h = kernel_case_output(&c, dtypes[d % 2], N * C);
      for (int64_t i = 0; i < N * C; i++) h[i] = weight[(int64_t)tokens[i / C] * C + i % C];
      c.sparse[1] = true;
      kernel_case_check(&c);
      free(drawn);
    }
}

TEST(test_embedding_backward) {
  for (int d = 0; d < 4; d++)
    for (int update = 0; update < 2; update++)
      for (int v = 0; v < 3; v++) {
        int64_t N = 3 * 17, C = 33, V = vocabularies[v];
        fsdp_op_attrs attrs = {.batch = 3, .seq = 17, .channels = C, .vocabulary = V};
        int64_t padding = v > 0 ? 28 : -1; // the token at the third position
        attrs.padding_token = padding + 1;
        kernel_case c = kernel_case_of(FSDP_OP_EMBEDDING_BACKWARD, attrs, kernel_tolerance(dtypes[d > 0]));
        double *drawn = tokens_of(N, V), *tokens = kernel_case_input(&c, FSDP_I32, N, FSDP_READ, drawn);
        double *d_h = kernel_case_input(&c, dtypes[d / 2], N * C, FSDP_READ, NULL);
        double *d_weight = kernel_case_result(&c, update, dtypes[d % 2], V * C);
        for (int64_t i = 0; i < N * C; i++)
          if ((int64_t)tokens[i / C] != padding) d_weight[(int64_t)tokens[i / C] * C + i % C] += d_h[i];
        c.sparse[2] = update;
        kernel_case_check(&c);
        free(drawn);
      }
}

// Ranks that hold 0, some and only padded rows of a table of 10.
static const int64_t first_rows[] = {0, 4, 8, 12};
enum { TABLE_ROWS = 10, HELD_ROWS = 4 };

// The weight is some rows of a table: what the ranks give sums up to what the whole table gives.
TEST(test_embedding_of_some_rows) {
  for (int d = 0; d < 2; d++)
    for (int r = 0; r < 4; r++) {
      int64_t N = 40, C = 19, V = HELD_ROWS, first = first_rows[r];
      fsdp_op_attrs attrs = {
          .batch = 2, .seq = 20, .channels = C, .vocabulary = V, .first_index = first, .extent = TABLE_ROWS};
      kernel_case c = kernel_case_of(FSDP_OP_EMBEDDING, attrs, 0);
      double *drawn = tokens_of(N, TABLE_ROWS),
             *tokens = kernel_case_input(&c, FSDP_I32, N, FSDP_READ, drawn);
      double *weight = kernel_case_input(&c, dtypes[d], V * C, FSDP_READ, NULL);
      double *h = kernel_case_output(&c, dtypes[d], N * C);
      for (int64_t i = 0; i < N * C; i++) {
        int64_t row = (int64_t)tokens[i / C] - first;
        h[i] = row >= 0 && row < V ? weight[row * C + i % C] : 0;
      }
      c.sparse[1] = true;
      kernel_case_check(&c);
      free(drawn);
    }
}

TEST(test_embedding_backward_of_some_rows) {
  for (int update = 0; update < 2; update++)
    for (int r = 0; r < 4; r++) {
      int64_t N = 40, C = 19, V = HELD_ROWS, first = first_rows[r];
      fsdp_op_attrs attrs = {
          .batch = 2, .seq = 20, .channels = C, .vocabulary = V, .first_index = first, .extent = TABLE_ROWS};
      attrs.padding_token = 1 + 7; // the token at the second position
      kernel_case c = kernel_case_of(FSDP_OP_EMBEDDING_BACKWARD, attrs, 1e-5);
      double *drawn = tokens_of(N, TABLE_ROWS),
             *tokens = kernel_case_input(&c, FSDP_I32, N, FSDP_READ, drawn);
      double *d_h = kernel_case_input(&c, FSDP_F32, N * C, FSDP_READ, NULL);
      double *d_weight = kernel_case_result(&c, update, FSDP_F32, V * C);
      for (int64_t i = 0; i < N * C; i++) {
        int64_t row = (int64_t)tokens[i / C] - first;
        if (row >= 0 && row < V && row + first != 7) d_weight[row * C + i % C] += d_h[i];
      }
      c.sparse[2] = update;
      kernel_case_check(&c);
      free(drawn);
    }
}

static void rotate_head(double *x, int64_t D, int64_t t, const float *inv_freq, double direction) {
  for (int64_t i = 0; i < D / 2; i++) {
    double angle = (double)((float)t * inv_freq[i]), a = x[i], b = x[i + D / 2];
    x[i] = a * cos(angle) - b * sin(angle) * direction;
    x[i + D / 2] = b * cos(angle) + a * sin(angle) * direction;
  }
}

// Starts of documents of 5 positions and, in the next sequence, of 6.
static double *add_starts(kernel_case *c, int64_t B) {
  int64_t positions = c->attrs.documents = c->attrs.first_index + c->attrs.seq + 2;
  double *starts = fsdp_alloc((size_t)(B * positions) * sizeof *starts);
  for (int64_t i = 0; i < B * positions; i++)
    starts[i] = (double)(i % positions - i % positions % (5 + i / positions));
  double *read = kernel_case_input(c, FSDP_I32, B * positions, FSDP_READ, starts);
  free(starts);
  return read;
}

static void check_rope(bool documents) {
  static const int64_t rope_shapes[][5] = {
      {1, 1, 1, 1, 2}, {3, 17, 4, 1, 64}, {2, 128, 6, 2, 80}, {1, 9, 8, 8, 128}, {1, 5, 40, 8, 128}};
  for (int d = 0; d < 2; d++)
    for (int direction = 1; direction >= -1; direction -= 2)
      for (int s = 0; s < 5; s++) {
        const int64_t *shape = rope_shapes[s];
        int64_t B = shape[0], T = shape[1], H = shape[2], K = shape[3], D = shape[4], Q = (H + 2 * K) * D;
        float inv_freq[64];
        for (int64_t i = 0; i < D / 2; i++) inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)D);
        fsdp_op_attrs attrs = {
            .batch = B, .seq = T, .heads = H, .kv_heads = K, .head_dim = D, .inv_freq = inv_freq};
        attrs.first_index = s == 4 && !documents ? 1000003 : s % 2 ? 3 : 0; // many turns
        kernel_case c = kernel_case_of(direction > 0 ? FSDP_OP_ROPE : FSDP_OP_ROPE_BACKWARD, attrs,
                                       kernel_tolerance(dtypes[d]));
        double *qkv = kernel_case_input(&c, dtypes[d], B * T * Q, FSDP_UPDATE, NULL);
        double *starts = documents ? add_starts(&c, B) : NULL;
        for (int64_t n = 0; n < B * T; n++)
          for (int64_t head = 0; head < H + K; head++) {
            int64_t at = attrs.first_index + n % T;
            if (documents) at -= (int64_t)starts[n / T * c.attrs.documents + at];
            rotate_head(qkv + n * Q + head * D, D, at, inv_freq, direction);
          }
        c.sparse[0] = true; // the v columns are left alone
        kernel_case_check(&c);
      }
}

TEST(test_rope) {
  check_rope(false);
  check_rope(true);
}

static double silu(double x) {
  return x / (1 + exp(-x));
}

TEST(test_swiglu) {
  static const int64_t widths[] = {1, 31, 1536, 2049};
  for (int d = 0; d < 2; d++)
    for (int w = 0; w < 4; w++) {
      int64_t N = 5, I = widths[w];
      fsdp_op_attrs attrs = {.batch = 1, .seq = N, .intermediate = I};
      kernel_case c = kernel_case_of(FSDP_OP_SWIGLU, attrs, kernel_tolerance(dtypes[d]));
      double *wide = kernel_normal(3, N * 2 * I, 10); // large enough that silu saturates
      double *gate_up = kernel_case_input(&c, dtypes[d], N * 2 * I, FSDP_READ, wide);
      double *s = kernel_case_output(&c, dtypes[d], N * I);
      for (int64_t i = 0; i < N * I; i++)
        s[i] = silu(gate_up[i / I * 2 * I + i % I]) * gate_up[i / I * 2 * I + I + i % I];
      kernel_case_check(&c);
      free(wide);
    }
}

TEST(test_swiglu_backward) {
  static const int64_t widths[] = {1, 31, 1536, 2049};
  for (int d = 0; d < 2; d++)
    for (int w = 0; w < 4; w++) {
      int64_t N = 5, I = widths[w];
      fsdp_op_attrs attrs = {.batch = 1, .seq = N, .intermediate = I};
      kernel_case c = kernel_case_of(FSDP_OP_SWIGLU_BACKWARD, attrs, kernel_tolerance(dtypes[d]));
      double *d_s = kernel_case_input(&c, dtypes[d], N * I, FSDP_READ, NULL);
      double *gate_up = kernel_case_input(&c, dtypes[d], N * 2 * I, FSDP_UPDATE, NULL);
      for (int64_t i = 0; i < N * I; i++) {
        int64_t at = i / I * 2 * I + i % I;
        double gate = gate_up[at], up = gate_up[at + I];
        gate_up[at] = d_s[i] * up * (silu(gate + 1e-5) - silu(gate - 1e-5)) / 2e-5;
        gate_up[at + I] = d_s[i] * silu(gate);
      }
      kernel_case_check(&c);
    }
}
