// LayerNorm (Ba, Kiros and Hinton 2016) as in PyTorch: y = weight * (h - mean) * rstd + bias,
// rstd = 1 / sqrt(variance + eps), with the mean of squared deviations as the variance. It is taken in a
// second pass over the row, since E[h^2] - mean^2 cancels where the mean is large. RMSNorm (Zhang and
// Sennrich 2019) as in Hugging Face's models: y = weight * (h * rstd), rstd = 1 / sqrt(mean(h^2) + eps).
// N rows of C channels. `centres`: LayerNorm; a constant to the compiler, which makes a loop of each.
#include "kernels/cpu/operand.h"

#include <math.h>

enum {
  ROWS_PER_TASK = 16,
  COLUMNS_PER_TASK = 256, // in bf16, rows of 64 would be converted at half the rate
  ROWS_PER_SUM = 128,     // partial sums over rows stay short, so that fp32 is enough
};

typedef struct norm {
  const fsdp_view *x, *delta, *weight, *h, *y, *rstd; // delta and x are NULL if nothing is added
  const fsdp_view *d_y, *d_h, *d_weight;
  const fsdp_view *bias, *mean, *d_bias; // of LayerNorm
  int64_t N, C;
  float eps;
} norm;

static norm norm_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t C = attrs->channels;
  FSDP_CHECK((size_t)(C + 16) * 5 * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "a row of %lld channels exceeds the scratch", (long long)C); // five rows of floats
  return (norm){.N = attrs->batch * attrs->seq, .C = C, .eps = attrs->eps};
}

// ---- Forward

// Row n of h; a sum as it is stored.
static const float *row_of(const norm *k, int64_t n, float *h_buffer, float *x_buffer, float *delta_buffer) {
  int64_t C = k->C;
  if (k->delta) {
    const float *x = load(k->x, n * C, C, x_buffer), *delta = load(k->delta, n * C, C, delta_buffer);
    float *sum = result(k->h, n * C, h_buffer);
    for (int64_t c = 0; c < C; c++) sum[c] = x[c] + delta[c];
    store(k->h, n * C, C, sum);
  }
  return load(k->h, n * C, C, h_buffer);
}

FSDP_INLINE void forward_rows(const norm *k, int64_t index, float *scratch, bool centres) {
  int64_t C = k->C, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer = scratch, *bias_buffer = scratch_after(weight_buffer, C),
        *h_buffer = scratch_after(bias_buffer, C), *y_buffer = scratch_after(h_buffer, C),
        *centred = scratch_after(y_buffer, C);
  const float *weight = load(k->weight, 0, C, weight_buffer);
  const float *bias = centres ? load(k->bias, 0, C, bias_buffer) : NULL;
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    const float *h = row_of(k, n, h_buffer, y_buffer, centred), *deviation = h;
    float mean = 0;
    if (centres) {
      mean = vf_total(h, C) / (float)C;
      for (int64_t c = 0; c < C; c++) centred[c] = h[c] - mean;
      ((float *)k->mean->data)[n] = mean;
      deviation = centred;
    }
    float rstd = 1.0f / sqrtf(vf_dot(deviation, deviation, C) / (float)C + k->eps);
    float *y = result(k->y, n * C, y_buffer);
    if (centres)
      for (int64_t c = 0; c < C; c++) y[c] = weight[c] * (deviation[c] * rstd) + bias[c];
    else
      for (int64_t c = 0; c < C; c++) y[c] = weight[c] * (deviation[c] * rstd);
    store(k->y, n * C, C, y);
    ((float *)k->rstd->data)[n] = rstd;
  }
}

static void forward_task(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  k->mean ? forward_rows(k, index, scratch, true) : forward_rows(k, index, scratch, false);
}

static void run_forward(const fsdp_kernel_call *call, bool centres, bool adds) {
  norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, 0);
  if (adds) k.x = o++, k.delta = o++;
  if (!adds) k.h = o++;
  k.weight = o++;
  if (centres) k.bias = o++;
  if (adds) k.h = o++;
  k.y = o++;
  if (centres) k.mean = o++;
  k.rstd = o;
  fsdp_pool_run(call->pool, blocks_of(k.N, ROWS_PER_TASK), forward_task, &k);
}

void FSDP_CPU(layernorm)(const fsdp_kernel_call *call) {
  run_forward(call, true, false);
}

void FSDP_CPU(add_layernorm)(const fsdp_kernel_call *call) {
  run_forward(call, true, true);
}

void FSDP_CPU(rmsnorm)(const fsdp_kernel_call *call) {
  run_forward(call, false, false);
}

void FSDP_CPU(add_rmsnorm)(const fsdp_kernel_call *call) {
  run_forward(call, false, true);
}

