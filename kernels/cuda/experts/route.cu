// The router: which experts a row goes to and with what weights, its backward, and how many rows each
// expert has. N rows, E experts in groups, k of them for a row. A warp has a row, and its numbers in shared
// memory.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

#include <math.h>

namespace {

constexpr int warps = 4, threads_count = warps * warp_lanes;

struct router {
  int N, E, k, groups, groups_kept, group_best;
  fsdp_route_score score;
  bool normalises;
  float scale;
  int floats; // of a warp's shared memory
  const int
      *routes; // (N, route_stride): k from its start on are given if the first is not below 0; NULL: none are
  int route_stride;
};

router router_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const int64_t N = attrs->batch * attrs->seq, E = attrs->experts, k = attrs->slots;
  FSDP_CHECK(k >= 1 && k <= E && E <= FSDP_ROUTE_EXPERTS_MAX && N * k <= INT32_MAX / 2,
             "%s: %lld rows, %lld of %lld experts", fsdp_op_name(call->kind), (long long)N, (long long)k,
             (long long)E);
  router r = {};
  r.N = int(N);
  r.E = int(E);
  r.k = int(k);
  r.groups = attrs->route_groups ? int(attrs->route_groups) : 1;
  r.groups_kept = int(attrs->route_groups_kept);
  r.group_best = int(attrs->route_group_best);
  r.score = attrs->route_score;
  r.normalises = attrs->route_normalises;
  r.scale = attrs->route_scale > 0 ? attrs->route_scale : 1;
  return r;
}

__device__ __forceinline__ int lane_of_warp() {
  return int(threadIdx.x) % warp_lanes;
}
// Below 0: none, past the last row.
__device__ __forceinline__ int row_of_warp(const router &r) {
  const int row = int(blockIdx.x) * warps + int(threadIdx.x) / warp_lanes;
  return row < r.N ? row : -1;
}
__device__ __forceinline__ smem<float> floats_of_warp(const router &r, const smem<unsigned char> &bytes) {
  return bytes.part<float>(int(threadIdx.x) / warp_lanes * r.floats * 4, r.floats);
}

// ---- Scores

// In place, over `count` numbers that the warp has written.
__device__ __forceinline__ void softmax(const smem<float> &p, int count) {
  float greatest = -INFINITY, sum = 0;
  for (int e = lane_of_warp(); e < count; e += warp_lanes) greatest = fmaxf(greatest, p[e]);
  greatest = warp_greatest(greatest);
  for (int e = lane_of_warp(); e < count; e += warp_lanes) {
    p[e] = expf(p[e] - greatest);
    sum += p[e];
  }
  sum = warp_sum(sum);
  for (int e = lane_of_warp(); e < count; e += warp_lanes) p[e] = p[e] / sum;
}

template <class T>
__device__ __forceinline__ void load_scores(const router &r, const T *logits, const smem<float> &p) {
  for (int e = lane_of_warp(); e < r.E; e += warp_lanes) {
    const float x = to_float(global_load(logits + e));
    p[e] = r.score == FSDP_ROUTE_SIGMOID ? 1 / (1 + expf(-x)) : x;
  }
  if (r.score == FSDP_ROUTE_SOFTMAX) softmax(p, r.E);
}

// What the sum of the chosen scores is divided by: sigmoids may all be 0.
__device__ __forceinline__ float divided_by(const router &r, float sum) {
  return r.score == FSDP_ROUTE_SIGMOID ? sum + 1e-20f : sum;
}

// ---- The choice

