// Replaces table.cu in a build without CUDA.
#include "kernels/kernels.h"

const fsdp_kernel_backend *fsdp_cuda_backend(void) {
  return NULL;
}
