#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

// In the order of the rows, which is that of fsdp_op_kind.
#define FSDP_OP(KIND, name, PHASE, operands, RULES)     cuda_##name,
#define FSDP_CPU_OP(KIND, name, PHASE, operands, RULES) nullptr,
static const fsdp_kernel_table table = {"cuda",
                                        {
#include "models/graph/ops.def"
                                        }};

static __global__ void probe() {}

extern "C" const fsdp_kernel_table *fsdp_cuda_kernels(void) {
  return &table;
}

extern "C" const fsdp_kernel_backend *fsdp_cuda_backend() {
  static const fsdp_kernel_backend backend = {
      &table,
      fsdp_cuda_gemm_load,
      fsdp_cuda_attention_kernels,
      fsdp_cuda_gemm_open,
      fsdp_cuda_prepare,
      &fsdp_cuda_products,
      fsdp_cuda_gemm_close,
      fsdp_cuda_draw,
      fsdp_cuda_probe,
  };
  return &backend;
}

extern "C" void fsdp_cuda_prepare(const fsdp_kernel_call *call) {
  fsdp_kernel_call prepared = *call;
  prepared.prepares = true;
  table.kernels[call->kind](&prepared);
}

extern "C" void fsdp_cuda_limit_grid(int64_t blocks) {
  grid_y_max = blocks > 0 ? blocks : grid_y_device;
}

extern "C" void fsdp_cuda_observe_launches(void (*launched)(const void *kernel, void *stream)) {
  launch_observer = launched;
}

// Every kernel is compiled for the same architectures, so one represents all.
extern "C" int fsdp_cuda_probe(void) {
  cudaFuncAttributes unused;
  const cudaError_t status = cudaFuncGetAttributes(&unused, probe);
  if (status != cudaSuccess) cudaGetLastError(); // else the next call would report it again
  return int(status);
}
