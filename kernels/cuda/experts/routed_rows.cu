// Routed experts between their products: SwiGLU times the weight of the routed row, its backward, and the
// sum over a row's slots. N rows of k slots each; places[i] is the number of the routed row of slot i (row,
// then slot), -1: another rank has it. Operands have U routed rows, from number `first` on; an op works on
// those of its experts, offsets[0] to offsets[E] - 1. Rows of gate|up have 2 I columns, rows of the sum C.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

// Which routed rows the operands have, and of which experts; `offsets` NULL: of all.
struct routed_range {
  const int *places, *offsets;
  int first, count, experts;
};
inline routed_range range_of(const fsdp_kernel_call *call, const fsdp_view *places, const int *offsets) {
  return {data_of<int>(places), offsets, int(call->attrs->first_routed),
          int(fsdp_op_letter_size(call->attrs, 'u', 0)), int(call->attrs->experts)};
}
// The operands' row of a slot; -1: they have none.
__device__ __forceinline__ int64_t row_of(const routed_range &range, int64_t slot) {
  const int row = global_load(range.places + slot) - range.first;
  return row >= 0 && row < range.count ? row : -1;
}
// The same of an op on experts.
__device__ __forceinline__ int64_t own_row_of(const routed_range &range, int64_t slot) {
  const int place = global_load(range.places + slot);
  if (place < global_load(range.offsets) || place >= global_load(range.offsets + range.experts)) return -1;
  return row_of(range, slot);
}

template <class T> struct routed {
  T *gate_up; // backward: its gradient takes its place
  const T *d_s;
  T *s;
  const float *weights;
  float *d_weights;
  bool adds; // to d_weights
  routed_range range;
  int64_t I;
  int blocks_per_row;
};

// A thread has one vector of a routed row.
template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) activate(routed<T> p) {
  const int64_t slot = blockIdx.x / unsigned(p.blocks_per_row);
  const int64_t c = (int64_t(blockIdx.x % unsigned(p.blocks_per_row)) * threads_count + threadIdx.x) * WIDTH;
  const int64_t row = own_row_of(p.range, slot);
  if (row < 0 || c >= p.I) return;
  const float weight = global_load(p.weights + slot);
  float gate[WIDTH], up[WIDTH];
  load_floats<WIDTH>(p.gate_up + row * 2 * p.I + c, gate);
  load_floats<WIDTH>(p.gate_up + (row * 2 + 1) * p.I + c, up);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) gate[i] = weight * (gate[i] * sigmoid(gate[i]) * up[i]);
  store_floats<WIDTH>(p.s + row * p.I + c, gate);
}

// A block has a slot: the weight's gradient is a sum over its routed row.
template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) differentiate(routed<T> p) {
  const int64_t slot = blockIdx.x, row = own_row_of(p.range, slot);
  if (row < 0) {
    if (threadIdx.x == 0 && !p.adds) global_store(p.d_weights + slot, 0.0f);
    return;
  }
  const float weight = global_load(p.weights + slot);
  float d_weight = 0;
  for (int64_t c = int64_t(threadIdx.x) * WIDTH; c < p.I; c += int64_t(blockDim.x) * WIDTH) {
    float gate[WIDTH], up[WIDTH], d_s[WIDTH];
    load_floats<WIDTH>(p.gate_up + row * 2 * p.I + c, gate);
    load_floats<WIDTH>(p.gate_up + (row * 2 + 1) * p.I + c, up);
    load_floats<WIDTH>(p.d_s + row * p.I + c, d_s);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      const float sig = sigmoid(gate[i]), g = gate[i], d = weight * d_s[i];
      d_weight += d_s[i] * (g * sig * up[i]);
      gate[i] = d * up[i] * sig * (1.0f + g * (1.0f - sig));
      up[i] = d * g * sig;
    }
    store_floats<WIDTH>(p.gate_up + row * 2 * p.I + c, gate);
    store_floats<WIDTH>(p.gate_up + (row * 2 + 1) * p.I + c, up);
  }
  d_weight = block_sum(d_weight);
  if (threadIdx.x != 0) return;
  if (p.adds) d_weight += global_load(p.d_weights + slot);
  global_store(p.d_weights + slot, d_weight);
}

