// What gemm.c asks of a matrix library. A build links exactly one (gemm_dnnl.c, gemm_openblas.c) or none.
#pragma once

#include "kernels/cpu/gemm.h"

// The name and version, or NULL where the built-in product is used.
const char *fsdp_gemm_library_name(void);

// One fp32 product on the calling thread, which must not start threads of its own.
void fsdp_gemm_library_fp32(const fsdp_gemm *gemm);

// One product with bf16 operands on the calling thread; only called where fsdp_gemm_native_bf16().
void fsdp_gemm_library_bf16(const fsdp_gemm *gemm);
