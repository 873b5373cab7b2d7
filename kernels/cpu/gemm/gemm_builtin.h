// The built-in gemm: used if no library was found, or if it is the faster one.
#pragma once

#include "kernels/cpu/gemm/gemm_library.h"
#include "kernels/cpu/isa.h"
#include "runtime/device/pool.h"

// One gemm on the calling thread, blocked for the caches (Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication", 2008). Panels of a and b are packed, and converted to fp32, in the first
// FSDP_PRODUCT_SCRATCH_BYTES of `scratch`. c is fp32.
#define FSDP_PRODUCT_SCRATCH_BYTES (FSDP_POOL_SCRATCH_BYTES / 4 * 3)
void FSDP_CPU(product)(const fsdp_gemm *gemm, void *scratch);
