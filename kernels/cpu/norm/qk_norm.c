// RMSNorm of each head of q and of k in rows of q|k|v: y = weight * (x * rstd), rstd = 1 / sqrt(mean(x^2) +
// eps) over the head's D elements, with one weight for q and one for k. v is copied. N rows, H heads, K
// key/value heads, D head dimension, Q = (H + 2K) * D.
#include "kernels/cpu/operand.h"

#include <math.h>

enum { ROWS_PER_TASK = 4, ROLES = 2 }; // roles: q, k

typedef struct head_norm {
  const fsdp_view *qkv, *weight[ROLES], *y, *rstd; // rstd (N, H + K)
  const fsdp_view *d_qkv, *d_weight[ROLES];
  float *parts[ROLES]; // (part_count, D): sums of d_weight over consecutive rows
  int64_t part_count, N, H, K, D, Q;
  float eps;
} head_norm;

static head_norm norm_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  head_norm k = {.N = attrs->batch * attrs->seq, .H = attrs->heads, .K = attrs->kv_heads};
  k.D = attrs->head_dim, k.Q = (k.H + 2 * k.K) * k.D, k.eps = attrs->eps;
  FSDP_CHECK((size_t)(k.D + 16) * 7 * sizeof(float) <= FSDP_POOL_SCRATCH_BYTES,
             "head dimension %lld exceeds the scratch", (long long)k.D);
  return k;
}

static int role_of(const head_norm *k, int64_t head) {
  return head < k->H ? 0 : 1;
}

static void forward_rows(void *argument, int64_t index, void *scratch) {
  const head_norm *k = argument;
  int64_t D = k->D, heads = k->H + k->K, last = fsdp_min_i64(k->N, (index + 1) * ROWS_PER_TASK);
  float *weight_buffer[ROLES] = {scratch, scratch_after(scratch, D)};
  float *x_buffer = scratch_after(weight_buffer[1], D), *y_buffer = scratch_after(x_buffer, D);
  const float *weights[ROLES];
  for (int r = 0; r < ROLES; r++) weights[r] = load(k->weight[r], 0, D, weight_buffer[r]);
  for (int64_t n = index * ROWS_PER_TASK; n < last; n++) {
    for (int64_t head = 0; head < heads; head++) {
      int64_t at = n * k->Q + head * D;
      const float *x = load(k->qkv, at, D, x_buffer), *weight = weights[role_of(k, head)];
      float rstd = 1.0f / sqrtf(vf_dot(x, x, D) / (float)D + k->eps), *y = result(k->y, at, y_buffer);
      for (int64_t d = 0; d < D; d++) y[d] = weight[d] * (x[d] * rstd);
      store(k->y, at, D, y);
      ((float *)k->rstd->data)[n * heads + head] = rstd;
    }
    for (int64_t at = n * k->Q + heads * D; at < (n + 1) * k->Q; at += D)
      store(k->y, at, D, load(k->qkv, at, D, x_buffer));
  }
}

void FSDP_CPU(qk_norm)(const fsdp_kernel_call *call) {
  head_norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, 0);
  k.qkv = &o[0], k.weight[0] = &o[1], k.weight[1] = &o[2], k.y = &o[3], k.rstd = &o[4];
  fsdp_pool_run(call->pool, blocks_of(k.N, ROWS_PER_TASK), forward_rows, &k);
}

// The rows of one part. With g = d_y * weight: d_x = rstd * (g - x * rstd^2 * mean(g * x)), and d_weight is
// the sum of d_y * x * rstd.
static void backward_rows(void *argument, int64_t index, void *scratch) {
  const head_norm *k = argument;
  int64_t D = k->D, heads = k->H + k->K, last = k->N * (index + 1) / k->part_count;
  float *weight_buffer[ROLES] = {scratch, scratch_after(scratch, D)};
  float *x_buffer = scratch_after(weight_buffer[1], D), *d_y_buffer = scratch_after(x_buffer, D);
  float *g = scratch_after(d_y_buffer, D);
  const float *weights[ROLES];
  for (int r = 0; r < ROLES; r++) {
    weights[r] = load(k->weight[r], 0, D, weight_buffer[r]);
    memset(k->parts[r] + index * D, 0, (size_t)D * sizeof(float));
  }
  for (int64_t n = k->N * index / k->part_count; n < last; n++)
    for (int64_t head = 0; head < heads; head++) {
      int64_t at = n * k->Q + head * D;
      const float *x = load(k->qkv, at, D, x_buffer), *d_y = load(k->d_qkv, at, D, d_y_buffer);
      const float *weight = weights[role_of(k, head)];
      float *sums = k->parts[role_of(k, head)] + index * D;
      float rstd = ((const float *)k->rstd->data)[n * heads + head];
      for (int64_t d = 0; d < D; d++) {
        sums[d] += d_y[d] * (x[d] * rstd);
        g[d] = d_y[d] * weight[d];
      }
      float shrink = rstd * rstd * (vf_dot(g, x, D) / (float)D);
      float *d_x = result(k->d_qkv, at, d_y_buffer);
      for (int64_t d = 0; d < D; d++) d_x[d] = rstd * (g[d] - x[d] * shrink);
      store(k->d_qkv, at, D, d_x);
    }
}

static void sum_parts(void *argument, int64_t role, void *scratch) {
  const head_norm *k = argument;
  float *sums = scratch;
  memset(sums, 0, (size_t)k->D * sizeof *sums);
  for (int64_t part = 0; part < k->part_count; part++)
    for (int64_t d = 0; d < k->D; d++) sums[d] += k->parts[role][part * k->D + d];
  store_sums(k->d_weight[role], 0, k->D, sums, scratch_after(sums, k->D));
}

void FSDP_CPU(qk_norm_backward)(const fsdp_kernel_call *call) {
  head_norm k = norm_of(call);
  const fsdp_view *o = open_operands(call, PART(0) | PART(4)), *workspace = fsdp_kernel_workspace(call);
  // The v columns stay: of the last row only q and k belong to the range.
  fsdp_kernel_report(call, 0, 0, k.N * k.Q - k.K * k.D, FSDP_READ);
  fsdp_kernel_report(call, 4, 0, k.N * k.Q - k.K * k.D, FSDP_UPDATE);
  k.qkv = &o[0], k.rstd = &o[1], k.weight[0] = &o[2], k.weight[1] = &o[3];
  k.d_qkv = &o[4], k.d_weight[0] = &o[5], k.d_weight[1] = &o[6];
  k.part_count = workspace->numel / (2 * k.D);
  k.parts[0] = workspace->data, k.parts[1] = k.parts[0] + k.part_count * k.D;
  fsdp_pool_run(call->pool, k.part_count, backward_rows, &k);
  fsdp_pool_run(call->pool, ROLES, sum_parts, &k);
}
