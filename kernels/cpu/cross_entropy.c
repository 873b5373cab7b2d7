// Linear layer and cross-entropy in one, over chunks of rows, so that the logits of only chunk_rows rows ever
// exist.
//
//   loss = sum over counted rows of (log(sum over v of exp(logits[v])) - logits[target]) / max(count, 1)
//   d_logits = (softmax(logits) - onehot(target)) / max(count, 1), 0 in rows that are not counted
//
// N rows, C channels, V vocabulary. A chunk's logits lie in the workspace, fp32 (chunk_rows, V); with bf16
// operands the gradients of the logits then take their place as bf16, at the start of each row.
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/vector.h"

#include <math.h>

enum { ROWS_PER_SUM = 4, SUMS_MAX = 256, CHUNK = 2048 };

typedef struct loss_head {
  const fsdp_kernel_call *call;
  const fsdp_view *x, *weight, *targets, *count, *loss, *d_x, *d_weight, *workspace;
  int64_t N, C, V, chunk_rows;
  bool backward;
  float scale;         // 1 / max(count, 1)
  int64_t first, rows; // of the chunk, then of the part of it that a region works on
  double sums[SUMS_MAX];
} loss_head;

static float greatest(const float *x, int64_t count) {
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

static float *logits_of(const loss_head *k, int64_t row) {
  return (float *)k->workspace->data + row * k->V;
}

// Replaces the logits of a row by their gradients, in the dtype of x.
static void store_gradients(const loss_head *k, float *logits, int64_t target, float most, float sum,
                            float *buffer) {
  bool counted = target != FSDP_TARGET_IGNORED;
  char *out = (char *)logits;
  for (int64_t v = 0; v < k->V; v += CHUNK) {
    int64_t n = fsdp_min_i64(CHUNK, k->V - v);
    if (counted) {
      exponentials(logits + v, n, most, k->scale / sum, buffer);
      if (target >= v && target < v + n) buffer[target - v] -= k->scale;
    } else {
      memset(buffer, 0, (size_t)n * sizeof *buffer);
    }
    // Gradients never reach past the logits that are already read.
    FSDP_CPU(convert)(FSDP_F32, buffer, k->x->dtype, out + v * fsdp_dtype_bytes(k->x->dtype), n);
  }
}

static void rows_of_chunk(void *argument, int64_t index, void *scratch) {
  loss_head *k = argument;
  double sum_of_losses = 0;
  int64_t last = fsdp_min_i64(k->rows, (index + 1) * ROWS_PER_SUM);
  for (int64_t row = index * ROWS_PER_SUM; row < last; row++) {
    float *logits = logits_of(k, row);
    int64_t target = ((const int32_t *)k->targets->data)[k->first + row];
    float most = 0, sum = 1;
    if (target != FSDP_TARGET_IGNORED) {
      most = greatest(logits, k->V);
      sum = exponentials(logits, k->V, most, 1, NULL);
      sum_of_losses += log((double)sum) + (double)most - (double)logits[target];
    }
    if (k->backward) store_gradients(k, logits, target, most, sum, scratch);
  }
  k->sums[index] = sum_of_losses;
}

static fsdp_gemm logits_product(const loss_head *k, int64_t first, int64_t rows) {
  return (fsdp_gemm){.m = rows,
                     .n = k->V,
                     .k = k->C,
                     .a = element(k->x, first * k->C),
                     .a_stride = k->C,
                     .b = k->weight->data,
                     .b_stride = k->C,
                     .b_transposed = true,
                     .c = k->workspace->data,
                     .c_stride = k->V,
                     .ab_dtype = k->x->dtype,
                     .c_dtype = FSDP_F32};
}

static void backward_products(const loss_head *k, int64_t first, int64_t rows) {
  int64_t gradient_stride = k->V * (int64_t)sizeof(float) / fsdp_dtype_bytes(k->x->dtype);
  fsdp_gemm d_x = {.m = rows,
                   .n = k->C,
                   .k = k->V,
                   .a = k->workspace->data,
                   .a_stride = gradient_stride,
                   .b = k->weight->data,
                   .b_stride = k->C,
                   .c = element(k->d_x, first * k->C),
                   .c_stride = k->C,
                   .ab_dtype = k->x->dtype,
                   .c_dtype = k->d_x->dtype};
  fsdp_gemm_run(k->call->pool, &d_x);
  fsdp_gemm d_weight = {.m = k->V,
                        .n = k->C,
                        .k = rows,
                        .a = k->workspace->data,
                        .a_stride = gradient_stride,
                        .a_transposed = true,
                        .b = element(k->x, first * k->C),
                        .b_stride = k->C,
                        .c = k->d_weight->data,
                        .c_stride = k->C,
                        .ab_dtype = k->x->dtype,
                        .c_dtype = k->d_weight->dtype,
                        .accumulate = first > 0 || updates(k->d_weight)};
  fsdp_gemm_run(k->call->pool, &d_weight);
}

static void check_targets(const loss_head *k) {
  const int32_t *targets = k->targets->data;
  for (int64_t n = 0; n < k->N; n++)
    FSDP_CHECK(targets[n] == FSDP_TARGET_IGNORED || (targets[n] >= 0 && targets[n] < k->V),
               "%s: target %d at position %lld is not in [0, %lld)", fsdp_op_name(k->call->kind), targets[n],
               (long long)n, (long long)k->V);
}

// Fills in the fields that forward and backward share.
static loss_head open_head(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  loss_head k = {.call = call, .N = attrs->batch * attrs->seq, .C = attrs->channels, .V = attrs->vocabulary};
  k.chunk_rows = attrs->chunk_rows;
  FSDP_CHECK(k.chunk_rows > 0, "a chunk of %lld rows", (long long)k.chunk_rows);
  const fsdp_view *o = open_operands(call, 0);
  k.x = &o[0], k.weight = &o[1], k.targets = &o[2], k.count = &o[3], k.loss = &o[4];
  k.workspace = fsdp_kernel_workspace(call);
  FSDP_CHECK(k.x->dtype == k.weight->dtype, "%s multiplies %s with %s", fsdp_op_name(call->kind),
             fsdp_dtype_name(k.x->dtype), fsdp_dtype_name(k.weight->dtype));
  float count = *(const float *)k.count->data;
  k.scale = 1.0f / (count > 1.0f ? count : 1.0f);
  check_targets(&k);
  return k;
}

static void run_chunks(loss_head *k) {
  double total = 0;
  for (int64_t first = 0; first < k->N; first += k->chunk_rows) {
    int64_t rows = fsdp_min_i64(k->chunk_rows, k->N - first);
    fsdp_gemm logits = logits_product(k, first, rows);
    fsdp_gemm_run(k->call->pool, &logits);
    const fsdp_view *workspace = k->workspace;
    for (int64_t part = 0; part < rows; part += SUMS_MAX * ROWS_PER_SUM) {
      fsdp_view shifted = *workspace; // the region's rows count from its own first
      shifted.data = (float *)workspace->data + part * k->V;
      k->workspace = &shifted;
      k->first = first + part;
      k->rows = fsdp_min_i64(SUMS_MAX * ROWS_PER_SUM, rows - part);
      int64_t tasks = blocks_of(k->rows, ROWS_PER_SUM);
      fsdp_pool_run(k->call->pool, tasks, rows_of_chunk, k);
      for (int64_t i = 0; i < tasks; i++) total += k->sums[i];
      k->workspace = workspace;
    }
    if (k->backward) backward_products(k, first, rows);
  }
  float *loss = k->loss->data, old = updates(k->loss) ? *loss : 0;
  *loss = (float)((double)old + total * (double)k->scale);
}

void FSDP_CPU(linear_cross_entropy)(const fsdp_kernel_call *call) {
  loss_head k = open_head(call);
  run_chunks(&k);
}

void FSDP_CPU(linear_cross_entropy_backward)(const fsdp_kernel_call *call) {
  loss_head k = open_head(call);
  k.backward = true;
  k.d_x = &call->operands[5];
  k.d_weight = &call->operands[6];
  run_chunks(&k);
}
