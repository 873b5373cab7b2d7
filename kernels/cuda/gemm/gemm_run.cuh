// One gemm on the CUDA device, as its caller describes it (gemm.cuh).
#pragma once

#include "runtime/base/dtype.h"

#include <stdint.h>

struct fsdp_cuda_gemm_run {
  int64_t m, n, k;
  const void *a, *b;                    // (m,k), (k,n), or their transposes
  void *c;                              // (m,n)
  const void *added;                    // (m,n), as c lies, and c itself if that is added to; or nullptr
  const void *bias;                     // (n), or nullptr
  int64_t a_stride, b_stride, c_stride; // of the rows as stored
  fsdp_dtype ab_dtype, c_dtype;
  bool a_transposed, b_transposed;
};
