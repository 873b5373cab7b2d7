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

// Whether the built-in gemm multiplies operands of `dtype`: it alone takes rows where they are (a_rows,
// b_rows).
bool fsdp_gemm_takes_rows(fsdp_dtype dtype);

// Gemms of one call, as of experts: `at` says each, of which m, n and k may be 0. Their results lie apart.
typedef struct fsdp_gemm_group {
  int64_t count;
  fsdp_gemm (*at)(const void *context, int64_t index);
  const void *context;
} fsdp_gemm_group;

// Runs all of them by the built-in gemm, each whole or in a few parts: threads share the gemms, not each of
// them, so that none packs again what another has packed. Without `accumulate` a c of k = 0 is zero.
void fsdp_gemm_run_group(fsdp_pool *pool, const fsdp_gemm_group *group);

// What multiplies operands of `dtype`: "oneDNN 2.6.3", "OpenBLAS 0.3.21", "built-in".
const char *fsdp_gemm_library(fsdp_dtype dtype);

// Whether this core multiplies bf16 natively (AVX512_BF16 or AMX) through the chosen library.
bool fsdp_gemm_native_bf16(void);
