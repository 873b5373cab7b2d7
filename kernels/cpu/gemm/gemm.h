// Gemms on the CPU: one interface over the library chosen at build time (FSDP_BLAS) and the built-in gemm.
// FSDP_BLAS=auto takes the library for bf16 where the core multiplies it natively, and the built-in gemm for
// fp32 where the core has AVX2 or AVX-512.
//
// The pool's threads share the rows and columns of c, never k, and each calls the library single-threaded.
// The result has the same bits on any number of threads.
#pragma once

#include "kernels/cpu/gemm/gemm_library.h"
#include "runtime/device/pool.h"

#include <stdbool.h>

// Runs the gemm on the pool's threads and returns when c is complete. Without `accumulate`, c is never read.
void fsdp_gemm_run(fsdp_pool *pool, const fsdp_gemm *gemm);

// What multiplies operands of `dtype`: "oneDNN 2.6.3", "OpenBLAS 0.3.21", "built-in".
const char *fsdp_gemm_library(fsdp_dtype dtype);

// Whether this core multiplies bf16 natively (AVX512_BF16 or AMX) through the chosen library.
bool fsdp_gemm_native_bf16(void);
