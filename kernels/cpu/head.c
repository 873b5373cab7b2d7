// The head and cross-entropy over a shard of the vocabulary, one chunk of rows a call:
//
//   head_logits     the shard's logits, and of each row its statistics (n, 3): maximum, sum of exp(logit -
//                   maximum), and the target's logit
//   (the ranks gather each other's statistics: part r of R has rank r's, (R, n, 3))
//   head_loss       the loss from all ranks' statistics
//   head_backward   the loss, the gradients of the shard's logits, and from these d_x (a partial sum over the
//                   shards) and d_weight
//
// n rows, C channels, V columns: the shard's vocabulary, entries first_index .. first_index + V. Entries from
// `extent` on are padding: their logits are -inf, so their gradients are 0. The loss and gradients are those
// of cross_entropy.c.
#include "kernels/cpu/logits.h"

#include <math.h>

enum { MOST, SUM, TARGET, STATS }; // of a row

typedef struct shard_head {
  const fsdp_view *targets, *weight;
  float *logits, *stats; // (n, V); (n, 3) of this shard, or (R, n, 3)
  int64_t n, V;
  int64_t first, end; // vocabulary entry of column 0; end of the whole vocabulary
  int64_t ranks;
  float scale;            // 1 / max(count, 1)
  const int32_t *learned; // NULL, or by row
} shard_head;

static shard_head shard_of(const fsdp_op_attrs *attrs) {
  shard_head k = {.n = attrs->batch * attrs->seq, .V = attrs->vocabulary, .ranks = attrs->ranks};
  k.first = attrs->first_index;
  k.end = attrs->extent ? attrs->extent : k.first + k.V;
  return k;
}

static int64_t target_of(const shard_head *k, int64_t row) {
  return ((const int32_t *)k->targets->data)[row];
}

static void statistics_of_row(void *argument, int64_t row, void *scratch) {
  (void)scratch;
  const shard_head *k = argument;
  float *logits = k->logits + row * k->V, *stats = k->stats + row * STATS;
  int64_t real = fsdp_max_i64(0, fsdp_min_i64(k->V, k->end - k->first));
  int64_t column = target_of(k, row) - k->first; // negative if the target is ignored
  for (int64_t v = real; v < k->V; v++) logits[v] = -INFINITY;
  stats[MOST] = real ? greatest(logits, real) : -INFINITY;
  stats[SUM] = exponentials(logits, real, stats[MOST], 1, NULL);
  stats[TARGET] = column >= 0 && column < real ? logits[column] : -INFINITY;
}

void FSDP_CPU(head_logits)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  shard_head k = shard_of(call->attrs);
  k.targets = &o[2], k.logits = o[3].data, k.stats = o[4].data;
  check_head_dtypes(call, &o[0], &o[1]);
  check_targets(call, k.targets, k.end);
  const logits_gemms gemms = {call->pool, &o[0], &o[1], 0, k.n, k.V, call->attrs->channels, k.logits};
  multiply_logits(&gemms);
  fsdp_pool_run(call->pool, k.n, statistics_of_row, &k);
}

typedef struct row_total {
  double most, sum, target;
} row_total;

// All ranks' statistics of a row as one, in the order of the ranks. A shard of padding alone has maximum -inf
// and sum 0.
static row_total total_of_row(const shard_head *k, int64_t row) {
  row_total total = {-INFINITY, 0, -INFINITY};
  for (int64_t rank = 0; rank < k->ranks; rank++) {
    const float *part = k->stats + (rank * k->n + row) * STATS;
    total.most = fmax(total.most, (double)part[MOST]);
    total.target = fmax(total.target, (double)part[TARGET]);
  }
  for (int64_t rank = 0; rank < k->ranks; rank++) {
    const float *part = k->stats + (rank * k->n + row) * STATS;
    total.sum += (double)part[SUM] * exp((double)part[MOST] - total.most);
  }
  return total;
}

static void store_loss(const shard_head *k, const fsdp_view *loss) {
  FSDP_CHECK(k->ranks > 0, "the statistics of %lld ranks", (long long)k->ranks);
  double sum = 0;
  for (int64_t row = 0; row < k->n; row++) {
    if (target_of(k, row) == FSDP_TARGET_IGNORED) continue;
    row_total total = total_of_row(k, row);
    const double row_loss = log(total.sum) + total.most - total.target;
    sum += k->learned ? row_loss / (double)k->learned[row] : row_loss;
  }
  float *out = loss->data, old = updates(loss) ? *out : 0;
  *out = (float)((double)old + sum * (double)k->scale);
}

void FSDP_CPU(head_loss)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  shard_head k = shard_of(call->attrs);
  k.stats = o[0].data, k.targets = &o[1], k.scale = loss_scale(&o[2]);
  k.learned = open_learned(call, k.targets);
  store_loss(&k, &o[3]);
}

static void gradients_of_row(void *argument, int64_t row, void *scratch) {
  const shard_head *k = argument;
  float *logits = k->logits + row * k->V;
  int64_t target = target_of(k, row);
  if (target == FSDP_TARGET_IGNORED) {
    clear_gradients(logits, k->V, k->weight->dtype);
    return;
  }
  row_total total = total_of_row(k, row);
  const float scale = row_scale(k->scale, k->learned, row);
  logits_softmax s = {(float)total.most, (float)total.sum, scale, target - k->first};
  store_gradients(logits, k->V, &s, k->weight->dtype, scratch);
}

void FSDP_CPU(head_backward)(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call, 0);
  shard_head k = shard_of(call->attrs);
  k.stats = o[0].data, k.targets = &o[1], k.scale = loss_scale(&o[2]), k.weight = &o[4];
  k.logits = o[6].data;
  check_head_dtypes(call, &o[3], k.weight);
  check_targets(call, k.targets, k.end);
  k.learned = open_learned(call, k.targets);
  store_loss(&k, &o[5]);
  fsdp_pool_run(call->pool, k.n, gradients_of_row, &k);
  const logits_gemms gemms = {call->pool, &o[3], k.weight, 0, k.n, k.V, call->attrs->channels, k.logits};
  multiply_gradients(&gemms, &o[7], call->attrs->weight_frozen ? NULL : &o[8], false);
}