int64_t slots_of(const fsdp_kernel_call *call) {
  return call->attrs->batch * call->attrs->seq * call->attrs->slots;
}

template <class T> struct combination {
  const T *z;
  routed_range range;
  T *y;
  int64_t C;
  int k, blocks_per_row;
  bool adds;
};

// A thread has one vector of a row; slots are added in their order.
template <class T, int WIDTH> __global__ void __launch_bounds__(threads_count) add_slots(combination<T> p) {
  const int64_t n = blockIdx.x / unsigned(p.blocks_per_row);
  const int64_t c = (int64_t(blockIdx.x % unsigned(p.blocks_per_row)) * threads_count + threadIdx.x) * WIDTH;
  if (c >= p.C) return;
  float sum[WIDTH] = {};
  bool any = !p.adds;
#pragma unroll 4
  for (int j = 0; j < p.k; j++) {
    const int64_t row = row_of(p.range, n * p.k + j);
    if (row < 0) continue;
    any = true;
    float x[WIDTH];
    load_floats<WIDTH>(p.z + row * p.C + c, x);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += x[i];
  }
  if (!any) return;
  T *at = p.y + n * p.C + c;
  if (p.adds) {
    float old[WIDTH];
    load_floats<WIDTH>(at, old);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] += old[i];
  }
  store_floats<WIDTH>(at, sum);
}

} // namespace

void cuda_expert_swiglu(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    routed<T> p = {};
    p.gate_up = numbers_of<T>(call, 0);
    p.weights = data_of<float>(&o[1]);
    p.range = range_of(call, &o[2], data_of<int>(&o[3]));
    p.s = numbers_of<T>(call, 4);
    p.I = call->attrs->intermediate;
    const bool wide = takes_vectors<T>(p.I, p.gate_up, p.d_s, p.s);
    p.blocks_per_row = int(blocks_of(p.I, int64_t(threads_count) * (wide ? width : 1)));
    launch({slots_of(call) * p.blocks_per_row, threads_count, stream_of(call)},
           wide ? activate<T, width> : activate<T, 1>, p);
  });
}

void cuda_expert_swiglu_backward(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    routed<T> p = {};
    p.d_s = numbers_of<T>(call, 0);
    p.weights = data_of<float>(&o[1]);
    p.range = range_of(call, &o[2], data_of<int>(&o[3]));
    p.gate_up = numbers_of<T>(call, 4);
    p.d_weights = data_of<float>(&o[5]);
    p.adds = updates(&o[5]);
    p.I = call->attrs->intermediate;
    const bool wide = takes_vectors<T>(p.I, p.gate_up, p.d_s, p.s);
    const int64_t vectors = blocks_of(p.I, wide ? width : 1);
    const int threads = int(fsdp_min_i64(threads_count, fsdp_round_up(vectors, warp_lanes)));
    launch({slots_of(call), threads, stream_of(call)}, wide ? differentiate<T, width> : differentiate<T, 1>,
           p);
  });
}

void cuda_combine(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call);
  with_type(o[0].dtype, [&](auto number) {
    using T = decltype(number);
    constexpr int width = vector_numel<T>;
    combination<T> p = {};
    p.z = numbers_of<T>(call, 0);
    p.range = range_of(call, &o[1], nullptr);
    p.y = numbers_of<T>(call, 2);
    p.C = attrs->channels;
    p.k = int(attrs->slots);
    p.adds = updates(&o[2]);
    const bool wide = takes_vectors<T>(p.C, p.z, p.y);
    p.blocks_per_row = int(blocks_of(p.C, int64_t(threads_count) * (wide ? width : 1)));
    launch({attrs->batch * attrs->seq * p.blocks_per_row, threads_count, stream_of(call)},
           wide ? add_slots<T, width> : add_slots<T, 1>, p);
  });
}
