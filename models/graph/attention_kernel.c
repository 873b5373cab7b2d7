#include "models/graph/attention_kernel.h"

#include "runtime/base/check.h"

#include <stdio.h>

// Of tensor cores: rows start on 16 bytes, and a tile of a head's columns fits shared memory.
#define HEAD_MULTIPLE 8
#define HEAD_MAX      128

const char *fsdp_attention_kernel_name(fsdp_attention_kernel kernel) {
  static const char *const names[FSDP_ATTENTION_KERNEL_COUNT] = {"cpu", "general", "mma", "wgmma",
                                                                 "wgmma-unfenced"};
  FSDP_CHECK((unsigned)kernel < FSDP_ATTENTION_KERNEL_COUNT, "attention kernel %d", (int)kernel);
  return names[kernel];
}

// Whether the kernel cannot run; if so, why and what to do.
static bool find_obstacle(const fsdp_op_gpu *gpu, fsdp_attention_kernel kernel, fsdp_dtype dtype,
                          int64_t head_dim, bool drops, char *reason, size_t bytes, const char **remedy) {
  const int capability = gpu->capability;
  *remedy = "use --attention auto";
  if (kernel == FSDP_ATTENTION_GENERAL) return false;
  if (kernel == FSDP_ATTENTION_WGMMA && capability != 90) {
    snprintf(reason, bytes, "those kernels run on compute capability 9.0 alone, and this GPU has %d.%d",
             capability / 10, capability % 10);
  } else if (drops) {
    snprintf(reason, bytes, "those kernels do not drop attention's probabilities");
    *remedy = "use --attention-dropout 0, or --attention auto";
  } else if (dtype != FSDP_BF16) {
    snprintf(reason, bytes, "those kernels compute in bf16, and this plan in %s", fsdp_dtype_name(dtype));
    *remedy = "use --param-dtype bf16, or --attention auto";
  } else if (head_dim % HEAD_MULTIPLE != 0 || head_dim > HEAD_MAX) {
    snprintf(reason, bytes, "those kernels take heads of a multiple of %d up to %d, and this model has %lld",
             HEAD_MULTIPLE, HEAD_MAX, (long long)head_dim);
  } else if (gpu->attention_missing >> kernel & 1) {
    snprintf(reason, bytes, "this executable does not hold those kernels");
    *remedy = "build with -DCMAKE_CUDA_ARCHITECTURES=90, or use --attention auto";
  } else if (gpu->attention_distrusted >> kernel & 1) {
    snprintf(reason, bytes, "those kernels did not match the general ones on this GPU");
  } else {
    return false;
  }
  return true;
}

fsdp_attention_kernel fsdp_attention_kernel_of(const fsdp_op_gpu *gpu, fsdp_dtype dtype, int64_t head_dim,
                                               bool drops) {
  char reason[160];
  const char *remedy;
  int kernel = FSDP_ATTENTION_WGMMA;
  if (gpu->attention != FSDP_ATTENTION_AUTO) {
    const fsdp_attention_kernel asked = gpu->attention;
    FSDP_CHECK(!find_obstacle(gpu, asked, dtype, head_dim, drops, reason, sizeof reason, &remedy),
               "attention by %s: %s", fsdp_attention_kernel_name(asked), reason);
    return asked;
  }
  while (find_obstacle(gpu, (fsdp_attention_kernel)kernel, dtype, head_dim, drops, reason, sizeof reason,
                       &remedy))
    kernel--; // down to the general one, which has none
  return (fsdp_attention_kernel)kernel;
}

fsdp_status fsdp_attention_check(const fsdp_op_gpu *gpu, fsdp_dtype dtype, int64_t head_dim, bool drops,
                                 fsdp_error *error) {
  char reason[160];
  const char *remedy;
  if (gpu->attention == FSDP_ATTENTION_AUTO) return FSDP_OK;
  const fsdp_attention_kernel kernel = gpu->attention;
  if (!find_obstacle(gpu, kernel, dtype, head_dim, drops, reason, sizeof reason, &remedy)) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_OPTION, "--attention %s: %s: %s", fsdp_attention_kernel_name(kernel),
                   reason, remedy);
}
