// The head and cross-entropy over a shard of the vocabulary; ops and definitions as in kernels/cpu/head.c.
//
//   head_logits     gemm; statistics_of_row: stats, and -inf into the columns of padding
//   head_loss       add_losses, one block: all ranks' stats of each row joined in the order of the ranks
//   head_backward   add_losses; gradients_of_row, in place of the logits; two gemms
//
// n rows, V columns, of which `real` are entries of the vocabulary and the others padding.
#include "kernels/cuda/logits.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

enum { MOST, SUM, TARGET, STATS }; // of a row

struct shard_rows {
  float *logits;                    // (n, V)
  const int32_t *targets, *learned; // learned: or null
  int first, end;                   // vocabulary entry of column 0; end of the whole vocabulary
  int V, real;
};

__device__ __forceinline__ int target_of(const shard_rows &p, int64_t row) {
  const int target = global_load(p.targets + row);
  if (target != FSDP_TARGET_IGNORED && (target < 0 || target >= p.end)) __trap();
  return target;
}

template <int WIDTH>
__global__ void __launch_bounds__(logits_threads, logits_resident)
    statistics_of_row(shard_rows p, float *stats) {
  const int64_t row = blockIdx.x;
  float *logits = p.logits + row * p.V;
  const int column = target_of(p, row) - p.first; // negative if the target is ignored
  const running r = row_statistics<WIDTH>(logits, p.real);
  for (int v = p.real + int(threadIdx.x); v < p.V; v += logits_threads) global_store(logits + v, -INFINITY);
  if (threadIdx.x > 0) return;
  stats += row * STATS;
  global_store(stats + MOST, r.most);
  global_store(stats + SUM, r.sum);
  global_store(stats + TARGET, column >= 0 && column < p.real ? global_load(logits + column) : -INFINITY);
}

struct rank_stats {
  const float *stats; // (ranks, n, 3)
  int64_t n;
  int ranks;
};

struct row_total {
  running all;
  float target;
};

// All ranks' statistics of a row as one.
__device__ __forceinline__ row_total total_of_row(const rank_stats &s, int64_t row) {
  row_total total = {{-INFINITY, 0.0f}, -INFINITY};
  for (int rank = 0; rank < s.ranks; rank++) {
    const float *part = s.stats + (rank * s.n + row) * STATS;
    total.all = join(total.all, {global_load(part + MOST), global_load(part + SUM)});
    total.target = fmaxf(total.target, global_load(part + TARGET));
  }
  return total;
}

__global__ void __launch_bounds__(logits_threads)
    add_losses(rank_stats s, const int32_t *targets, const int32_t *learned, const float *count, float *loss,
               bool adds) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < s.n; row += logits_threads) {
    if (global_load(targets + row) == FSDP_TARGET_IGNORED) continue;
    const row_total total = total_of_row(s, row);
    const double row_loss = double(logf(total.all.sum)) + double(total.all.most) - double(total.target);
    sum += row_loss / double(learned_of(learned, row));
  }
  store_loss(sum, count, loss, adds);
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(logits_threads, logits_resident)
    gradients_of_row(shard_rows p, rank_stats s, const float *count) {
  const int64_t row = blockIdx.x;
  float *logits = p.logits + row * p.V;
  const int target = target_of(p, row);
  if (target == FSDP_TARGET_IGNORED) {
    clear_gradients<T, WIDTH>(logits, p.V);
  } else {
    const running all = total_of_row(s, row).all;
    store_gradients<T, WIDTH>(logits, p.V, target - p.first, all,
                              loss_scale(count) / learned_of(p.learned, row));
  }
}

shard_rows shard_of(const fsdp_op_attrs *attrs, const fsdp_view *logits, const fsdp_view *targets) {
  const int64_t V = attrs->vocabulary, first = attrs->first_index;
  const int64_t end = attrs->extent ? attrs->extent : first + V;
  FSDP_CHECK(first >= 0 && first + V <= INT32_MAX && end <= INT32_MAX,
             "entries %lld + %lld of a vocabulary of %lld", (long long)first, (long long)V, (long long)end);
  shard_rows p = {};
  p.logits = data_of<float>(logits);
  p.targets = data_of<int32_t>(targets);
  p.first = int(first), p.end = int(end);
  p.V = int(V), p.real = int(fsdp_max_i64(0, fsdp_min_i64(V, end - first)));
  return p;
}

rank_stats stats_of(const fsdp_op_attrs *attrs, const fsdp_view *stats) {
  FSDP_CHECK(attrs->ranks > 0, "the statistics of %lld ranks", (long long)attrs->ranks);
  return {data_of<float>(stats), attrs->batch * attrs->seq, int(attrs->ranks)};
}

void launch_losses(const fsdp_kernel_call *call, const rank_stats &stats, const fsdp_view *loss) {
  const fsdp_view *o = call->operands; // stats, targets, count
  launch({1, logits_threads, stream_of(call)}, add_losses, stats, data_of<int32_t>(&o[1]),
         fsdp_kernel_given(call, FSDP_GIVEN_BY_LEARNED), data_of<float>(&o[2]), data_of<float>(loss),
         updates(loss));
}

logits_gemms gemms_of(const fsdp_kernel_call *call, const fsdp_view *x, const fsdp_view *weight,
                      float *logits) {
  const fsdp_op_attrs *attrs = call->attrs;
  return {stream_of(call), x,     weight, 0, attrs->batch * attrs->seq, attrs->vocabulary,
          attrs->channels, logits};
}

} // namespace

void cuda_head_logits(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  check_head_dtypes(call, &o[0], &o[1]);
  const shard_rows p = shard_of(call->attrs, &o[3], &o[2]);
  const logits_gemms gemms = gemms_of(call, &o[0], &o[1], p.logits);
  multiply_logits(gemms);
  launch({gemms.rows, logits_threads, stream_of(call)},
         has_wide_rows(p.logits, p.V) ? statistics_of_row<4> : statistics_of_row<1>, p,
         data_of<float>(&o[4]));
}

void cuda_head_loss(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  launch_losses(call, stats_of(call->attrs, &o[0]), &o[3]);
}

void cuda_head_backward(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  check_head_dtypes(call, &o[3], &o[4]);
  shard_rows p = shard_of(call->attrs, &o[6], &o[1]);
  p.learned = fsdp_kernel_given(call, FSDP_GIVEN_BY_LEARNED);
  const rank_stats stats = stats_of(call->attrs, &o[0]);
  const logits_gemms gemms = gemms_of(call, &o[3], &o[4], p.logits);
  launch_losses(call, stats, &o[5]);
  with_type(o[3].dtype, [&](auto number) {
    using T = decltype(number);
    launch({gemms.rows, logits_threads, stream_of(call)},
           has_wide_rows(p.logits, p.V) ? gradients_of_row<T, 4> : gradients_of_row<T, 1>, p, stats,
           data_of<float>(&o[2]));
  });
  multiply_gradients(gemms, &o[7], call->attrs->weight_frozen ? nullptr : &o[8], false);
}
