#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/operand.cuh"
#include "kernels/cuda/ops.cuh"

// In the order of fsdp_op_kind, which C++17 cannot name here; the assertion below holds it to the enum's
// length.
static const fsdp_kernel_table table = {"cuda",
                                        {cuda_embedding,
                                         cuda_rmsnorm,
                                         cuda_add_rmsnorm,
                                         cuda_linear,
                                         cuda_rope,
                                         cuda_attention,
                                         cuda_swiglu,
                                         cuda_linear_cross_entropy,
                                         cuda_embedding_backward,
                                         cuda_rmsnorm_backward,
                                         cuda_linear_backward_input,
                                         cuda_linear_backward_weight,
                                         cuda_rope_backward,
                                         cuda_attention_backward,
                                         cuda_swiglu_backward,
                                         cuda_linear_cross_entropy_backward,
                                         cuda_cast,
                                         cuda_add,
                                         cuda_zero,
                                         cuda_sum_squares,
                                         cuda_sum,
                                         cuda_clip_factor,
                                         cuda_adamw,
                                         cuda_checksum,
                                         cuda_poison}};

static_assert(FSDP_OP_EMBEDDING == 0 && FSDP_OP_LINEAR_CROSS_ENTROPY == 7 &&
                  FSDP_OP_EMBEDDING_BACKWARD == 8 && FSDP_OP_CAST == 16 && FSDP_OP_POISON == 24 &&
                  FSDP_OP_KIND_COUNT == 25,
              "the table above follows models/graph/op.h");

static __global__ void probe() {}

extern "C" const fsdp_kernel_table *fsdp_cuda_kernels(void) {
  return &table;
}

extern "C" const fsdp_kernel_backend *fsdp_cuda_backend() {
  static const fsdp_kernel_backend backend = {
      &table, fsdp_cuda_gemm_open, fsdp_cuda_prepare, fsdp_cuda_gemm_close, fsdp_cuda_draw, fsdp_cuda_probe};
  return &backend;
}

extern "C" void fsdp_cuda_prepare(const fsdp_kernel_call *call) {
  prepares_only = true;
  table.kernels[call->kind](call);
  prepares_only = false;
}

// Every kernel is compiled for the same architectures, so that one stands for all.
extern "C" int fsdp_cuda_probe(void) {
  cudaFuncAttributes unused;
  const cudaError_t status = cudaFuncGetAttributes(&unused, probe);
  if (status != cudaSuccess) cudaGetLastError(); // else the next call would report it again
  return int(status);
}
