// Matrix products on the CPU: one interface over the library chosen at build time (FSDP_BLAS) and the
// built-in product, which FSDP_BLAS=auto prefers where it was measured to be the faster (bench/bench_gemm.c).
//
// c (m,n) = a (m,k) * b (k,n), or c += with `accumulate`; row-major with row strides in elements; a and b may
// be stored transposed. a and b are both fp32 or both bf16; sums are in fp32 and stored as
// `c_dtype`. The pool's threads share the rows and columns of c, never k, and each calls the library
// single-threaded; the result is the same to the bit on any number of threads.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/pool.h"

#include <stdbool.h>

typedef struct fsdp_gemm {
  int64_t m, n, k;
  const void *a;                        // (m,k), or (k,m) where a_transposed
  const void *b;                        // (k,n), or (n,k) where b_transposed
  void *c;                              // (m,n)
  int64_t a_stride, b_stride, c_stride; // of the rows as stored
  fsdp_dtype ab_dtype, c_dtype;
  bool a_transposed, b_transposed, accumulate;
} fsdp_gemm;

// Runs the product on the pool's threads and returns when c is whole. Where c is overwritten it is never
// read.
void fsdp_gemm_run(fsdp_pool *pool, const fsdp_gemm *gemm);

// "oneDNN 2.6.3", "OpenBLAS 0.3.21", "built-in".
const char *fsdp_gemm_library(void);

// Whether this core multiplies bf16 natively (AVX512_BF16 or AMX) through the chosen library.
bool fsdp_gemm_native_bf16(void);
