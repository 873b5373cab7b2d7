// One matrix product, and what gemm.c asks of a matrix library for it. A build links exactly one library
// (gemm_dnnl.c, gemm_openblas.c) or none.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/base/pool.h"

#include <stdbool.h>

// c (m,n) = a (m,k) * b (k,n), or c += with `accumulate`; row-major with row strides in elements; a and b may
// be stored transposed. a and b are both fp32 or both bf16; sums are in fp32 and stored as `c_dtype`.
typedef struct fsdp_gemm {
  int64_t m, n, k;
  const void *a;                        // (m,k), or (k,m) where a_transposed
  const void *b;                        // (k,n), or (n,k) where b_transposed
  void *c;                              // (m,n)
  int64_t a_stride, b_stride, c_stride; // of the rows as stored
  fsdp_dtype ab_dtype, c_dtype;
  bool a_transposed, b_transposed, accumulate;
} fsdp_gemm;

// The name and version, or NULL where the built-in product is used.
const char *fsdp_gemm_library_name(void);

// One fp32 product on the calling thread, which must not start threads of its own.
void fsdp_gemm_library_fp32(const fsdp_gemm *gemm);

// One product of any dtypes on the calling thread, with FSDP_POOL_SCRATCH_BYTES of scratch. False, with
// nothing done, where the library or this core has none for it: the caller then takes the built-in one.
bool fsdp_gemm_library_mixed(const fsdp_gemm *gemm, void *scratch);
