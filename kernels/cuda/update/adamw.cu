// AdamW (Loshchilov and Hutter 2019) as torch.optim.AdamW, on flat shards. kernels/cpu/update/adamw.c
// describes the stochastic rounding of a bf16 state; the random bits are the same here. A thread's eight
// elements take the eight lanes of one Philox block per state. A vector that is not aligned so (a parameter
// begins or ends in it, or its index is not a multiple of 8) is processed element by element. Shards and
// parameters begin at multiples of 16, so these are few.
//
// The segments are a parameter of the launch, so a shard of many parameters takes several consecutive
// launches.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"
#include "runtime/base/random_math.h"

#include <float.h>
#include <math.h>

namespace {

constexpr int threads_count = 256;
constexpr int width = 8, lanes = 8; // of a thread; 16-bit lanes of a Philox block
constexpr int segments_max = 64;    // of a launch: 3 KiB of its parameters

struct segment_list {
  fsdp_param_run run[segments_max];
  int count; // 0: nothing is processed by parameter
};

template <class G, class P, class M> struct update {
  const G *grad;
  P *master;
  M *m, *v;
  void *copy; // NULL: none
  const float *scalars, *factor;
  int64_t first, end; // elements of the shard that this launch updates
  uint64_t seed;
  float rest1, beta2, rest2, eps, weight_decay; // rest: 1 - beta
  bool copy_is_bf16, decays_some;
};

// Up with the probability of the part that is cut off; the result as the float that bf16 holds exactly.
// Infinity stays. So does NaN, whose highest bit of the fraction arithmetic has set: there is nothing to
// branch on.
__device__ __forceinline__ float round_stochastically(float value, uint32_t lane) {
  const uint32_t bits = __float_as_uint(value);
  return __uint_as_float((bits + (fabsf(value) < INFINITY ? lane : 0u)) & 0xffff0000u);
}

// The segment that holds element `at` or, if none does, the next one.
__device__ __forceinline__ int find_segment(const segment_list &list, int64_t at) {
  int low = 0, high = list.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list.run[middle].shard_offset + list.run[middle].numel <= at) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The source of a vector's random bits.
struct random_source {
  uint64_t stream, element; // of the vector's first element
  bool rounds;              // else padding
};

// The source of WIDTH elements from `at` on; false if they do not share one.
template <int WIDTH>
__device__ __forceinline__ bool find_source(const segment_list &list, int64_t at, random_source *source) {
  source->rounds = false;
  if (list.count == 0) return true;
  const int segment = find_segment(list, at);
  if (segment == list.count || list.run[segment].shard_offset >= at + WIDTH) return true;
  const fsdp_param_run &run = list.run[segment];
  int64_t offset = at - run.shard_offset, row_end = run.numel, row = 0;
  if (run.row_numel > 0 && offset >= 0) {
    row = uint32_t(offset) / uint32_t(run.row_numel); // in 64 bits a division is a call
    row_end = least((row + 1) * run.row_numel, run.numel);
  }
  source->rounds = true;
  source->stream = run.random_stream;
  source->element = uint64_t(run.element_index + row * (run.row_step - run.row_numel) + offset);
  return WIDTH == 1 || (offset >= 0 && offset + WIDTH <= row_end && source->element % lanes == 0);
}

// Rounds state `state` of WIDTH elements: a whole block's or one.
template <int WIDTH>
__device__ __forceinline__ void round_state(float (&x)[WIDTH], uint64_t key, const random_source &source,
                                            int state) {
  static_assert(WIDTH == 1 || WIDTH == lanes, "one block");
  uint32_t random[4];
  fsdp_philox(FSDP_ROUNDING_ROUNDS, key, source.stream, 3 * (source.element / lanes) + unsigned(state),
              random);
  if constexpr (WIDTH == 1) {
    const unsigned lane = unsigned(source.element % lanes);
    uint32_t word = random[0];
#pragma unroll
    for (unsigned w = 1; w < 4; w++) word = lane / 2 == w ? random[w] : word;
    x[0] = round_stochastically(x[0], lane % 2 ? word >> 16 : word & 0xffffu);
  } else {
#pragma unroll
    for (int i = 0; i < WIDTH; i += 2) {
      x[i] = round_stochastically(x[i], random[i / 2] & 0xffffu);
      x[i + 1] = round_stochastically(x[i + 1], random[i / 2] >> 16);
    }
  }
}

// Square root of x >= 0 and quotient within a unit in the last place, exact where the result is a float: the
// hardware's approximation and one step of Newton's method. CUDA's own branch for each element. A root below
// that of the least normal float is that one.
__device__ __forceinline__ float root(float x) {
  const float normal = fmaxf(x, FLT_MIN), inverse = rsqrt_approx(normal), near = normal * inverse;
  const float nearer = fmaf(fmaf(-near, near, normal), 0.5f * inverse, near);
  return x < INFINITY ? nearer : x;
}
__device__ __forceinline__ float quotient(float x, float y) {
  const float inverse = reciprocal_approx(y), near = x * inverse;
  const float nearer = fmaf(fmaf(-y, near, x), inverse, near);
  return nearer == nearer ? nearer : near; // y is 0 or infinite
}

// The decay of WIDTH elements from `at` on, where some parameters have none; false if they do not share one.
template <int WIDTH>
__device__ __forceinline__ bool find_decay(const segment_list &list, int64_t at, float decay, float *found) {
  *found = decay;
  const int segment = find_segment(list, at);
  if (segment == list.count || list.run[segment].shard_offset >= at + WIDTH) return true;
  const fsdp_param_run &run = list.run[segment];
  if (run.undecayed) *found = 1.0f;
  return run.shard_offset <= at && at + WIDTH <= run.shard_offset + run.numel;
}

struct step_numbers {
  float factor, decay, step_size, inverse_root, eps, rest1, beta2, rest2;
  uint64_t key;
};

template <class Update> __device__ __forceinline__ step_numbers read_step(const Update &p) {
  const float lr = global_load(p.scalars + FSDP_SCALAR_LR);
  step_numbers s;
  s.factor = global_load(p.factor);
  s.decay = 1.0f - lr * p.weight_decay;
  s.step_size = quotient(lr, global_load(p.scalars + FSDP_SCALAR_CORRECTION1));
  s.inverse_root = quotient(1.0f, root(global_load(p.scalars + FSDP_SCALAR_CORRECTION2)));
  s.eps = p.eps;
  s.rest1 = p.rest1;
  s.beta2 = p.beta2;
  s.rest2 = p.rest2;
  s.key = p.seed ^ uint64_t(global_load(p.scalars + FSDP_SCALAR_STEP));
  return s;
}

template <int WIDTH> struct elements { float grad[WIDTH], master[WIDTH], m[WIDTH], v[WIDTH]; };

template <int WIDTH, class G, class P, class M>
__device__ __forceinline__ void load(const update<G, P, M> &p, int64_t at, elements<WIDTH> *x) {
  load_floats<WIDTH>(p.grad + at, x->grad);
  load_floats<WIDTH>(p.master + at, x->master);
  load_floats<WIDTH>(p.m + at, x->m);
  load_floats<WIDTH>(p.v + at, x->v);
}

// WIDTH elements from `at` on. An fp32 state is stored unchanged. A bf16 state is processed by the store,
// which does not change a value that was already rounded stochastically.
template <int WIDTH, class G, class P, class M>
__device__ __forceinline__ void advance(const update<G, P, M> &p, const random_source &source,
                                        const step_numbers &s, int64_t at, elements<WIDTH> *x) {
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    const float g = x->grad[i] * s.factor;
    x->m[i] = x->m[i] + s.rest1 * (g - x->m[i]);
    x->v[i] = s.beta2 * x->v[i] + s.rest2 * g * g;
    x->master[i] =
        s.decay * x->master[i] - quotient(s.step_size * x->m[i], root(x->v[i]) * s.inverse_root + s.eps);
  }
  if (source.rounds) {
    if constexpr (sizeof(P) == 2) round_state<WIDTH>(x->master, s.key, source, 0);
    if constexpr (sizeof(M) == 2) round_state<WIDTH>(x->m, s.key, source, 1);
    if constexpr (sizeof(M) == 2) round_state<WIDTH>(x->v, s.key, source, 2);
  }
  store_floats<WIDTH>(p.master + at, x->master);
  store_floats<WIDTH>(p.m + at, x->m);
  store_floats<WIDTH>(p.v + at, x->v);
  if (!p.copy) return;
    // The copy is of the master as stored, so that it equals a later cast of the master.
#pragma unroll
  for (int i = 0; i < WIDTH; i++) x->master[i] = to_float(from_float<P>(x->master[i]));
  if (p.copy_is_bf16) {
    store_floats<WIDTH>(static_cast<bf16 *>(p.copy) + at, x->master);
  } else {
    store_floats<WIDTH>(static_cast<float *>(p.copy) + at, x->master);
  }
}

