// What auxiliary losses of routers are made of, and their gradients. N rows, E experts, k of them for a row.
// Rows that hold no token are in no sum.
//
//   sums    a block adds the probabilities of a part of the rows, and leaves them in the workspace
//           (parts, E + 2); a second kernel adds the parts in order
//   loss    one block
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

#include <math.h>

namespace {

constexpr int warps = 4, threads_count = warps * warp_lanes;
constexpr int part_rows = FSDP_ROUTE_SUM_ROWS;

struct losses {
  int N, E, k;
  bool sigmoids;
};

losses losses_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, E = attrs->experts;
  FSDP_CHECK(E <= FSDP_ROUTE_EXPERTS_MAX && N * attrs->slots <= INT32_MAX / 2, "%s: %lld rows, %lld experts",
             fsdp_op_name(call->kind), (long long)N, (long long)E);
  return {int(N), int(E), int(attrs->slots), attrs->route_score == FSDP_ROUTE_SIGMOID};
}

__device__ __forceinline__ int lane_of_warp() {
  return int(threadIdx.x) % warp_lanes;
}
__device__ __forceinline__ int warp_of_block() {
  return int(threadIdx.x) / warp_lanes;
}

// ---- Counts

// A block has an expert: its slots, if `real` is given those in rows that hold a token.
__global__ void __launch_bounds__(threads_count)
    count_slots(losses l, const int *experts, const int *real, float *counts, bool adds) {
  int count = 0;
  for (int i = int(threadIdx.x); i < l.N * l.k; i += threads_count)
    if (!real || global_load(real + i / l.k)) count += global_load(experts + i) == int(blockIdx.x);
  count = block_sum(count);
  if (threadIdx.x != 0) return;
  float *at = counts + blockIdx.x;
  global_store(at, adds ? float(count) + global_load(at) : float(count));
}

// ---- Sums

// Of a row: the logarithm of the sum of exponentials, what sigmoids are divided by to be probabilities.
struct row_scores {
  float logarithm, divisor;
};

// The row's probabilities, of a sum of 1, in p: each lane's experts are those that it reads and writes later.
template <class T>
__device__ __forceinline__ row_scores load_probabilities(const losses &l, const T *logits,
                                                         const smem<float> &p) {
  float greatest = -INFINITY, sum = 0;
  row_scores row = {};
  for (int e = lane_of_warp(); e < l.E; e += warp_lanes) {
    p[e] = to_float(global_load(logits + e));
    greatest = fmaxf(greatest, p[e]);
  }
  greatest = warp_greatest(greatest);
  for (int e = lane_of_warp(); e < l.E; e += warp_lanes) sum += expf(p[e] - greatest);
  sum = warp_sum(sum);
  row.logarithm = greatest + logf(sum);
  for (int e = lane_of_warp(); e < l.E; e += warp_lanes) {
    p[e] = l.sigmoids ? 1 / (1 + expf(-p[e])) : expf(p[e] - greatest) / sum;
    row.divisor += p[e];
  }
  row.divisor = warp_sum(row.divisor);
  for (int e = lane_of_warp(); l.sigmoids && e < l.E; e += warp_lanes) p[e] = p[e] / row.divisor;
  return row;
}

// Shared memory of a warp: a row's probabilities, and their sums with those of squared logarithms and of
// ones.
template <class T>
__global__ void __launch_bounds__(threads_count)
    sum_part(losses l, const T *logits, const int *real, float *parts) {
  FSDP_SHARED_DYNAMIC(bytes);
  const int floats = 2 * l.E + 2, lane = lane_of_warp();
  const smem<float> own = bytes.part<float>(warp_of_block() * floats * 4, floats),
                    sums = own.part<float>(l.E * 4, l.E + 2);
  for (int e = lane; e < l.E; e += warp_lanes) sums[e] = 0;
  float z = 0, rows = 0;
  for (int i = warp_of_block(); i < part_rows; i += warps) {
    const int row = int(blockIdx.x) * part_rows + i;
    if (row >= l.N) break;
    if (!global_load(real + row)) continue;
    const float logarithm = load_probabilities(l, logits + int64_t(row) * l.E, own).logarithm;
    z += logarithm * logarithm;
    rows++;
    for (int e = lane; e < l.E; e += warp_lanes) sums[e] = sums[e] + own[e];
  }
  if (lane == 0) {
    sums[l.E] = z;
    sums[l.E + 1] = rows;
  }
  __syncthreads();
  const smem<float> all = bytes.part<float>(0, warps * floats);
  for (int e = int(threadIdx.x); e < l.E + 2; e += threads_count) {
    float sum = 0;
    for (int warp = 0; warp < warps; warp++) sum += all[warp * floats + l.E + e];
    global_store(parts + int64_t(blockIdx.x) * (l.E + 2) + e, sum);
  }
}

