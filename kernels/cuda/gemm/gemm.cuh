// Gemms on the CUDA device: c (m,n) = a (m,k) * b (k,n) + added; row-major with row strides in elements. a
// and b may be stored transposed. A bias is added to every row of c. Sums are fp32 and rounded once. a and b
// share one dtype; c may have a different one, which is that of what is added and of the bias too.
#pragma once

#include "kernels/cuda/gemm/gemm_run.cuh"
#include "kernels/cuda/operand.cuh"

// Enqueues the gemm on a stream, by the algorithm that was chosen for its shape; by the library's first guess
// if none was.
void fsdp_cuda_gemm(const fsdp_cuda_gemm_run *product, void *stream);

// What products are cut for: the current device's multiprocessors, or as many of them as the library's
// `limit` says (kernels/products.h).
int product_multiprocessors();

// Notes that such a gemm will run, on this memory, of which nothing is filled yet: its algorithm is then
// chosen (kernels/products.h).
void fsdp_cuda_gemm_note(const fsdp_cuda_gemm_run *product);

// The one or the other, as the call says.
inline void multiply(const fsdp_cuda_gemm_run *product, const launch_stream &stream) {
  if (stream.prepares) {
    fsdp_cuda_gemm_note(product);
  } else {
    fsdp_cuda_gemm(product, stream.handle);
  }
}
