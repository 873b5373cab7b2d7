// The digest of a range, as defined in kernels/cpu/checksum.c. Blocks add their parts to it with atomics,
// which for integers give the same bits in any order.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;
constexpr int blocks_max = 1024;

__device__ __forceinline__ uint64_t mix(uint64_t word, uint64_t index) {
  uint64_t x = word + (index + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ uint64_t word_of(uint32_t low, uint32_t high) {
  return uint64_t(low) | uint64_t(high) << 32;
}

// Two words an access.
__device__ __forceinline__ uint64_t sum_wide(const uint4 *data, int64_t pairs, int64_t first,
                                             int64_t stride) {
  uint64_t sum = 0;
#pragma unroll 4
  for (int64_t i = first; i < pairs; i += stride) {
    const uint4 four = global_load(data + i);
    sum += mix(word_of(four.x, four.y), uint64_t(2 * i)) + mix(word_of(four.z, four.w), uint64_t(2 * i + 1));
  }
  return sum;
}

// Words from `from` on, half a float at a time: the end of a range, or one at an odd address.
__device__ __forceinline__ uint64_t sum_halves(const uint16_t *data, int64_t halves, int64_t from,
                                               int64_t first, int64_t stride) {
  uint64_t sum = 0;
  for (int64_t i = from + first; 4 * i < halves; i += stride) {
    uint64_t word = 0;
    for (int part = 0; part < 4 && 4 * i + part < halves; part++)
      word |= uint64_t(global_load(data + 4 * i + part)) << (16 * part);
    sum += mix(word, uint64_t(i));
  }
  return sum;
}

__global__ void __launch_bounds__(threads_count)
    sum_words(const uint16_t *data, int64_t halves, bool is_wide, unsigned long long *digest) {
  const int64_t first = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  const int64_t stride = int64_t(gridDim.x) * threads_count;
  const int64_t pairs = is_wide ? halves / 8 : 0;
  uint64_t sum = sum_wide(reinterpret_cast<const uint4 *>(data), pairs, first, stride);
  sum += sum_halves(data, halves, 2 * pairs, first, stride);
  sum = block_sum(sum);
  if (threadIdx.x == 0) global_add(digest, static_cast<unsigned long long>(sum));
}

} // namespace

void cuda_checksum(const fsdp_kernel_call *call) {
  const fsdp_view *source = &open_operands(call)[0], *out = &call->operands[1];
  const int64_t halves = source->numel * fsdp_dtype_bytes(source->dtype) / 2;
  FSDP_CHECK(reinterpret_cast<uintptr_t>(out->data) % 8 == 0, "checksum: the digest is one 64-bit number");
  clear(out->data, 8, stream_of(call));
  const int64_t blocks = blocks_of(halves, int64_t(threads_count) * 8 * 4);
  launch({blocks < blocks_max ? blocks : blocks_max, threads_count, stream_of(call)}, sum_words,
         data_of<const uint16_t>(source), halves, is_aligned(source->data),
         reinterpret_cast<unsigned long long *>(out->data));
}
