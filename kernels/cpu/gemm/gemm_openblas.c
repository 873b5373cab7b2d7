#include "kernels/cpu/gemm/gemm_library.h"

#include "runtime/base/check.h"

#include <cblas.h>
#include <pthread.h>
#include <stdio.h>

static char name[64];
static pthread_once_t once = PTHREAD_ONCE_INIT;

// OpenBLAS's own threads are off for the whole process, because the pool's threads call it concurrently.
static void start(void) {
  openblas_set_num_threads(1);
  snprintf(name, sizeof name, "%.60s", openblas_get_config());
  for (int i = 0, spaces = 0; name[i]; i++) // "OpenBLAS 0.3.21 ..." without the list of build options
    if (name[i] == ' ' && ++spaces == 2) name[i] = '\0';
}

const char *fsdp_gemm_library_name(void) {
  FSDP_CHECK(pthread_once(&once, start) == 0, "starting OpenBLAS failed");
  return name;
}

void fsdp_gemm_library_fp32(const fsdp_gemm *g) {
  FSDP_CHECK(pthread_once(&once, start) == 0, "starting OpenBLAS failed");
  cblas_sgemm(CblasRowMajor, g->a_transposed ? CblasTrans : CblasNoTrans,
              g->b_transposed ? CblasTrans : CblasNoTrans, (blasint)g->m, (blasint)g->n, (blasint)g->k, 1.0f,
              g->a, (blasint)g->a_stride, g->b, (blasint)g->b_stride, g->accumulate ? 1.0f : 0.0f, g->c,
              (blasint)g->c_stride);
}

bool fsdp_gemm_library_mixed(const fsdp_gemm *gemm, void *scratch) {
  (void)gemm, (void)scratch;
  return false;
}

bool fsdp_gemm_native_bf16(void) {
  return false;
}
