// RMSNorm (Zhang and Sennrich 2019) as in Hugging Face's models: y = weight * (h * rstd),
// rstd = 1 / sqrt(mean(h^2) + eps). N rows of C channels.
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector.h"

#include <math.h>

enum {
  ROWS_PER_TASK = 16,
  COLUMNS_PER_TASK = 256, // in bf16, rows of 64 would be converted at half the rate
  ROWS_PER_SUM = 128,     // partial sums over rows stay short, so that fp32 is enough
};

typedef struct norm {
  const fsdp_kernel_call *call;
  const fsdp_view *x, *delta, *weight, *h, *y, *rstd; // delta and x are NULL if nothing is added
  const fsdp_view *d_y, *d_h, *d_weight;
  int64_t N, C;
  float eps;
} norm;

// Each row needs four rows of floats in the scratch.
static void check_width(int64_t channels) {
  FSDP_CHECK((size_t)(channels + 16) * 5 * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "a row of %lld channels exceeds the scratch", (long long)channels);
}

static void forward_rows(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  int64_t C = k->C, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer = scratch, *h_buffer = scratch_after(weight_buffer, C),
        *x_buffer = scratch_after(h_buffer, C);
  const float *weight = load(k->weight, 0, C, weight_buffer);
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    if (k->delta) {
      const float *x = load(k->x, n * C, C, x_buffer);
      float *sum = result(k->h, n * C, h_buffer);
      float *delta_buffer = scratch_after(x_buffer, C);
      const float *delta = load(k->delta, n * C, C, delta_buffer);
      for (int64_t c = 0; c < C; c++) sum[c] = x[c] + delta[c];
      store(k->h, n * C, C, sum);
    }
    const float *h = load(k->h, n * C, C, h_buffer); // a sum as it is stored
    float rstd = 1.0f / sqrtf(vf_dot(h, h, C) / (float)C + k->eps);
    float *y = result(k->y, n * C, x_buffer);
    for (int64_t c = 0; c < C; c++) y[c] = weight[c] * (h[c] * rstd);
    store(k->y, n * C, C, y);
    ((float *)k->rstd->data)[n] = rstd;
  }
}

void FSDP_CPU(rmsnorm)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  check_width(C);
  const fsdp_view *o = open_operands(call, 0);
  norm k = {.call = call, .N = N, .C = C, .eps = attrs->eps};
  k.h = &o[0], k.weight = &o[1], k.y = &o[2], k.rstd = &o[3];
  fsdp_pool_run(call->pool, blocks_of(N, ROWS_PER_TASK), forward_rows, &k);
}

void FSDP_CPU(add_rmsnorm)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  check_width(C);
  const fsdp_view *o = open_operands(call, 0);
  norm k = {.call = call, .N = N, .C = C, .eps = attrs->eps};
  k.x = &o[0], k.delta = &o[1], k.weight = &o[2], k.h = &o[3], k.y = &o[4], k.rstd = &o[5];
  fsdp_pool_run(call->pool, blocks_of(N, ROWS_PER_TASK), forward_rows, &k);
}

// d_weight[c] = sum over rows of d_y * h * rstd, for a block of columns.
static void backward_weight(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  int64_t first = index * COLUMNS_PER_TASK, count = fsdp_min_i64(COLUMNS_PER_TASK, k->C - first);
  const float *rstd = k->rstd->data;
  float h_buffer[COLUMNS_PER_TASK], d_y_buffer[COLUMNS_PER_TASK], total[COLUMNS_PER_TASK] = {0};
  (void)scratch;
  for (int64_t block = 0; block < k->N; block += ROWS_PER_SUM) {
    float sums[COLUMNS_PER_TASK] = {0};
    for (int64_t n = block; n < fsdp_min_i64(k->N, block + ROWS_PER_SUM); n++) {
      const float *h = load(k->h, n * k->C + first, count, h_buffer);
      const float *d_y = load(k->d_y, n * k->C + first, count, d_y_buffer);
      for (int64_t c = 0; c < count; c++) sums[c] += d_y[c] * (h[c] * rstd[n]);
    }
    for (int64_t c = 0; c < count; c++) total[c] += sums[c];
  }
  if (updates(k->d_weight)) {
    load_into(k->d_weight, first, count, h_buffer);
    for (int64_t c = 0; c < count; c++) total[c] += h_buffer[c];
  }
  store(k->d_weight, first, count, total);
}

// With g = d_y * weight: d_h = rstd * (g - h * rstd^2 * mean(g * h)).
static void backward_rows(void *argument, int64_t index, void *scratch) {
  const norm *k = argument;
  int64_t C = k->C, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer = scratch, *h_buffer = scratch_after(weight_buffer, C);
  float *g = scratch_after(h_buffer, C), *d_h_buffer = scratch_after(g, C);
  const float *weight = load(k->weight, 0, C, weight_buffer);
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    const float *h = load(k->h, n * C, C, h_buffer), *d_y = load(k->d_y, n * C, C, d_h_buffer);
    for (int64_t c = 0; c < C; c++) g[c] = d_y[c] * weight[c];
    float rstd = ((const float *)k->rstd->data)[n];
    float shrink = rstd * rstd * (vf_dot(g, h, C) / (float)C);
    float *d_h = result(k->d_h, n * C, d_h_buffer);
    if (updates(k->d_h)) {
      if (d_h == d_h_buffer) load_into(k->d_h, n * C, C, d_h);
      for (int64_t c = 0; c < C; c++) d_h[c] += rstd * (g[c] - h[c] * shrink);
    } else {
      for (int64_t c = 0; c < C; c++) d_h[c] = rstd * (g[c] - h[c] * shrink);
    }
    store(k->d_h, n * C, C, d_h);
  }
}

void FSDP_CPU(rmsnorm_backward)(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  int64_t N = attrs->batch * attrs->seq, C = attrs->channels;
  check_width(C);
  const fsdp_view *o = open_operands(call, 0);
  norm k = {.call = call, .N = N, .C = C, .eps = attrs->eps};
  k.h = &o[0], k.rstd = &o[1], k.weight = &o[2], k.d_y = &o[3], k.d_h = &o[4], k.d_weight = &o[5];
  // The weight's gradient first: d_h may lie where d_y was.
  fsdp_pool_run(call->pool, blocks_of(C, COLUMNS_PER_TASK), backward_weight, &k);
  fsdp_pool_run(call->pool, blocks_of(N, ROWS_PER_TASK), backward_rows, &k);
}