// A number among others: the greater one comes first, and of equals the one of lower index.
struct ranked {
  float value;
  int index;
};
__device__ __forceinline__ bool comes_before(const ranked &a, const ranked &b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The first of the numbers [first, first + count) behind `last`, among those that this lane looks at, every
// `stride`th from its own on.
__device__ __forceinline__ ranked next_of(const smem<float> &values, int first, int count, int own,
                                          int stride, const ranked &last) {
  ranked best = {-INFINITY, INT32_MAX};
  for (int i = own; i < count; i += stride) {
    const ranked x = {values[first + i], i};
    if (comes_before(last, x) && comes_before(x, best)) best = x;
  }
  return best;
}
constexpr ranked before_all = {INFINITY, -1};

// Of all lanes.
__device__ __forceinline__ ranked warp_next_of(const smem<float> &values, int count, const ranked &last) {
  ranked best = next_of(values, 0, count, lane_of_warp(), warp_lanes, last);
#pragma unroll
  for (int bits = warp_lanes / 2; bits > 0; bits /= 2) {
    const ranked other = {__shfl_xor_sync(whole_warp, best.value, bits),
                          __shfl_xor_sync(whole_warp, best.index, bits)};
    if (comes_before(other, best)) best = other;
  }
  return best;
}

// Experts outside of the best groups get -infinity. A group is as good as the sum of its best numbers.
// `groups`: room for two numbers of each.
__device__ __forceinline__ void keep_groups(const router &r, const smem<float> &choice,
                                            const smem<float> &groups) {
  const int each = r.E / r.groups;
  for (int g = lane_of_warp(); g < r.groups; g += warp_lanes) {
    float sum = 0;
    ranked last = before_all;
    for (int j = 0; j < r.group_best; j++) {
      last = next_of(choice, g * each, each, 0, 1, last);
      sum += last.value;
    }
    groups[g] = sum;
    groups[r.groups + g] = 0;
  }
  __syncwarp();
  ranked last = before_all;
  for (int j = 0; j < r.groups_kept; j++) {
    last = warp_next_of(groups, r.groups, last);
    if (lane_of_warp() == 0) groups[r.groups + last.index] = 1;
  }
  __syncwarp();
  for (int e = lane_of_warp(); e < r.E; e += warp_lanes)
    if (groups[r.groups + e / each] == 0) choice[e] = -INFINITY;
}

// Shared memory of a warp: scores, what experts are chosen by, the chosen scores, groups.
template <class T, class B>
__global__ void __launch_bounds__(threads_count)
    choose(router r, const T *logits, const B *bias, float *weights, int *experts) {
  FSDP_SHARED_DYNAMIC(bytes);
  const int row = row_of_warp(r), lane = lane_of_warp();
  if (row < 0) return;
  const smem<float> p = floats_of_warp(r, bytes), choice = p.part<float>(r.E * 4, r.E),
                    chosen = p.part<float>(2 * r.E * 4, r.k),
                    groups = p.part<float>((2 * r.E + r.k) * 4, 2 * r.groups);
  load_scores(r, logits + int64_t(row) * r.E, p);
  for (int e = lane; e < r.E; e += warp_lanes) {
    const float x = bias ? p[e] + to_float(global_load(bias + e)) : float(p[e]);
    choice[e] = isnan(x) ? -INFINITY : x; // below every number: a row still goes to k different experts
  }
  __syncwarp();
  if (r.groups > 1) keep_groups(r, choice, groups);
  __syncwarp();
  weights += int64_t(row) * r.k;
  experts += int64_t(row) * r.k;
  const int *given = r.routes ? r.routes + int64_t(row) * r.route_stride : nullptr;
  const bool is_given = given && global_load(given) >= 0;
  float sum = 0;
  ranked last = before_all;
  for (int j = 0; j < r.k; j++) {
    if (is_given) {
      last.index = global_load(given + j);
    } else {
      last = warp_next_of(choice, r.E, last);
    }
    sum += p[last.index];
    if (lane == j % warp_lanes) {
      chosen[j] = p[last.index];
      global_store(experts + j, last.index);
    }
  }
  if (r.score == FSDP_ROUTE_LOGITS) softmax(chosen, r.k); // a lane has the numbers that it wrote
  for (int j = lane; j < r.k; j += warp_lanes) {
    const float weight = r.normalises ? chosen[j] / divided_by(r, sum) : float(chosen[j]);
    global_store(weights + j, weight * r.scale);
  }
}

// ---- Backward

// With p the scores, S the sum of the chosen ones (1 if weights are not normalised) and w = p / S, before
// they are scaled: d_p is (d_w - sum(d_w * w)) / S of the chosen, without the sum if they are not
// normalised, and 0 of the others. Where weights are the softmax of the chosen logits: w * (d_w - sum(d_w *
// w)).
__device__ __forceinline__ void differentiate_weights(const router &r, const smem<float> &p,
                                                      const int *experts, const float *d_weights,
                                                      const smem<float> &d) {
  const bool softens = r.score == FSDP_ROUTE_LOGITS;
  float greatest = -INFINITY, sum = 0, mean = 0;
  for (int e = lane_of_warp(); e < r.E; e += warp_lanes) d[e] = 0;
  __syncwarp();
  for (int j = 0; softens && j < r.k; j++) greatest = fmaxf(greatest, p[global_load(experts + j)]);
  const auto weight = [&](int j) {
    const float x = p[global_load(experts + j)];
    return softens ? expf(x - greatest) : x;
  };
  for (int j = 0; j < r.k; j++) sum += weight(j);
  if (!softens) sum = r.normalises ? divided_by(r, sum) : 1.0f;
  for (int j = 0; (softens || r.normalises) && j < r.k; j++)
    mean += r.scale * global_load(d_weights + j) * weight(j) / sum;
  for (int j = lane_of_warp(); j < r.k; j += warp_lanes) {
    const float d_weight = r.scale * global_load(d_weights + j) - mean;
    d[global_load(experts + j)] = softens ? d_weight * weight(j) / sum : d_weight / sum;
  }
  __syncwarp();
}

// Shared memory of a warp: scores and their gradients.
template <class T, class D, bool ADDS>
__global__ void __launch_bounds__(threads_count)
    differentiate(router r, const T *logits, const int *experts, const float *d_weights, D *d_logits) {
  FSDP_SHARED_DYNAMIC(bytes);
  const int row = row_of_warp(r);
  if (row < 0) return;
  const smem<float> p = floats_of_warp(r, bytes), d = p.part<float>(r.E * 4, r.E);
  load_scores(r, logits + int64_t(row) * r.E, p);
  __syncwarp();
  differentiate_weights(r, p, experts + int64_t(row) * r.k, d_weights + int64_t(row) * r.k, d);
  float dot = 0;
  for (int e = lane_of_warp(); e < r.E; e += warp_lanes) dot += p[e] * d[e];
  dot = warp_sum(dot);
  d_logits += int64_t(row) * r.E;
  for (int e = lane_of_warp(); e < r.E; e += warp_lanes) {
    const float score = p[e];
    float x = d[e];
    if (r.score == FSDP_ROUTE_SIGMOID) x = x * score * (1 - score);
    if (r.score == FSDP_ROUTE_SOFTMAX) x = score * (x - dot);
    if (ADDS) x += to_float(global_load(d_logits + e));
    global_store(d_logits + e, from_float<D>(x));
  }
}

// ---- Loads

// A block has an expert: E times its slots in rows that hold a token, less all of these.
template <class T>
__global__ void __launch_bounds__(threads_count)
    count_slots(router r, const int *experts, const int *real, T *loads, bool adds) {
  int own = 0, all = 0;
  for (int i = int(threadIdx.x); i < r.N * r.k; i += threads_count) {
    const int counts = global_load(real + i / r.k);
    own += global_load(experts + i) == int(blockIdx.x) ? counts : 0;
    all += counts;
  }
  own = block_sum(own);
  all = block_sum(all);
  if (threadIdx.x != 0) return;
  const float load = float(r.E) * float(own) - float(all); // whole numbers, exact up to 2^24
  T *at = loads + blockIdx.x;
  global_store(at, from_float<T>(adds ? load + to_float(global_load(at)) : load));
}

launch_shape shape_of(const fsdp_kernel_call *call, const router &r) {
  launch_shape shape = {blocks_of(r.N, warps), threads_count, stream_of(call)};
  shape.shared_bytes = size_t(warps * r.floats) * sizeof(float);
  return shape;
}

// `bias`, `routes`: the operands, or -1. Behind a bias are the rows that hold a token, for the backward.
void run_route(const fsdp_kernel_call *call, int bias, int routes) {
  router r = router_of(call);
  r.floats = 2 * r.E + r.k + 2 * r.groups;
  const fsdp_view *o = open_operands(call);
  const fsdp_view *made = &o[1 + 2 * (bias >= 0) + (routes >= 0)];
  if (routes >= 0) {
    r.routes = data_of<int>(&o[routes]) + call->attrs->out_offset;
    r.route_stride = int(call->attrs->out_stride);
  }
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    with_type(bias >= 0 ? o[bias].dtype : FSDP_F32, [&](auto added) {
      using B = decltype(added);
      launch(shape_of(call, r), choose<T, B>, r, numbers_of<T>(call, 0),
             bias >= 0 ? numbers_of<B>(call, bias) : static_cast<B *>(nullptr), data_of<float>(&made[0]),
             data_of<int>(&made[1]));
    });
  });
}

} // namespace

