// New weights: normal numbers by parameter name and element index, with the CPU's bits
// (runtime/base/random_math.h). A thread draws one Philox block of four numbers. The first and last block may
// lie only partly in the range.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/operand.cuh"
#include "runtime/base/random_math.h"

namespace {

constexpr int threads_count = 256, block_numel = 4;

template <class T>
__global__ void __launch_bounds__(threads_count)
    draw_range(const __grid_constant__ fsdp_drawing d, T *out, int64_t blocks) {
  const int64_t block = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  if (block >= blocks) return;
  const int64_t index = d.first / block_numel + block;
  float normals[block_numel];
  fsdp_normal_block(d.seed, d.stream, uint64_t(index), normals);
#pragma unroll
  for (int i = 0; i < block_numel; i++) {
    const int64_t at = index * block_numel + i - d.first;
    if (at < 0 || at >= d.numel) continue;
    const int64_t zero = d.first + at - d.zero_first;
    const bool is_zero = zero >= 0 && zero < d.zero_numel;
    global_store(out + at, from_float<T>(is_zero ? 0 : fsdp_scale_shift(normals[i], d.deviation, d.mean)));
  }
}

} // namespace

extern "C" void fsdp_cuda_draw(const fsdp_drawing *drawing, void *out, fsdp_dtype dtype, void *stream) {
  if (drawing->numel == 0) return;
  const int64_t last = drawing->first + drawing->numel - 1;
  const int64_t blocks = last / block_numel - drawing->first / block_numel + 1;
  with_type(dtype, [&](auto number) {
    using T = decltype(number);
    for (bool only : {true, false}) { // both are loaded first, like every kernel
      launch({blocks_of(blocks, threads_count), threads_count, {stream, only}}, draw_range<T>, *drawing,
             static_cast<T *>(out), blocks);
    }
  });
}
