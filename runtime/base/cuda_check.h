// Checks of CUDA calls: a call that fails once steps run ends the job and names rank, host, call and place.
#pragma once

#include "runtime/base/job.h"

#include <cuda_runtime_api.h>

#define CALL_CUDA(call)                                                                                      \
  do {                                                                                                       \
    cudaError_t cuda_status = (call);                                                                        \
    if (cuda_status != cudaSuccess)                                                                          \
      FSDP_JOB_FAIL(#call, "%s (%s)", cudaGetErrorString(cuda_status), cudaGetErrorName(cuda_status));       \
  } while (0)