// Thread e has expert e's probabilities, thread E the squared logarithms and thread E + 1 the rows.
__global__ void __launch_bounds__(threads_count)
    add_parts(losses l, const float *parts, int part_count, float *sums, bool adds, float *z, bool adds_z) {
  const int e = int(blockIdx.x) * threads_count + int(threadIdx.x);
  if (e > l.E + 1) return;
  double sum = 0;
#pragma unroll 4
  for (int part = 0; part < part_count; part++)
    sum += double(global_load(parts + int64_t(part) * (l.E + 2) + e));
  float *at = e == l.E ? z : sums + l.E + (e < l.E ? e : l.E);
  const bool adds_here = e == l.E ? adds_z : adds;
  global_store(at, float(adds_here ? sum + double(global_load(at)) : sum));
}

// ---- Loss

struct loss_weights {
  double share, z, own, ranks; // share: of the sum over experts; own: what this rank's factors are divided by
};

__global__ void __launch_bounds__(threads_count)
    make_loss(losses l, loss_weights weights, const float *sums, const float *z, float *loss, bool adds,
              float *z_loss, bool adds_z, float *factors) {
  const double rows = fmax(double(global_load(sums + 2 * l.E)), 1.0); // without a row all sums are 0
  double aux = 0;
  for (int e = int(threadIdx.x); e < l.E; e += threads_count) {
    const double chosen = double(global_load(sums + e)) / rows;
    aux += chosen * (double(global_load(sums + l.E + e)) / rows);
    global_store(factors + e, float(weights.share * chosen / rows / weights.own));
  }
  aux = weights.share * block_sum(aux) / weights.ranks;
  if (threadIdx.x != 0) return;
  const float factor = float(weights.z / rows / weights.own);
  const double by_z = double(factor) * double(global_load(z));
  global_store(factors + l.E, factor);
  global_store(loss, float(adds ? aux + double(global_load(loss)) : aux));
  global_store(z_loss, float(adds_z ? by_z + double(global_load(z_loss)) : by_z));
}

// ---- Backward

// A warp has a row; to the gradient of one that holds no token nothing is added. Of probabilities p and
// factors f: p * (f - sum(p * f)), for sigmoids (f - sum(p * f)) / S * s * (1 - s) with s = p * S; and twice
// the logarithm, times its factor, times the softmax.
template <class T, class D, bool ADDS>
__global__ void __launch_bounds__(threads_count)
    differentiate(losses l, const T *logits, const float *factors, const int *real, D *d_logits) {
  FSDP_SHARED_DYNAMIC(bytes);
  const int row = int(blockIdx.x) * warps + warp_of_block();
  if (row >= l.N) return;
  const smem<float> p = bytes.part<float>(warp_of_block() * l.E * 4, l.E);
  logits += int64_t(row) * l.E;
  d_logits += int64_t(row) * l.E;
  if (!global_load(real + row)) {
    for (int e = lane_of_warp(); !ADDS && e < l.E; e += warp_lanes)
      global_store(d_logits + e, from_float<D>(0));
    return;
  }
  const row_scores scores = load_probabilities(l, logits, p);
  const float slope = 2 * scores.logarithm * global_load(factors + l.E);
  float dot = 0;
  for (int e = lane_of_warp(); e < l.E; e += warp_lanes) dot += p[e] * global_load(factors + e);
  dot = warp_sum(dot);
  for (int e = lane_of_warp(); e < l.E; e += warp_lanes) {
    const float by_score = l.sigmoids ? p[e] * (1 - p[e] * scores.divisor) : float(p[e]);
    const float softened = expf(to_float(global_load(logits + e)) - scores.logarithm);
    float d = (global_load(factors + e) - dot) * by_score + slope * softened;
    if (ADDS) d += to_float(global_load(d_logits + e));
    global_store(d_logits + e, from_float<D>(d));
  }
}

} // namespace

