#include "runtime/device/gpu.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char *fsdp_gpu_kind(const fsdp_gpu *gpu, char out[FSDP_GPU_KIND_BYTES]) {
  snprintf(out, FSDP_GPU_KIND_BYTES, "%s, compute capability %d.%d, %d multiprocessors, driver %s", gpu->name,
           gpu->capability / 10, gpu->capability % 10, gpu->processors, gpu->driver);
  return out;
}

// NVIDIA's data sheets: dense bf16 gemms with fp32 sums on tensor cores, and of fp32 without them, in
// TFLOP/s. If two names match a GPU, the earlier counts. GB200, B300 and GB300 are those of one GPU in the
// sheets of GB200 NVL72, HGX B300 and GB300 NVL72, there with sparsity; RTX PRO 6000 is the Workstation
// Edition's (the Max-Q has 300 W for 600 and reaches less).
static const struct {
  const char *name;
  double bf16, fp32;
} peaks[] = {
    {"GB300", 2500, 80},          {"B300", 2250, 75},     {"GB200", 2500, 80},
    {"RTX PRO 6000", 503.8, 126}, {"B200", 2250, 75},     {"H200 NVL", 835.5, 60},
    {"H200", 989.4, 67},          {"H100 PCIe", 756, 51}, {"H100 NVL", 835.5, 60},
    {"H100", 989.4, 67},          {"GH200", 989.4, 67},   {"A100", 312, 19.5},
    {"A30", 165, 10.3},           {"A40", 149.7, 37.4},   {"A10", 125, 31.2},
    {"L40S", 362, 91.6},          {"L40", 181, 90.5},     {"L4", 121, 30.3},
    {"RTX A6000", 154.8, 38.7},   {"RTX 3090", 71, 35.6}, {"RTX 4090", 165.2, 82.6},
    {"RTX 5090", 209.5, 104.8},
};

static bool has_word(const char *text, const char *word) {
  const char *at = strstr(text, word);
  return at && (at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[strlen(word)]);
}

double fsdp_gpu_peak_flops(const char *name, fsdp_dtype dtype) {
  for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
    if (has_word(name, peaks[i].name)) return 1e12 * (dtype == FSDP_BF16 ? peaks[i].bf16 : peaks[i].fp32);
  }
  return 0;
}
