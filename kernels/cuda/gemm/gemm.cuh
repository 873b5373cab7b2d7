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

// Enqueues the gemm on a stream. A shape that was not prepared is prepared now.
void fsdp_cuda_gemm(const fsdp_cuda_gemm_run *product, void *stream);

// Chooses the algorithm for gemms of this shape, strides, dtypes and alignment, by running a few candidates.
// c is written, so a, b, c and the bias must be memory that is not filled yet.
void fsdp_cuda_gemm_prepare(const fsdp_cuda_gemm_run *product);
