// What launchers do with their operands: check and report them as the CPU's kernels do
// (kernels/cpu/operand.h), choose how wide accesses may be, and launch.
#pragma once

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"

#define CUDA_CHECK(call)                                                                                     \
  do {                                                                                                       \
    cudaError_t cuda_status = (call);                                                                        \
    FSDP_CHECK(cuda_status == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_status));                \
  } while (0)

inline void check_count(const fsdp_kernel_call *call, int least_count, int most) {
  FSDP_CHECK(call->operand_count >= least_count && call->operand_count <= most,
             "%s takes %d to %d operands, not %d", fsdp_op_name(call->kind), least_count, most,
             call->operand_count);
}

// Operand `index`, which must hold `numel` elements and be accessed as the op's row in op.h says.
inline const fsdp_view *operand(const fsdp_kernel_call *call, int index, int64_t numel, fsdp_access access) {
  FSDP_CHECK(index < call->operand_count, "%s has no operand %d", fsdp_op_name(call->kind), index);
  const fsdp_view *view = &call->operands[index];
  FSDP_CHECK(view->numel == numel, "%s: operand %d has %lld elements, not %lld", fsdp_op_name(call->kind),
             index, (long long)view->numel, (long long)numel);
  FSDP_CHECK((view->access & ~access) == 0 && view->access != 0, "%s: operand %d is accessed as %d, not %d",
             fsdp_op_name(call->kind), index, view->access, access);
  fsdp_access_report(call->recorder, view->data, numel * fsdp_dtype_bytes(view->dtype), view->access);
  return view;
}

inline const fsdp_view *operand_of(const fsdp_kernel_call *call, int index, int64_t numel, fsdp_access access,
                                   fsdp_dtype dtype) {
  const fsdp_view *view = operand(call, index, numel, access);
  FSDP_CHECK(view->dtype == dtype, "%s: operand %d is %s, not %s", fsdp_op_name(call->kind), index,
             fsdp_dtype_name(view->dtype), fsdp_dtype_name(dtype));
  return view;
}

// The workspace that fsdp_op_workspace_bytes asks for, as fp32, last of the operands.
inline const fsdp_view *workspace_of(const fsdp_kernel_call *call, int index, int64_t bytes) {
  return operand_of(call, index, (bytes + 3) / 4, FSDP_UPDATE, FSDP_F32);
}

inline bool updates(const fsdp_view *view) {
  return (view->access & FSDP_READ) != 0;
}

inline bool is_aligned(const void *address) {
  return reinterpret_cast<uintptr_t>(address) % 16 == 0;
}

template <class T> inline T *data_of(const fsdp_view *view) {
  return static_cast<T *>(view->data);
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
    FSDP_CHECK(dtype == FSDP_BF16, "%s is not a number that these kernels take", fsdp_dtype_name(dtype));
    body(bf16());
  }
}

// Set while a call is prepared (fsdp_cuda_prepare): launchers then choose and load what they would run, and
// run nothing.
inline bool prepares_only = false;

inline void multiply(const fsdp_cuda_product *product, void *stream) {
  if (prepares_only) {
    fsdp_cuda_gemm_prepare(product);
  } else {
    fsdp_cuda_gemm(product, stream);
  }
}

struct launch_shape {
  int64_t blocks; // along x; with `rows` along y
  int threads;
  void *stream;
  int64_t rows = 1;
  size_t shared_bytes = 0; // dynamic
};

template <class... Parameters, class... Arguments>
inline void launch(const launch_shape &shape, void (*kernel)(Parameters...), Arguments... arguments) {
  if (shape.blocks == 0 || shape.rows == 0) return;
  FSDP_CHECK(shape.blocks <= INT32_MAX && shape.rows <= 65535, "a grid of %lld by %lld blocks",
             (long long)shape.blocks, (long long)shape.rows);
  if (shape.shared_bytes > size_t(48) << 10)
    CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes)));
  if (prepares_only) { // asking for a kernel's attributes loads it
    cudaFuncAttributes unused;
    CUDA_CHECK(cudaFuncGetAttributes(&unused, kernel));
    return;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(shape.blocks), unsigned(shape.rows), 1);
  config.blockDim = dim3(unsigned(shape.threads), 1, 1);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(shape.stream);
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}
