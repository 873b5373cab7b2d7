#include "kernels/cpu/gemm_library.h"

#include "runtime/base/check.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdio.h>

static char name[64];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool native_bf16;

static void start(void) {
  const dnnl_version_t *version = dnnl_version();
  snprintf(name, sizeof name, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
  dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  // The instruction sets are bit masks: AVX512_CORE_BF16 and all above it include its bits.
  native_bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

static void ready(void) {
  FSDP_CHECK(pthread_once(&once, start) == 0, "starting oneDNN failed");
  // The library takes its number of threads from the calling thread's OpenMP setting. The pool's threads
  // share a product, so each wants one; with one there is no parallel region, and no OpenMP worker is ever
  // made.
  static _Thread_local bool single;
  if (!single) omp_set_num_threads(1);
  single = true;
}

const char *fsdp_gemm_library_name(void) {
  ready();
  return name;
}

void fsdp_gemm_library_fp32(const fsdp_gemm *g) {
  ready();
  dnnl_status_t status =
      dnnl_sgemm(g->a_transposed ? 'T' : 'N', g->b_transposed ? 'T' : 'N', g->m, g->n, g->k, 1.0f, g->a,
                 g->a_stride, g->b, g->b_stride, g->accumulate ? 1.0f : 0.0f, g->c, g->c_stride);
  FSDP_CHECK(status == dnnl_success, "dnnl_sgemm returned %d", (int)status);
}

void fsdp_gemm_library_bf16(const fsdp_gemm *gemm) {
  (void)gemm;
  FSDP_CHECK(false, "bf16");
}

bool fsdp_gemm_native_bf16(void) {
  ready();
  return false;
}
