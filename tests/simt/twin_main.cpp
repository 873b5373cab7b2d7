// usage: simt_kernels [--attention mma|wgmma] [--each|--mutate] GROUP... (or gpu_kernels): the groups of cases
// below; all but `grouped`, `leaks` and `production` if none is named. --each runs of every op, in fp32 and in
// bf16, its greatest case alone; --mutate runs small cases with each operand in turn one element too short,
// which must be noticed. --attention: which tensor-core kernels run, of attention and of products grouped by
// expert (mma).
#include "tests/simt/twin.h"

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/check.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

// False, having said why, if neither this executable nor this GPU has them.
static bool choose_attention(const char *name) {
  cudaDeviceProp properties;
  FSDP_CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess, "no properties of the device");
  const fsdp_attention_kernel kernel = strcmp(name, "wgmma") == 0 ? FSDP_ATTENTION_WGMMA : FSDP_ATTENTION_MMA;
  fsdp_op_gpu gpu = {};
  gpu.capability = 10 * properties.major + properties.minor;
  gpu.attention = kernel;
  gpu.attention_missing = ~fsdp_cuda_attention_kernels();
  fsdp_error error = {};
  if (fsdp_attention_check(&gpu, FSDP_BF16, 128, false, &error) != FSDP_OK) {
    printf("%s: skipped\n", error.message);
    return false;
  }
  twin_use_attention(kernel);
  twin_use_grouped(kernel == FSDP_ATTENTION_WGMMA ? FSDP_GROUPED_WGMMA : FSDP_GROUPED_MMA);
  return true;
}

int main(int argc, char **argv) {
  const struct {
    const char *name;
    void (*run)();
  } groups[] = {{"rows", twin_rows},
                {"flat", twin_flat},
                {"products", twin_products},
                {"experts", twin_experts},
                {"grouped", twin_grouped},
                {"attention_fp32", twin_attention_fp32},
                {"attention_bf16", twin_attention_bf16},
                {"rest", twin_rest},
                {"leaks", twin_attention_leaks},
                {"production", twin_attention_production}};
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("no GPU here: skipped\n");
    return 77;
  }
  if (argc > 2 && strcmp(argv[1], "--attention") == 0) {
    if (!choose_attention(argv[2])) return 77;
    argc -= 2;
    argv += 2;
  }
  void *workspace;
  FSDP_CHECK(cudaMalloc(&workspace, size_t(FSDP_CUDA_GEMM_WORKSPACE_BYTES)) == cudaSuccess,
             "no memory on the device");
  fsdp_cuda_gemm_open(workspace);
  const bool each = argc > 1 && strcmp(argv[1], "--each") == 0;
  const bool mutates = argc > 1 && strcmp(argv[1], "--mutate") == 0;
  const int first = each || mutates ? 2 : 1;
  int ran = 0;
  for (int pass = each ? TWIN_NOTE : TWIN_GREATEST; pass <= TWIN_GREATEST; pass++) {
    twin_choose(each ? static_cast<twin_choice>(pass) : mutates ? TWIN_MUTATE : TWIN_ALL);
    ran = 0;
    for (const auto &group : groups) {
      const bool named_alone = group.run == twin_attention_production || group.run == twin_attention_leaks ||
                               group.run == twin_grouped;
      bool wanted = argc == first && !named_alone;
      for (int i = first; i < argc; i++) wanted = wanted || strcmp(argv[i], group.name) == 0;
      if (wanted) group.run(), ran++;
    }
  }
  fsdp_cuda_gemm_close();
  cudaFree(workspace);
  if (ran < argc - first) {
    fprintf(stderr,
            "unknown group: use rows, flat, products, experts, grouped, attention_fp32, attention_bf16, "
            "rest, leaks, production\n");
    return 2;
  }
  printf("%d failed\n", twin_failures());
  return twin_failures() ? 1 : 0;
}
