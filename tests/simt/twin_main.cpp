// usage: simt_kernels GROUP... (or gpu_kernels): the groups of cases below; all where none is named.
#include "tests/simt/twin.h"

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/check.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

int main(int argc, char **argv) {
  const struct {
    const char *name;
    void (*run)();
  } groups[] = {{"rows", twin_rows},
                {"flat", twin_flat},
                {"products", twin_products},
                {"attention_fp32", twin_attention_fp32},
                {"attention_bf16", twin_attention_bf16}};
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("no GPU here: skipped\n");
    return 77;
  }
  void *workspace;
  FSDP_CHECK(cudaMalloc(&workspace, size_t(FSDP_CUDA_GEMM_WORKSPACE_BYTES)) == cudaSuccess,
             "no memory on the device");
  fsdp_cuda_gemm_open(workspace);
  int ran = 0;
  for (const auto &group : groups) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; i++) wanted = wanted || strcmp(argv[i], group.name) == 0;
    if (wanted) group.run(), ran++;
  }
  fsdp_cuda_gemm_close();
  cudaFree(workspace);
  if (ran < argc - 1) {
    fprintf(stderr, "unknown group: use rows, flat, products, attention_fp32 or attention_bf16\n");
    return 2;
  }
  printf("%d failed\n", twin_failures());
  return twin_failures() ? 1 : 0;
}