// ---- Backward

// With z = (h - mean) * rstd, or h * rstd: d_weight[c] = sum over rows of d_y * z, d_bias[c] = sum over rows
// of d_y, for a block of columns.
FSDP_INLINE void backward_columns(const norm *k, int64_t index, bool centres) {
  int64_t first = index * COLUMNS_PER_TASK, count = fsdp_min_i64(COLUMNS_PER_TASK, k->C - first);
  const float *mean = centres ? k->mean->data : NULL, *rstd = k->rstd->data;
  float h_buffer[COLUMNS_PER_TASK], d_y_buffer[COLUMNS_PER_TASK];
  float d_weight[COLUMNS_PER_TASK] = {0}, d_bias[COLUMNS_PER_TASK] = {0};
  for (int64_t block = 0; block < k->N; block += ROWS_PER_SUM) {
    float weight_sums[COLUMNS_PER_TASK] = {0}, bias_sums[COLUMNS_PER_TASK] = {0};
    for (int64_t n = block; n < fsdp_min_i64(k->N, block + ROWS_PER_SUM); n++) {
      const float *h = load(k->h, n * k->C + first, count, h_buffer);
      const float *d_y = load(k->d_y, n * k->C + first, count, d_y_buffer);
      for (int64_t c = 0; c < count; c++) {
        weight_sums[c] += d_y[c] * ((centres ? h[c] - mean[n] : h[c]) * rstd[n]);
        if (centres) bias_sums[c] += d_y[c];
      }
    }
    for (int64_t c = 0; c < count; c++) d_weight[c] += weight_sums[c], d_bias[c] += bias_sums[c];
  }
  store_sums(k->d_weight, first, count, d_weight, h_buffer);
  if (centres) store_sums(k->d_bias, first, count, d_bias, h_buffer);
}

// With g = d_y * weight: d_h = rstd * (g - mean(g) - z * mean(g * z)), or rstd * (g - h * rstd^2 * mean(g *
// h)).
FSDP_INLINE void backward_rows(const norm *k, int64_t index, float *scratch, bool centres) {
  int64_t C = k->C, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer = scratch, *h_buffer = scratch_after(weight_buffer, C);
  float *g = scratch_after(h_buffer, C), *d_h_buffer = scratch_after(g, C);
  const float *weight = load(k->weight, 0, C, weight_buffer);
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    float rstd = ((const float *)k->rstd->data)[n];
    const float *h = load(k->h, n * C, C, h_buffer), *d_y = load(k->d_y, n * C, C, d_h_buffer);
    for (int64_t c = 0; c < C; c++) g[c] = d_y[c] * weight[c];
    float shift = 0;
    if (centres) {
      float mean = ((const float *)k->mean->data)[n];
      for (int64_t c = 0; c < C; c++) h_buffer[c] = (h[c] - mean) * rstd;
      h = h_buffer, shift = vf_total(g, C) / (float)C;
    }
    float shrink = vf_dot(g, h, C) / (float)C;
    if (!centres) shrink = rstd * rstd * shrink;
    float *d_h = result(k->d_h, n * C, d_h_buffer);
    if (updates(k->d_h)) {
      if (d_h == d_h_buffer) load_into(k->d_h, n * C, C, d_h);
      for (int64_t c = 0; c < C; c++) d_h[c] += rstd * (g[c] - shift - h[c] * shrink);
    } else {
      for (int64_t c = 0; c < C; c++) d_h[c] = rstd * (g[c] - shift - h[c] * shrink);
    }
    store(k->d_h, n * C, C, d_h);
  }
}

static void backward_columns_task(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  (void)scratch;
  k->mean ? backward_columns(k, index, true) : backward_columns(k, index, false);
}

static void backward_rows_task(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  k->mean ? backward_rows(k, index, scratch, true) : backward_rows(k, index, scratch, false);
}

static void run_backward(const fsdp_kernel_call *call, bool centres) {
  norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, 0);
  k.h = o++;
  if (centres) k.mean = o++;
  k.rstd = o++, k.weight = o++, k.d_y = o++, k.d_h = o++, k.d_weight = o++;
  if (centres) k.d_bias = o;
  // The parameters' gradients first: d_h may lie where d_y was.
  fsdp_pool_run(call->pool, blocks_of(k.C, COLUMNS_PER_TASK), backward_columns_task, &k);
  fsdp_pool_run(call->pool, blocks_of(k.N, ROWS_PER_TASK), backward_rows_task, &k);
}

void FSDP_CPU(layernorm_backward)(const fsdp_kernel_call *call) {
  run_backward(call, true);
}

void FSDP_CPU(rmsnorm_backward)(const fsdp_kernel_call *call) {
  run_backward(call, false);
}
