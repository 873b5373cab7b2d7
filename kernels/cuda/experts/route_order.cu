// The order of routed rows: a stable counting sort of slots by expert. N rows of k slots, slot i of all of
// them in the order of (row, slot); E experts from `first` on are this rank's.
//
//   count   a block has a chunk of slots: how many of them go to each expert, into the workspace (chunks, E)
//   sum     one block: the workspace becomes, for each chunk, the first routed row of each expert's there,
//           and offsets are the experts' first ones
//   place   a block has a chunk again: each slot's routed row, and back
//
// Each warp counts slots of its own, in their order and 32 at a time: lanes with the same expert find each
// other by votes on the bits of its number. Nothing depends on which warp runs first.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int warps = 8, threads_count = warps * warp_lanes;
constexpr int chunk_slots = FSDP_ROUTE_ORDER_CHUNK, warp_slots = chunk_slots / warps;
static_assert(warp_slots % warp_lanes == 0, "a warp looks at whole groups of slots");
constexpr int sum_threads = 1024;

struct ordering {
  const int *experts;
  int *slots, *offsets, *places, *counts;
  int slot_count, capacity, first, E;
};

// The rank's expert that a slot is sent to; -1: it has none, or another rank has it.
__device__ __forceinline__ int own_expert(const ordering &o, int slot) {
  if (slot >= o.slot_count) return -1;
  const int e = global_load(o.experts + slot) - o.first;
  return e >= 0 && e < o.E ? e : -1;
}

// The lanes whose expert is this one's.
__device__ __forceinline__ uint32_t lanes_with(int expert, int experts) {
  uint32_t same = whole_warp;
  for (int bit = 1; bit < 2 * experts; bit *= 2) { // -1 has all bits
    const uint32_t set = __ballot_sync(whole_warp, (expert & bit) != 0);
    same &= (expert & bit) != 0 ? set : ~set;
  }
  return same;
}

// Counts the warp's slots by expert into its row of `counts` (warps, E).
__device__ __forceinline__ void count_slots(const ordering &o, const smem<int> &counts, int first_slot) {
  const int lane = int(threadIdx.x) % warp_lanes, row = int(threadIdx.x) / warp_lanes * o.E;
  for (int e = lane; e < o.E; e += warp_lanes) counts[row + e] = 0;
  __syncwarp();
  for (int i = 0; i < warp_slots; i += warp_lanes) {
    const int e = own_expert(o, first_slot + i + lane);
    const uint32_t same = lanes_with(e, o.E);
    const bool leads = e >= 0 && (same & ((1u << lane) - 1)) == 0;
    if (leads) counts[row + e] = counts[row + e] + __popc(same);
    __syncwarp();
  }
}

__device__ __forceinline__ int first_slot_of_warp() {
  return int(blockIdx.x) * chunk_slots + int(threadIdx.x) / warp_lanes * warp_slots;
}

__global__ void __launch_bounds__(threads_count) count_chunk(ordering o) {
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<int> counts = bytes.part<int>(0, warps * o.E);
  count_slots(o, counts, first_slot_of_warp());
  __syncthreads();
  for (int e = int(threadIdx.x); e < o.E; e += threads_count) {
    int sum = 0;
    for (int warp = 0; warp < warps; warp++) sum += counts[warp * o.E + e];
    global_store(o.counts + int64_t(blockIdx.x) * o.E + e, sum);
  }
}

// A thread has an expert at a time.
__global__ void __launch_bounds__(sum_threads) sum_chunks(ordering o, int chunks) {
  FSDP_SHARED(int, totals, warp_lanes);
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  int before = 0; // routed rows of the experts before this round's
  for (int from = 0; from < o.E; from += sum_threads) {
    const int e = from + int(threadIdx.x);
    int total = 0;
    if (e < o.E) {
#pragma unroll 8
      for (int chunk = 0; chunk < chunks; chunk++) total += global_load(o.counts + int64_t(chunk) * o.E + e);
    }
    const int past = warp_sum_so_far(total); // of the warp's experts up to this one
    if (lane == warp_lanes - 1) totals[warp] = past;
    __syncthreads();
    int first = before + past - total;
    for (int i = 0; i < warp_lanes; i++) {
      if (i < warp) first += totals[i];
      before += totals[i];
    }
    __syncthreads(); // the next round's totals may take their place
    if (e >= o.E) continue;
    global_store(o.offsets + e, first);
    if (e == o.E - 1) global_store(o.offsets + o.E, first + total);
#pragma unroll 8
    for (int chunk = 0; chunk < chunks; chunk++) {
      int *at = o.counts + int64_t(chunk) * o.E + e;
      const int count = global_load(at);
      global_store(at, first);
      first += count;
    }
  }
}

