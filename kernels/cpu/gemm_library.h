// What gemm.c asks of a matrix library. A build links exactly one (gemm_dnnl.c, gemm_openblas.c) or none.
#pragma once

#include "kernels/cpu/gemm.h"

// The name and version, or NULL where the built-in product is used.
const char *fsdp_gemm_library_name(void);

// One fp32 product on the calling thread, which must not start threads of its own.
void fsdp_gemm_library_fp32(const fsdp_gemm *gemm);

// One product of any dtypes on the calling thread, with FSDP_POOL_SCRATCH_BYTES of scratch. False, with
// nothing done, where the library or this core has none for it: the caller then takes the built-in one.
bool fsdp_gemm_library_mixed(const fsdp_gemm *gemm, void *scratch);
