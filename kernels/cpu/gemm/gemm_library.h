// One gemm, and the interface that gemm.c needs from a matrix library. A build links exactly one library
// (gemm_dnnl.c, gemm_openblas.c) or none.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/device/pool.h"

#include <stdbool.h>

// c (m,n) = a (m,k) * b (k,n), or c += with `accumulate`; row-major with row strides in elements; a and b may
// be stored transposed. a and b are both fp32 or both bf16; sums are in fp32 and stored as `c_dtype`. What is
// `added` has that dtype too, and is in c when a library or the built-in gemm begins, which accumulates.
typedef struct fsdp_gemm {
  int64_t m, n, k;
  const void *a;                        // (m,k), or (k,m) if a_transposed
  const void *b;                        // (k,n), or (n,k) if b_transposed
  void *c;                              // (m,n)
  const void *added;                    // (m,n): c = added + a * b; NULL: nothing
  int64_t a_stride, b_stride, c_stride; // of the rows as stored
  int64_t added_stride;                 // 0: one row for all of c's
  // Row r as stored of a is a's row a_rows[r] / divisor, and so of b; NULL: r. The built-in gemm alone.
  const int32_t *a_rows, *b_rows;
  int64_t divisor;
  fsdp_dtype ab_dtype, c_dtype;
  bool a_transposed, b_transposed, accumulate;
} fsdp_gemm;

// The name and version, or NULL if the built-in gemm is used.
const char *fsdp_gemm_library_name(void);

// One fp32 gemm on the calling thread, which must not start threads of its own.
void fsdp_gemm_library_fp32(const fsdp_gemm *gemm);

// One gemm of any dtypes on the calling thread, with FSDP_POOL_SCRATCH_BYTES of scratch. Returns false, and
// does nothing, if the library or this core does not support it: the caller then uses the built-in one.
bool fsdp_gemm_library_mixed(const fsdp_gemm *gemm, void *scratch);
