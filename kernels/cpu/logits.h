// The logits of a linear head and their gradients: what linear_cross_entropy (whole rows) and the head's ops
// on a shard of the vocabulary (head.c) share.
//
//   logits (rows, V) fp32 = x weight^T;  d_x (+)= d_logits weight;  d_weight (+)= d_logits^T x
//
// The gradients of a row take the place of its logits, in the dtype of x: bf16 ones lie at the start of the
// row.
#pragma once

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/operand.h"

#define LOGITS_TILE 2048 // of a row: floats of scratch that store_gradients needs

static inline float greatest(const float *x, int64_t count) {
  int64_t i = 0;
  float most = x[0];
  if (count >= FSDP_LANES) {
    fsdp_vf lanes = vf_load(x);
    for (i = FSDP_LANES; i + FSDP_LANES <= count; i += FSDP_LANES) lanes = vf_max(lanes, vf_load(x + i));
    most = vf_greatest(lanes);
  }
  for (; i < count; i++) most = most < x[i] ? x[i] : most;
  return most;
}

// The exponential of x[0 .. count) - shift into out (may be x, or NULL if only the sum is needed);
// returns the sum.
FSDP_INLINE float exponentials(const float *x, int64_t count, float shift, float factor, float *out) {
  fsdp_vf sum = {0};
  int64_t i = 0;
  for (; i + FSDP_LANES <= count; i += FSDP_LANES) {
    fsdp_vf e = vf_exp(vf_load(x + i) - shift);
    sum += e;
    if (out) vf_store(out + i, e * factor);
  }
  float rest[FSDP_LANES], total = vf_sum(sum);
  if (i == count) return total;
  for (int lane = 0; lane < FSDP_LANES; lane++) rest[lane] = i + lane < count ? x[i + lane] : shift;
  vf_store(rest, vf_exp(vf_load(rest) - shift));
  for (int lane = 0; i + lane < count; lane++) {
    total += rest[lane];
    if (out) out[i + lane] = rest[lane] * factor;
  }
  return total;
}

// 1 / count of the loss; the count of no target at all is taken as 1.
static inline float loss_scale(const fsdp_view *count) {
  float counted = *(const float *)count->data;
  return 1.0f / (counted > 1.0f ? counted : 1.0f);
}

// The factor of a row: without `learned` (targets of each row's document, else NULL) that of all.
static inline float row_scale(float scale, const int32_t *learned, int64_t row) {
  return learned ? scale / (float)learned[row] : scale;
}

// The targets of each row's document, at least 1 where a target counts; NULL: the loss is a mean over
// targets.
static inline const int32_t *open_learned(const fsdp_kernel_call *call, const fsdp_view *targets) {
  const int32_t *learned = fsdp_kernel_given(call, FSDP_GIVEN_BY_LEARNED), *target = targets->data;
  for (int64_t n = 0; learned && n < targets->numel; n++)
    FSDP_CHECK(target[n] == FSDP_TARGET_IGNORED || learned[n] > 0, "%s: %d learned targets at position %lld",
               fsdp_op_name(call->kind), learned[n], (long long)n);
  return learned;
}

// A row's softmax, scaled: exp(logit - most) / sum * scale.
typedef struct logits_softmax {
  float most, sum, scale;
  int64_t target; // the target's column; outside [0, V): the target is in another shard
} logits_softmax;

// Replaces the V logits of a row by their gradients in `dtype`; `buffer` holds LOGITS_TILE floats.
static inline void store_gradients(float *logits, int64_t V, const logits_softmax *s, fsdp_dtype dtype,
                                   float *buffer) {
  char *out = (char *)logits;
  for (int64_t v = 0; v < V; v += LOGITS_TILE) {
    int64_t n = fsdp_min_i64(LOGITS_TILE, V - v);
    exponentials(logits + v, n, s->most, s->scale / s->sum, buffer);
    if (s->target >= v && s->target < v + n) buffer[s->target - v] -= s->scale;
    // Gradients never reach past the logits that are already read.
    FSDP_CPU(convert)(FSDP_F32, buffer, dtype, out + v * fsdp_dtype_bytes(dtype), n);
  }
}

// The gradients of a row whose target is ignored.
static inline void clear_gradients(float *logits, int64_t V, fsdp_dtype dtype) {
  memset(logits, 0, (size_t)(V * fsdp_dtype_bytes(dtype)));
}

static inline void check_head_dtypes(const fsdp_kernel_call *call, const fsdp_view *x,
                                     const fsdp_view *weight) {
  FSDP_CHECK(x->dtype == weight->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(x->dtype), fsdp_dtype_name(weight->dtype));
}

// Targets must be ignored or in [0, vocabulary).
static inline void check_targets(const fsdp_kernel_call *call, const fsdp_view *targets, int64_t vocabulary) {
  const int32_t *target = targets->data;
  for (int64_t n = 0; n < targets->numel; n++)
    FSDP_CHECK(target[n] == FSDP_TARGET_IGNORED || (target[n] >= 0 && target[n] < vocabulary),
               "%s: target %d at position %lld is not in [0, %lld)", fsdp_op_name(call->kind), target[n],
               (long long)n, (long long)vocabulary);
}

// The gemms of rows [first, first + rows) of x, whose logits lie at `logits`.
typedef struct logits_gemms {
  fsdp_pool *pool;
  const fsdp_view *x, *weight; // (N, C), (V, C)
  int64_t first, rows, V, C;
  float *logits; // (rows, V)
} logits_gemms;

static inline void multiply_logits(const logits_gemms *k) {
  fsdp_gemm logits = {.m = k->rows,
                      .n = k->V,
                      .k = k->C,
                      .a = element(k->x, k->first * k->C),
                      .a_stride = k->C,
                      .b = k->weight->data,
                      .b_stride = k->C,
                      .b_transposed = true,
                      .c = k->logits,
                      .c_stride = k->V,
                      .ab_dtype = k->x->dtype,
                      .c_dtype = FSDP_F32};
  fsdp_gemm_run(k->pool, &logits);
}

// These rows of d_x, and d_weight (NULL: it is left out), are overwritten or added to, as their accesses say;
// `adds_weight`: d_weight is added to whatever its access.
static inline void multiply_gradients(const logits_gemms *k, const fsdp_view *d_x, const fsdp_view *d_weight,
                                      bool adds_weight) {
  int64_t gradient_stride = k->V * (int64_t)sizeof(float) / fsdp_dtype_bytes(k->x->dtype);
  fsdp_gemm x_gemm = {.m = k->rows,
                      .n = k->C,
                      .k = k->V,
                      .a = k->logits,
                      .a_stride = gradient_stride,
                      .b = k->weight->data,
                      .b_stride = k->C,
                      .c = element(d_x, k->first * k->C),
                      .c_stride = k->C,
                      .ab_dtype = k->x->dtype,
                      .c_dtype = d_x->dtype,
                      .accumulate = updates(d_x)};
  fsdp_gemm_run(k->pool, &x_gemm);
  if (!d_weight) return;
  fsdp_gemm weight_gemm = {.m = k->V,
                           .n = k->C,
                           .k = k->rows,
                           .a = k->logits,
                           .a_stride = gradient_stride,
                           .a_transposed = true,
                           .b = element(k->x, k->first * k->C),
                           .b_stride = k->C,
                           .c = d_weight->data,
                           .c_stride = k->C,
                           .ab_dtype = k->x->dtype,
                           .c_dtype = d_weight->dtype,
                           .accumulate = adds_weight || updates(d_weight)};
  fsdp_gemm_run(k->pool, &weight_gemm);
}
