#include "runtime/device/gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The list that the kernels were compiled for, as CMake has it.
#ifndef FSDP_CUDA_ARCHITECTURES
#define FSDP_CUDA_ARCHITECTURES "unknown"
#endif

bool fsdp_gpu_is_built(void) {
  return true;
}

void fsdp_gpu_set_environment(void) {
  // A stream that waits for the host must not block another one that shares its hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // Load only used kernels of cuBLASLt and NCCL, to save memory; fsdp_cuda_prepare preloads ours.
  setenv("CUDA_MODULE_LOADING", "LAZY", 0);
}

// "13.0" of 13000.
static void print_version(int version, char out[16]) {
  snprintf(out, 16, "%d.%d", version / 1000, version % 1000 / 10);
}

static fsdp_status fail_driver(cudaError_t status, fsdp_error *error) {
  int driver = 0;
  char have[16], wanted[16];
  print_version(CUDART_VERSION, wanted);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return fsdp_fail(
        error, FSDP_ERR_PEER,
        "there is no NVIDIA driver on this machine (libcuda.so.1 cannot be used); install one for "
        "CUDA %s or later, start the container with its GPUs, or use --backend cpu",
        wanted);
  }
  print_version(driver, have);
  if (status == cudaErrorInsufficientDriver) {
    return fsdp_fail(
        error, FSDP_ERR_PEER,
        "the NVIDIA driver serves CUDA %s, but this executable was built with %s; update the driver, "
        "build with an older toolkit, or use --backend cpu",
        have, wanted);
  }
  if (status == cudaErrorNoDevice || status == cudaSuccess) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return fsdp_fail(
        error, FSDP_ERR_PEER,
        "the driver shows this process no GPU (CUDA_VISIBLE_DEVICES is %s%s%s); make one visible "
        "or use --backend cpu",
        visible ? "'" : "", visible ? visible : "not set", visible ? "'" : "");
  }
  return fsdp_fail(error, FSDP_ERR_PEER, "the GPUs cannot be used: %s (%s); use --backend cpu",
                   cudaGetErrorString(status), cudaGetErrorName(status));
}

// The driver's own version, the first word of its file that is a number with points; "" if there is no such
// file.
static void read_driver_file(char out[32]) {
  char line[256] = "";
  FILE *file = fopen("/proc/driver/nvidia/version", "r");
  out[0] = 0;
  if (!file) return;
  if (!fgets(line, sizeof line, file)) line[0] = 0;
  fclose(file);
  for (char *rest = line, *word; (word = strsep(&rest, " \t\n")) && !out[0];)
    if (strchr(word, '.') && strspn(word, "0123456789.") == strlen(word)) snprintf(out, 32, "%.31s", word);
}

static void name_driver(fsdp_gpu *gpu) {
  int serves = 0;
  char version[16], own[32];
  cudaDriverGetVersion(&serves);
  print_version(serves, version);
  read_driver_file(own);
  snprintf(gpu->driver, sizeof gpu->driver, "%s%s%s", version, own[0] ? ", " : "", own);
}

static fsdp_status describe(fsdp_gpu *gpu, fsdp_error *error) {
  struct cudaDeviceProp properties;
  cudaError_t status = cudaGetDeviceProperties(&properties, gpu->ordinal);
  if (status == cudaSuccess) status = cudaDeviceGetPCIBusId(gpu->bus, (int)sizeof gpu->bus, gpu->ordinal);
  if (status != cudaSuccess) return fail_driver(status, error);
  snprintf(gpu->name, sizeof gpu->name, "%.63s", properties.name);
  memcpy(gpu->uuid, &properties.uuid, sizeof gpu->uuid);
  gpu->capability = properties.major * 10 + properties.minor;
  gpu->processors = properties.multiProcessorCount;
  gpu->total_bytes = (int64_t)properties.totalGlobalMem;
  name_driver(gpu);
  gpu->present = true;
  if (gpu->capability >= 80) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_PEER,
                   "GPU %d (%s) has compute capability %d.%d, but the kernels need 8.0 or later; use "
                   "--backend cpu",
                   gpu->ordinal, gpu->name, gpu->capability / 10, gpu->capability % 10);
}

fsdp_status fsdp_gpu_find(int local_rank, fsdp_gpu *gpu, fsdp_error *error) {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) return fail_driver(status, error);
  gpu->shown = count;
  // With more local ranks than shown GPUs each rank may still have its own: sharing is detected later.
  gpu->ordinal = local_rank % count;
  return describe(gpu, error);
}

// Whether the kernels have code for this GPU; otherwise this would show only within the first step.
static fsdp_status check_code(const fsdp_gpu *gpu, int (*probe)(void), fsdp_error *error) {
  const cudaError_t status = (cudaError_t)probe();
  if (status == cudaSuccess) return FSDP_OK;
  int major = gpu->capability / 10, minor = gpu->capability % 10;
  char have[16];
  if (status == cudaErrorUnsupportedPtxVersion) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    print_version(driver, have);
    return fsdp_fail(
        error, FSDP_ERR_PEER,
        "GPU %d (%s) has compute capability %d.%d, for which this executable (built for %s) has PTX "
        "alone, and the driver (CUDA %s) is too old to translate it: update the driver, build with "
        "-DCMAKE_CUDA_ARCHITECTURES=%d%d, or use --backend cpu",
        gpu->ordinal, gpu->name, major, minor, FSDP_CUDA_ARCHITECTURES, have, major, minor);
  }
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "GPU %d (%s) has compute capability %d.%d, for which this executable (built for %s) has no code "
      "(%s): build with -DCMAKE_CUDA_ARCHITECTURES=%d%d, or use --backend cpu",
      gpu->ordinal, gpu->name, major, minor, FSDP_CUDA_ARCHITECTURES, cudaGetErrorString(status), major,
      minor);
}

fsdp_status fsdp_gpu_free_bytes(const fsdp_gpu *gpu, int (*probe)(void), int64_t *bytes, fsdp_error *error) {
  size_t unused = 0, total = 0;
  cudaError_t status = cudaSetDevice(gpu->ordinal);
  if (status == cudaSuccess && check_code(gpu, probe, error) != FSDP_OK) return error->status;
  if (status == cudaSuccess) status = cudaMemGetInfo(&unused, &total);
  if (status != cudaSuccess) return fail_driver(status, error);
  *bytes = (int64_t)(unused / (size_t)gpu->sharers);
  return FSDP_OK;
}