__global__ void __launch_bounds__(threads_count) place_chunk(ordering o) {
  FSDP_SHARED_DYNAMIC(bytes);
  const smem<int> next = bytes.part<int>(0, warps * o.E);
  const int lane = int(threadIdx.x) % warp_lanes, row = int(threadIdx.x) / warp_lanes * o.E;
  count_slots(o, next, first_slot_of_warp());
  __syncthreads();
  for (int e = int(threadIdx.x); e < o.E; e += threads_count) {
    int place = global_load(o.counts + int64_t(blockIdx.x) * o.E + e);
    for (int warp = 0; warp < warps; warp++) {
      const int count = next[warp * o.E + e];
      next[warp * o.E + e] = place;
      place += count;
    }
  }
  __syncthreads();
  for (int i = 0; i < warp_slots; i += warp_lanes) {
    const int slot = first_slot_of_warp() + i + lane, e = own_expert(o, slot);
    const uint32_t same = lanes_with(e, o.E), before = same & ((1u << lane) - 1);
    const int first = e >= 0 ? int(next[row + e]) : 0, place = e >= 0 ? first + __popc(before) : -1;
    __syncwarp(); // all have read it
    if (e >= 0 && before == 0) next[row + e] = first + __popc(same);
    __syncwarp();
    if (slot < o.slot_count) global_store(o.places + slot, place);
    if (place >= 0) global_store(o.slots + place, slot);
  }
  const int stride = int(gridDim.x) * threads_count;
  for (int u = global_load(o.offsets + o.E) + int(blockIdx.x) * threads_count + int(threadIdx.x);
       u < o.capacity; u += stride)
    global_store(o.slots + u, -1);
}

// One thread.
__global__ void count_overflow(const int *routed, int first_wave, int later, float *overflow, bool adds) {
  const int beyond = global_load(routed) - first_wave, rows = beyond > 0 ? beyond : 0;
  const float waves = float((rows + later - 1) / later);
  global_store(overflow, (adds ? global_load(overflow) : 0.0f) + float(rows));
  global_store(overflow + 1, (adds ? global_load(overflow + 1) : 0.0f) + waves);
}

} // namespace

void cuda_route_order(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call);
  const int64_t slot_count = attrs->batch * attrs->seq * attrs->slots;
  const int64_t capacity = fsdp_op_letter_size(attrs, 'a', 0);
  FSDP_CHECK(slot_count <= INT32_MAX / 2 && capacity <= INT32_MAX / 2 && attrs->experts > 0 &&
                 attrs->experts <= FSDP_ROUTE_EXPERTS_MAX,
             "%s: %lld slots of %lld experts", fsdp_op_name(call->kind), (long long)slot_count,
             (long long)attrs->experts);
  const ordering p = {data_of<int>(&o[0]),
                      data_of<int>(&o[1]),
                      data_of<int>(&o[2]),
                      data_of<int>(&o[3]),
                      data_of<int>(fsdp_kernel_workspace(call)),
                      int(slot_count),
                      int(capacity),
                      int(attrs->first_index),
                      int(attrs->experts)};
  const int64_t chunks = blocks_of(slot_count, chunk_slots);
  launch_shape shape = {chunks, threads_count, stream_of(call)};
  shape.shared_bytes = size_t(warps * p.E) * sizeof(int);
  launch(shape, count_chunk, p);
  launch({1, sum_threads, stream_of(call)}, sum_chunks, p, int(chunks));
  launch(shape, place_chunk, p);
}

void cuda_route_overflow(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  const fsdp_view *o = open_operands(call);
  launch({1, 1, stream_of(call)}, count_overflow, data_of<int>(&o[0]) + attrs->experts, int(attrs->routed),
         int(fsdp_op_later_wave_rows(attrs)), data_of<float>(&o[1]), updates(&o[1]));
}
