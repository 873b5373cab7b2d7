// Gemms on the CUDA device: c (m,n) = a (m,k) * b (k,n), or c += with `accumulate`; row-major with row
// strides in elements. a and b may be stored transposed. A bias is added to every row of c. Sums are fp32 and
// rounded once. a and b share one dtype; c may have a different one, which is the bias's too.
#pragma once

#include "runtime/base/dtype.h"

#include <stdint.h>

struct fsdp_cuda_gemm_run {
  int64_t m, n, k;
  const void *a, *b;                    // (m,k), (k,n), or their transposes
  void *c;                              // (m,n)
  const void *bias;                     // (n), or nullptr
  int64_t a_stride, b_stride, c_stride; // of the rows as stored
  fsdp_dtype ab_dtype, c_dtype;
  bool a_transposed, b_transposed, accumulate;
};

// Enqueues the gemm on a stream, by the algorithm that was chosen for its shape; by the library's first guess
// if none was.
void fsdp_cuda_gemm(const fsdp_cuda_gemm_run *product, void *stream);

// Notes that such a gemm will run, on this memory, of which nothing is filled yet: its algorithm is then
// chosen (kernels/products.h).
void fsdp_cuda_gemm_note(const fsdp_cuda_gemm_run *product);