template <int WIDTH, class G, class P, class M>
__global__ void __launch_bounds__(threads_count)
    update_range(const __grid_constant__ update<G, P, M> p, const __grid_constant__ segment_list list) {
  const int64_t at = p.first + (int64_t(blockIdx.x) * threads_count + threadIdx.x) * WIDTH;
  if (at >= p.end) return;
  elements<WIDTH> x;
  const bool whole = at + WIDTH <= p.end;
  if (whole) load<WIDTH>(p, at, &x); // on its way while the step's numbers and the source are found
  constexpr bool rounds = sizeof(P) == 2 || sizeof(M) == 2;
  step_numbers s = read_step(p);
  const float decay = s.decay;
  if (s.factor == FSDP_FACTOR_SKIP) return;
  random_source source = {};
  if (whole && (!p.decays_some || find_decay<WIDTH>(list, at, decay, &s.decay)) &&
      (!rounds || find_source<WIDTH>(list, at, &source))) {
    advance<WIDTH>(p, source, s, at, &x);
    return;
  }
#pragma unroll 1
  for (int64_t i = at; i < least(p.end, at + WIDTH); i++) {
    elements<1> one;
    load<1>(p, i, &one);
    if (rounds) find_source<1>(list, i, &source);
    if (p.decays_some) find_decay<1>(list, i, decay, &s.decay);
    advance<1>(p, source, s, i, &one);
  }
}

