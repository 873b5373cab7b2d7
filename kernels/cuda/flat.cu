// Movement over flat ranges: casts, additions, zeros, and signalling NaNs for tests.
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

namespace {

constexpr int threads_count = 256;
constexpr int width = 8;

template <class S, class D, int WIDTH, bool ADDS>
__device__ __forceinline__ void move(const S *source, D *destination) {
  float x[WIDTH];
  load_floats<WIDTH>(source, x);
  if (ADDS) add_floats(destination, x);
  store_floats<WIDTH>(destination, x);
}

// A thread has WIDTH elements; the last one takes what is left of them one by one.
template <class S, class D, int WIDTH, bool ADDS>
__global__ void __launch_bounds__(threads_count) move_range(const S *source, D *destination, int64_t count) {
  const int64_t first = (int64_t(blockIdx.x) * threads_count + threadIdx.x) * WIDTH;
  if (first + WIDTH <= count) {
    move<S, D, WIDTH, ADDS>(source + first, destination + first);
  } else {
    for (int64_t i = first; i < count; i++) move<S, D, 1, ADDS>(source + i, destination + i);
  }
}

template <bool ADDS> void run(const fsdp_kernel_call *call) {
  const fsdp_view *source = &open_operands(call)[0], *destination = &call->operands[1];
  const int64_t count = source->numel;
  with_type(source->dtype, [&](auto from) {
    using S = decltype(from);
    with_type(destination->dtype, [&](auto to) {
      using D = decltype(to);
      const bool wide = is_aligned(source->data) && is_aligned(destination->data);
      launch({blocks_of(count, int64_t(threads_count) * (wide ? width : 1)), threads_count, stream_of(call)},
             wide ? move_range<S, D, width, ADDS> : move_range<S, D, 1, ADDS>, data_of<S>(source),
             data_of<D>(destination), count);
    });
  });
}

template <class W> __global__ void __launch_bounds__(threads_count) fill(W *words, int64_t count, W pattern) {
  const int64_t i = int64_t(blockIdx.x) * threads_count + threadIdx.x;
  if (i < count) global_store(words + i, pattern);
}

} // namespace

void cuda_cast(const fsdp_kernel_call *call) {
  run<false>(call);
}

void cuda_add(const fsdp_kernel_call *call) {
  run<true>(call);
}

void cuda_zero(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  for (const fsdp_view *view = o; view < o + call->operand_count; view++)
    clear(view->data, view->numel * fsdp_dtype_bytes(view->dtype), stream_of(call));
}

// Signalling NaN: the quiet bit is clear and another bit of the fraction is set.
void cuda_poison(const fsdp_kernel_call *call) {
  const fsdp_view *o = open_operands(call);
  for (const fsdp_view *view = o; view < o + call->operand_count; view++) {
    const launch_shape shape = {blocks_of(view->numel, threads_count), threads_count, stream_of(call)};
    if (fsdp_dtype_bytes(view->dtype) == 4) {
      launch(shape, fill<uint32_t>, data_of<uint32_t>(view), view->numel, 0x7fa0deadu);
    } else {
      launch(shape, fill<uint16_t>, data_of<uint16_t>(view), view->numel,
             view->dtype == FSDP_F16 ? uint16_t(0x7d01) : uint16_t(0x7fa1));
    }
  }
}
