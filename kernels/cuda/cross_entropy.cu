// Linear layer and cross-entropy in one, over chunks of rows, so that the logits of only chunk_rows rows ever
// exist; definitions as in kernels/cpu/cross_entropy.c.
//
//   for each chunk: logits (rows, V) fp32 = x weight^T          gemm, into the workspace
//                   row_of_logits: losses[n], and in place of the logits their gradients (backward)
//                   d_x = d_logits weight; d_weight (+)= d_logits^T x
//   sum_losses:     loss (+)= sum of losses in order / max(count, 1)
//
// N rows, C channels, V vocabulary. Workspace: chunk_rows * V floats of logits, then N floats of losses. With
// bf16 operands the gradients of a row lie, as bf16, at the start of its logits.
#include "kernels/cuda/logits.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

struct row_set {
  float *logits;          // (rows, V)
  const int32_t *targets; // of the chunk
  const int32_t *learned; // of the chunk, or null
  const float *count;
  float *losses; // of the chunk
  int V;
};

template <class T, int WIDTH, bool BACKWARD>
__global__ void __launch_bounds__(logits_threads, logits_resident) row_of_logits(row_set p) {
  const int64_t row = blockIdx.x;
  const int target = global_load(p.targets + row);
  float *logits = p.logits + row * p.V;
  if (target != FSDP_TARGET_IGNORED && (target < 0 || target >= p.V)) __trap();
  if (target == FSDP_TARGET_IGNORED) {
    if (threadIdx.x == 0) global_store(p.losses + row, 0.0f);
    if (BACKWARD) clear_gradients<T, WIDTH>(logits, p.V);
    return;
  }
  const running r = row_statistics<WIDTH>(logits, p.V);
  const float learned = learned_of(p.learned, row);
  if (threadIdx.x == 0)
    global_store(p.losses + row, (logf(r.sum) + r.most - global_load(logits + target)) / learned);
  if (BACKWARD) store_gradients<T, WIDTH>(logits, p.V, target, r, loss_scale(p.count) / learned);
}

__global__ void __launch_bounds__(logits_threads)
    sum_losses(const float *losses, int64_t N, const float *count, float *loss, bool adds) {
  double sum = 0;
  for (int64_t n = threadIdx.x; n < N; n += logits_threads) sum += double(global_load(losses + n));
  store_loss(sum, count, loss, adds);
}

struct loss_head {
  const fsdp_kernel_call *call;
  const fsdp_view *x, *weight, *targets, *count, *loss, *d_x, *d_weight, *workspace;
  const int32_t *learned;
  int64_t N, C, V, chunk_rows;
};

loss_head open_head(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  loss_head k = {};
  k.call = call;
  k.N = attrs->batch * attrs->seq;
  k.C = attrs->channels;
  k.V = attrs->vocabulary;
  k.chunk_rows = attrs->chunk_rows;
  FSDP_CHECK(k.chunk_rows > 0, "a chunk of %lld rows", (long long)k.chunk_rows);
  const fsdp_view *o = open_operands(call);
  k.x = &o[0], k.weight = &o[1], k.targets = &o[2], k.count = &o[3], k.loss = &o[4];
  check_head_dtypes(call, k.x, k.weight);
  if (call->kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD)
    k.d_x = &o[5], k.d_weight = attrs->weight_frozen ? nullptr : &o[6];
  k.learned = fsdp_kernel_given(call, FSDP_GIVEN_BY_LEARNED);
  k.workspace = fsdp_kernel_workspace(call);
  return k;
}

template <class T> void launch_rows(const loss_head *k, const row_set &p, int64_t rows) {
  const launch_shape shape = {rows, logits_threads, stream_of(k->call)};
  const bool wide = has_wide_rows(p.logits, k->V);
  if (k->d_x) {
    launch(shape, wide ? row_of_logits<T, 4, true> : row_of_logits<T, 1, true>, p);
  } else {
    launch(shape, wide ? row_of_logits<T, 4, false> : row_of_logits<T, 1, false>, p);
  }
}

void run(const loss_head *k) {
  auto *logits = data_of<float>(k->workspace);
  float *losses = logits + k->chunk_rows * k->V;
  const auto *count = data_of<float>(k->count);
  for (int64_t first = 0; first < k->N; first += k->chunk_rows) {
    const int64_t rows = fsdp_min_i64(k->chunk_rows, k->N - first);
    const logits_gemms gemms = {stream_of(k->call), k->x, k->weight, first, rows, k->V, k->C, logits};
    multiply_logits(gemms);
    const int32_t *learned = k->learned ? k->learned + first : nullptr;
    const row_set p = {logits,   data_of<int32_t>(k->targets) + first, learned, count, losses + first,
                       int(k->V)};
    with_type(k->x->dtype, [&](auto number) { launch_rows<decltype(number)>(k, p, rows); });
    if (k->d_x) multiply_gradients(gemms, k->d_x, k->d_weight, first > 0);
  }
  launch({1, logits_threads, stream_of(k->call)}, sum_losses, static_cast<const float *>(losses), k->N, count,
         data_of<float>(k->loss), updates(k->loss));
}

} // namespace

void cuda_linear_cross_entropy(const fsdp_kernel_call *call) {
  const loss_head k = open_head(call);
  run(&k);
}

void cuda_linear_cross_entropy_backward(const fsdp_kernel_call *call) {
  const loss_head k = open_head(call);
  run(&k);
}