template <class G, class P, class M> void launch_updates(const fsdp_kernel_call *call, update<G, P, M> p) {
  const int64_t count = call->operands[0].numel;
  const bool by_param = sizeof(P) == 2 || sizeof(M) == 2 || p.decays_some;
  const bool wide =
      is_aligned(p.grad) && is_aligned(p.master) && is_aligned(p.m) && is_aligned(p.v) && is_aligned(p.copy);
  for (int next = 0; p.first < count;) {
    segment_list list = {};
    while (by_param && next < call->segment_count && list.count < segments_max)
      list.run[list.count++] = call->segments[next++];
    p.end = count;
    if (by_param && next < call->segment_count) { // the next launch starts on a whole vector
      p.end = call->segments[next].shard_offset / width * width;
      if (p.end < call->segments[next].shard_offset &&
          p.end < list.run[list.count - 1].shard_offset + list.run[list.count - 1].numel)
        p.end = call->segments[next].shard_offset;
    }
    launch({blocks_of(p.end - p.first, int64_t(threads_count) * (wide && p.first % width == 0 ? width : 1)),
            threads_count, stream_of(call)},
           wide && p.first % width == 0 ? update_range<width, G, P, M> : update_range<1, G, P, M>, p, list);
    p.first = p.end;
  }
}

} // namespace

void cuda_adamw(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call), *grad = &o[0], *state = &o[3];
  FSDP_CHECK(state[1].dtype == state[2].dtype, "adamw: both moments have one dtype");
  const fsdp_view *copy = call->operand_count == 7 ? &o[6] : nullptr;
  FSDP_CHECK(!copy || copy->dtype == FSDP_BF16 || copy->dtype == FSDP_F32, "adamw: the copy is bf16 or fp32");
  with_type(grad->dtype, [&](auto gradient) {
    using G = decltype(gradient);
    with_type(state[0].dtype, [&](auto parameter) {
      using P = decltype(parameter);
      with_type(state[1].dtype, [&](auto moment) {
        using M = decltype(moment);
        update<G, P, M> p = {};
        p.grad = data_of<G>(grad);
        p.master = data_of<P>(&state[0]);
        p.m = data_of<M>(&state[1]);
        p.v = data_of<M>(&state[2]);
        p.copy = copy ? copy->data : nullptr;
        p.copy_is_bf16 = copy && copy->dtype == FSDP_BF16;
        p.scalars = data_of<float>(&o[1]);
        p.factor = data_of<float>(&o[2]);
        p.seed = call->seed;
        p.rest1 = float(1 - attrs->beta1);
        p.beta2 = float(attrs->beta2);
        p.rest2 = float(1 - attrs->beta2);
        p.eps = attrs->adam_eps;
        p.weight_decay = attrs->weight_decay;
        p.decays_some = attrs->decays_some;
        launch_updates(call, p);
      });
    });
  });
}