void cuda_route_counts(const fsdp_kernel_call *call) {
  const losses l = losses_of(call);
  const fsdp_view *o = open_operands(call);
  launch({l.E, threads_count, stream_of(call)}, count_slots, l, data_of<int>(&o[0]),
         static_cast<const int *>(nullptr), data_of<float>(&o[1]), updates(&o[1]));
}

void cuda_route_sums(const fsdp_kernel_call *call) {
  enum { LOGITS, EXPERTS, REAL, SUMS, Z };
  const losses l = losses_of(call);
  const fsdp_view *o = open_operands(call);
  auto *parts = data_of<float>(fsdp_kernel_workspace(call)), *sums = data_of<float>(&o[SUMS]);
  const int64_t part_count = blocks_of(l.N, part_rows);
  const int *real = data_of<int>(&o[REAL]);
  launch({l.E, threads_count, stream_of(call)}, count_slots, l, data_of<int>(&o[EXPERTS]), real, sums,
         updates(&o[SUMS]));
  with_type(o[LOGITS].dtype, [&](auto number) {
    using T = decltype(number);
    launch_shape shape = {part_count, threads_count, stream_of(call)};
    shape.shared_bytes = size_t(warps * (2 * l.E + 2)) * sizeof(float);
    launch(shape, sum_part<T>, l, numbers_of<T>(call, LOGITS), real, parts);
  });
  launch({blocks_of(l.E + 2, threads_count), threads_count, stream_of(call)}, add_parts, l, parts,
         int(part_count), sums, updates(&o[SUMS]), data_of<float>(&o[Z]), updates(&o[Z]));
}

void cuda_route_loss(const fsdp_kernel_call *call) {
  enum { SUMS, Z, LOSS, Z_LOSS, FACTORS };
  const fsdp_op_attrs *attrs = call->attrs;
  const losses l = losses_of(call);
  const fsdp_view *o = open_operands(call);
  FSDP_CHECK(attrs->ranks >= 1, "a loss of %lld ranks", (long long)attrs->ranks);
  const loss_weights weights = {double(attrs->aux_weight) * double(l.E), double(attrs->z_weight),
                                attrs->aux_of_rank ? double(attrs->ranks) : 1, double(attrs->ranks)};
  launch({1, threads_count, stream_of(call)}, make_loss, l, weights, data_of<float>(&o[SUMS]),
         data_of<float>(&o[Z]), data_of<float>(&o[LOSS]), updates(&o[LOSS]), data_of<float>(&o[Z_LOSS]),
         updates(&o[Z_LOSS]), data_of<float>(&o[FACTORS]));
}

void cuda_route_sums_backward(const fsdp_kernel_call *call) {
  enum { LOGITS, FACTORS, REAL, D_LOGITS };
  const losses l = losses_of(call);
  const fsdp_view *o = open_operands(call);
  with_type(o[LOGITS].dtype, [&](auto number) {
    using T = decltype(number);
    launch_shape shape = {blocks_of(l.N, warps), threads_count, stream_of(call)};
    shape.shared_bytes = size_t(warps * l.E) * sizeof(float);
    with_type(o[D_LOGITS].dtype, [&](auto gradient) {
      using D = decltype(gradient);
      launch(shape, updates(&o[D_LOGITS]) ? differentiate<T, D, true> : differentiate<T, D, false>, l,
             numbers_of<T>(call, LOGITS), data_of<float>(&o[FACTORS]), data_of<int>(&o[REAL]),
             numbers_of<D>(call, D_LOGITS));
    });
  });
}
