// LayerNorm (Ba, Kiros and Hinton 2016) as in PyTorch: y = weight * (h - mean) * rstd + bias,
// rstd = 1 / sqrt(variance + eps), with the mean of squared deviations as the variance. It is taken in a
// second pass over the row, since E[h^2] - mean^2 cancels where the mean is large. N rows of C channels.
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector.h"

#include <math.h>

enum {
  ROWS_PER_TASK = 16,
  COLUMNS_PER_TASK = 256,
  ROWS_PER_SUM = 128, // partial sums over rows stay short, so that fp32 is enough
};

typedef struct norm {
  const fsdp_view *x, *delta, *weight, *bias, *h, *y; // delta and x are NULL if nothing is added
  const fsdp_view *mean, *rstd;
  const fsdp_view *d_y, *d_h, *d_weight, *d_bias;
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

static void forward_rows(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  int64_t C = k->C, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer = scratch, *bias_buffer = scratch_after(weight_buffer, C),
        *h_buffer = scratch_after(bias_buffer, C), *y_buffer = scratch_after(h_buffer, C),
        *centred = scratch_after(y_buffer, C);
  const float *weight = load(k->weight, 0, C, weight_buffer), *bias = load(k->bias, 0, C, bias_buffer);
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    const float *h = row_of(k, n, h_buffer, y_buffer, centred);
    float mean = vf_total(h, C) / (float)C;
    for (int64_t c = 0; c < C; c++) centred[c] = h[c] - mean;
    float rstd = 1.0f / sqrtf(vf_dot(centred, centred, C) / (float)C + k->eps);
    float *y = result(k->y, n * C, y_buffer);
    for (int64_t c = 0; c < C; c++) y[c] = weight[c] * (centred[c] * rstd) + bias[c];
    store(k->y, n * C, C, y);
    ((float *)k->mean->data)[n] = mean;
    ((float *)k->rstd->data)[n] = rstd;
  }
}

void FSDP_CPU(layernorm)(const fsdp_kernel_call *call) {
  norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, 0);
  k.h = &o[0], k.weight = &o[1], k.bias = &o[2], k.y = &o[3], k.mean = &o[4], k.rstd = &o[5];
  fsdp_pool_run(call->pool, blocks_of(k.N, ROWS_PER_TASK), forward_rows, &k);
}

void FSDP_CPU(add_layernorm)(const fsdp_kernel_call *call) {
  norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, 0);
  k.x = &o[0], k.delta = &o[1], k.weight = &o[2], k.bias = &o[3];
  k.h = &o[4], k.y = &o[5], k.mean = &o[6], k.rstd = &o[7];
  fsdp_pool_run(call->pool, blocks_of(k.N, ROWS_PER_TASK), forward_rows, &k);
}

static void store_sums(const fsdp_view *gradient, int64_t first, int64_t count, float *sums) {
  float old[COLUMNS_PER_TASK];
  if (updates(gradient)) {
    load_into(gradient, first, count, old);
    for (int64_t c = 0; c < count; c++) sums[c] += old[c];
  }
  store(gradient, first, count, sums);
}

// With z = (h - mean) * rstd: d_weight[c] = sum over rows of d_y * z, d_bias[c] = sum over rows of d_y, for a
// block of columns.
static void backward_columns(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  int64_t first = index * COLUMNS_PER_TASK, count = fsdp_min_i64(COLUMNS_PER_TASK, k->C - first);
  const float *mean = k->mean->data, *rstd = k->rstd->data;
  float h_buffer[COLUMNS_PER_TASK], d_y_buffer[COLUMNS_PER_TASK];
  float d_weight[COLUMNS_PER_TASK] = {0}, d_bias[COLUMNS_PER_TASK] = {0};
  (void)scratch;
  for (int64_t block = 0; block < k->N; block += ROWS_PER_SUM) {
    float weight_sums[COLUMNS_PER_TASK] = {0}, bias_sums[COLUMNS_PER_TASK] = {0};
    for (int64_t n = block; n < fsdp_min_i64(k->N, block + ROWS_PER_SUM); n++) {
      const float *h = load(k->h, n * k->C + first, count, h_buffer);
      const float *d_y = load(k->d_y, n * k->C + first, count, d_y_buffer);
      for (int64_t c = 0; c < count; c++) {
        weight_sums[c] += d_y[c] * ((h[c] - mean[n]) * rstd[n]);
        bias_sums[c] += d_y[c];
      }
    }
    for (int64_t c = 0; c < count; c++) d_weight[c] += weight_sums[c], d_bias[c] += bias_sums[c];
  }
  store_sums(k->d_weight, first, count, d_weight);
  store_sums(k->d_bias, first, count, d_bias);
}

// With g = d_y * weight: d_h = rstd * (g - mean(g) - z * mean(g * z)).
static void backward_rows(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  int64_t C = k->C, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer = scratch, *z = scratch_after(weight_buffer, C);
  float *g = scratch_after(z, C), *d_h_buffer = scratch_after(g, C);
  const float *weight = load(k->weight, 0, C, weight_buffer);
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    float mean = ((const float *)k->mean->data)[n], rstd = ((const float *)k->rstd->data)[n];
    const float *h = load(k->h, n * C, C, z), *d_y = load(k->d_y, n * C, C, d_h_buffer);
    for (int64_t c = 0; c < C; c++) z[c] = (h[c] - mean) * rstd, g[c] = d_y[c] * weight[c];
    float shift = vf_total(g, C) / (float)C, shrink = vf_dot(g, z, C) / (float)C;
    float *d_h = result(k->d_h, n * C, d_h_buffer);
    if (updates(k->d_h)) {
      if (d_h == d_h_buffer) load_into(k->d_h, n * C, C, d_h);
      for (int64_t c = 0; c < C; c++) d_h[c] += rstd * (g[c] - shift - z[c] * shrink);
    } else {
      for (int64_t c = 0; c < C; c++) d_h[c] = rstd * (g[c] - shift - z[c] * shrink);
    }
    store(k->d_h, n * C, C, d_h);
  }
}

void FSDP_CPU(layernorm_backward)(const fsdp_kernel_call *call) {
  norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, 0);
  k.h = &o[0], k.mean = &o[1], k.rstd = &o[2], k.weight = &o[3], k.d_y = &o[4];
  k.d_h = &o[5], k.d_weight = &o[6], k.d_bias = &o[7];
  // The parameters' gradients first: d_h may lie where d_y was.
  fsdp_pool_run(call->pool, blocks_of(k.C, COLUMNS_PER_TASK), backward_columns, &k);
  fsdp_pool_run(call->pool, blocks_of(k.N, ROWS_PER_TASK), backward_rows, &k);
}