void cuda_route(const fsdp_kernel_call *call) {
  run_route(call, -1, -1);
}

void cuda_route_biased(const fsdp_kernel_call *call) {
  run_route(call, 1, -1);
}

void cuda_route_given(const fsdp_kernel_call *call) {
  run_route(call, -1, 1);
}

void cuda_route_given_biased(const fsdp_kernel_call *call) {
  run_route(call, 1, 3);
}

void cuda_route_backward(const fsdp_kernel_call *call) {
  router r = router_of(call);
  r.floats = 2 * r.E;
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    with_type(o[3].dtype, [&](auto gradient) {
      using D = decltype(gradient);
      launch(shape_of(call, r), updates(&o[3]) ? differentiate<T, D, true> : differentiate<T, D, false>, r,
             numbers_of<T>(call, 0), data_of<int>(&o[1]), data_of<float>(&o[2]), numbers_of<D>(call, 3));
    });
  });
}

void cuda_route_loads(const fsdp_kernel_call *call) {
  const router r = router_of(call);
  const fsdp_view *o = open_operands(call);
  with_type(o[2].dtype, [&](auto number) {
    using T = decltype(number);
    launch({r.E, threads_count, stream_of(call)}, count_slots<T>, r, data_of<int>(&o[0]), data_of<int>(&o[1]),
           numbers_of<T>(call, 2), updates(&o[2]));
  });
}
