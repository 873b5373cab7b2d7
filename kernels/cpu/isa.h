// CPU kernels are compiled once for each instruction set level (base, AVX2 + FMA, AVX-512). The level is
// chosen at startup, so one binary runs on every x86-64 and uses what the core has.
//
//   rmsnorm.c ──► fsdp_cpu_rmsnorm_base, fsdp_cpu_rmsnorm_avx2, fsdp_cpu_rmsnorm_avx512
//   table.c   ──► fsdp_cpu_isa_base, fsdp_cpu_isa_avx2, fsdp_cpu_isa_avx512 ──► dispatch.c picks
//
// Everything that such a file defines with external linkage is named through FSDP_CPU().
#pragma once

#include "kernels/kernels.h"

// The build sets it for every level; a compilation without it (an editor, clang-tidy) sees the base.
#ifndef FSDP_ISA
#define FSDP_ISA base
#endif

#define FSDP_CPU_PASTE(name, isa)  fsdp_cpu_##name##_##isa
#define FSDP_CPU_EXPAND(name, isa) FSDP_CPU_PASTE(name, isa)
#define FSDP_CPU(name)             FSDP_CPU_EXPAND(name, FSDP_ISA)
#define FSDP_CPU_QUOTE(text)       #text
#define FSDP_CPU_TEXT(text)        FSDP_CPU_QUOTE(text)

// The built-in gemm, used if no library was found, or if it is the faster one: one gemm of fp32 or bf16
// operands on the calling thread, blocked for the caches (Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication", 2008). Panels of a and b are packed, and converted to fp32, in the first
// FSDP_PRODUCT_SCRATCH_BYTES of `scratch`. c is fp32.
#define FSDP_PRODUCT_SCRATCH_BYTES (FSDP_POOL_SCRATCH_BYTES / 4 * 3)
struct fsdp_gemm;
void FSDP_CPU(product)(const struct fsdp_gemm *gemm, void *scratch);

typedef struct fsdp_cpu_isa {
  const char *name; // "base", "avx2", "avx512"
  fsdp_kernel_table table;
  void (*product)(const struct fsdp_gemm *gemm, void *scratch);
  // Conversion of `count` elements between any two of fp32, bf16 and fp16; to a narrower type rounds to
  // nearest even.
  void (*convert)(fsdp_dtype source_dtype, const void *source, fsdp_dtype destination_dtype,
                  void *destination, int64_t count);
} fsdp_cpu_isa;

// The level in use: the best that the core has, or the one that FSDP_CPU_ISA names in the environment.
const fsdp_cpu_isa *fsdp_cpu_isa_current(void);

// Every level that this core can run, `count` of them (tests compare them).
const fsdp_cpu_isa *const *fsdp_cpu_isa_list(int *count);
