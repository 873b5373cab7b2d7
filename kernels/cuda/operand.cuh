// How launchers use their operands: open them, choose the width of accesses, and launch.
#pragma once

#include "kernels/cuda/vector.cuh"
#include "kernels/operand.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

// The code of wgmma exists for capability 9.0 alone.
#if defined(FSDP_WGMMA)
constexpr bool has_wgmma = true;
#else
constexpr bool has_wgmma = false;
#endif

#define CUDA_CHECK(call)                                                                                     \
  do {                                                                                                       \
    cudaError_t cuda_status = (call);                                                                        \
    FSDP_CHECK(cuda_status == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_status));                \
  } while (0)

// The call's operands, checked and reported (kernels/operand.h). A launch cannot know which rows a kernel
// reads by token, so it reports all of an embedding's weight. `in_part` is for what the launch does know.
inline const fsdp_view *open_operands(const fsdp_kernel_call *call, unsigned in_part = 0) {
  return fsdp_kernel_open(call, FSDP_OP_CUDA, in_part);
}

inline bool updates(const fsdp_view *view) {
  return (view->access & FSDP_READ) != 0;
}

inline bool is_aligned(const void *address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

// Whether rows of `columns` elements of T, the first at these addresses, are whole vectors.
template <class T, class... Address> inline bool takes_vectors(int64_t columns, const Address *...rows) {
  return columns % vector_numel<T> == 0 && (is_aligned(rows) && ...);
}

template <class T> inline T *data_of(const fsdp_view *view) {
  return static_cast<T *>(view->data);
}

template <class T> constexpr fsdp_dtype dtype_of = sizeof(T) == 4 ? FSDP_F32 : FSDP_BF16;

// Operand `index`, whose elements must be of type T: float or bf16.
template <class T> inline T *numbers_of(const fsdp_kernel_call *call, int index) {
  const fsdp_view *view = &call->operands[index];
  FSDP_CHECK(view->dtype == dtype_of<T>, "%s: operand %d is %s, not %s", fsdp_op_name(call->kind), index,
             fsdp_dtype_name(view->dtype), fsdp_dtype_name(dtype_of<T>));
  return data_of<T>(view);
}

inline int64_t blocks_of(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}

// Calls `body` with a value of the element type of `dtype`: with_type(d, [&](auto x) { using T = decltype(x);
// });
template <class Body> inline void with_type(fsdp_dtype dtype, const Body &body) {
  if (dtype == FSDP_F32) {
    body(float());
  } else {
    FSDP_CHECK(dtype == FSDP_BF16, "these kernels do not take %s", fsdp_dtype_name(dtype));
    body(bf16());
  }
}

// Where launches go: onto a stream, or, of a call that is only prepared, nowhere: kernels are loaded,
// products noted, and nothing runs.
struct launch_stream {
  void *handle;
  bool prepares;
};

inline launch_stream stream_of(const fsdp_kernel_call *call) {
  return {call->stream, call->prepares};
}

inline void clear(void *data, int64_t bytes, const launch_stream &stream) {
  if (!stream.prepares)
    CUDA_CHECK(cudaMemsetAsync(data, 0, size_t(bytes), static_cast<cudaStream_t>(stream.handle)));
}

struct launch_shape {
  int64_t blocks; // along x; with `rows` along y and z (block_row)
  int threads;
  launch_stream stream;
  int64_t rows = 1;
  size_t shared_bytes = 0; // dynamic
};

// Blocks along y at most, and along z: every GPU's limit, unless a test sets less (fsdp_cuda_limit_grid).
constexpr int64_t grid_y_device = 65535;
inline int64_t grid_y_max = grid_y_device;

// Which of launch_shape.rows a block is of. Rows beyond grid_y_max lie along z, of which the last may have
// blocks past the rows: a kernel whose rows can be so many returns from those.
__device__ __forceinline__ int block_row() {
  return int(blockIdx.z * gridDim.y + blockIdx.y);
}

// Called at every launch (fsdp_cuda_observe_launches); NULL: no observer.
inline void (*launch_observer)(const void *kernel, void *stream) = nullptr;

template <class... Parameters, class... Arguments>
inline void launch(const launch_shape &shape, void (*kernel)(Parameters...), Arguments... arguments) {
  if (shape.blocks == 0 || shape.rows == 0) return;
  const int64_t layers = (shape.rows + grid_y_max - 1) / grid_y_max,
                rows = (shape.rows + layers - 1) / layers;
  FSDP_CHECK(shape.blocks <= INT32_MAX && shape.rows <= INT32_MAX, "a grid of %lld by %lld blocks",
             (long long)shape.blocks, (long long)shape.rows);
  if (shape.shared_bytes > size_t(48) << 10)
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes)));
  if (shape.stream.prepares) { // asking for a kernel's attributes loads it
    cudaFuncAttributes unused;
    CUDA_CHECK(cudaFuncGetAttributes(&unused, kernel));
    return;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(shape.blocks), unsigned(rows), unsigned(layers));
  config.blockDim = dim3(unsigned(shape.threads), 1, 1);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(shape.stream.handle);
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
  if (launch_observer) launch_observer(reinterpret_cast<const void *>(kernel), config.stream);
}
