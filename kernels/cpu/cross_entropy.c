// Linear layer and cross-entropy in one, over chunks of rows, so that the logits of only chunk_rows rows ever
// exist.
//
// (`learned` divides a row's part of both by the targets of its document, and count is that of documents.)
//
//   loss = sum over counted rows of (log(sum over v of exp(logits[v])) - logits[target]) / max(count, 1)
//   d_logits = (softmax(logits) - onehot(target)) / max(count, 1), 0 in rows that are not counted
//
// N rows, C channels, V vocabulary. A chunk's logits lie in the workspace, fp32 (chunk_rows, V); their
// gradients then take their place (logits.h).
#include "kernels/cpu/logits.h"

#include <math.h>

enum { ROWS_PER_SUM = 4, SUMS_MAX = 256 };

typedef struct loss_head {
  const fsdp_kernel_call *call;
  const fsdp_view *x, *weight, *targets, *loss, *d_x, *d_weight;
  int64_t N, C, V, chunk_rows;
  bool backward;
  float scale;            // 1 / max(count, 1)
  const int32_t *learned; // NULL, or by row
  float *logits;          // of the chunk, then of the part of it that a region works on
  int64_t first, rows;    // likewise
  double sums[SUMS_MAX];
} loss_head;

static void rows_of_chunk(void *argument, int64_t index, void *scratch) {
  loss_head *k = argument;
  double sum_of_losses = 0;
  int64_t last = fsdp_min_i64(k->rows, (index + 1) * ROWS_PER_SUM);
  for (int64_t row = index * ROWS_PER_SUM; row < last; row++) {
    float *logits = k->logits + row * k->V;
    int64_t target = ((const int32_t *)k->targets->data)[k->first + row];
    if (target == FSDP_TARGET_IGNORED) {
      if (k->backward) clear_gradients(logits, k->V, k->x->dtype);
      continue;
    }
    const float scale = row_scale(k->scale, k->learned, k->first + row);
    logits_softmax s = {.most = greatest(logits, k->V), .scale = scale, .target = target};
    s.sum = exponentials(logits, k->V, s.most, 1, NULL);
    const double loss = log((double)s.sum) + (double)s.most - (double)logits[target];
    sum_of_losses += k->learned ? loss / (double)k->learned[k->first + row] : loss;
    if (k->backward) store_gradients(logits, k->V, &s, k->x->dtype, scratch);
  }
  k->sums[index] = sum_of_losses;
}

// Fills in the fields that forward and backward share.
static loss_head open_head(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  loss_head k = {.call = call, .N = attrs->batch * attrs->seq, .C = attrs->channels, .V = attrs->vocabulary};
  k.chunk_rows = attrs->chunk_rows;
  FSDP_CHECK(k.chunk_rows > 0, "a chunk of %lld rows", (long long)k.chunk_rows);
  const fsdp_view *o = open_operands(call, 0);
  k.x = &o[0], k.weight = &o[1], k.targets = &o[2], k.loss = &o[4];
  k.scale = loss_scale(&o[3]);
  check_head_dtypes(call, k.x, k.weight);
  check_targets(call, k.targets, k.V);
  k.learned = open_learned(call, k.targets);
  return k;
}

static void run_chunks(loss_head *k) {
  double total = 0;
  float *workspace = fsdp_kernel_workspace(k->call)->data;
  for (int64_t first = 0; first < k->N; first += k->chunk_rows) {
    int64_t rows = fsdp_min_i64(k->chunk_rows, k->N - first);
    const logits_gemms gemms = {k->call->pool, k->x, k->weight, first, rows, k->V, k->C, workspace};
    multiply_logits(&gemms);
    for (int64_t part = 0; part < rows; part += SUMS_MAX * ROWS_PER_SUM) {
      k->logits = workspace + part * k->V;
      k->first = first + part;
      k->rows = fsdp_min_i64(SUMS_MAX * ROWS_PER_SUM, rows - part);
      int64_t tasks = blocks_of(k->rows, ROWS_PER_SUM);
      fsdp_pool_run(k->call->pool, tasks, rows_of_chunk, k);
      for (int64_t i = 0; i < tasks; i++) total += k->sums[i];
    }
    if (k->backward) multiply_gradients(&gemms, k->d_x, k->d_weight, first > 0);
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
  if (!call->attrs->weight_frozen) k.d_weight = &call->operands[6];
  run_chunks(&k);
}
