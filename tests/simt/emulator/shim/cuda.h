// Replaces CUDA's cuda.h when the CUDA device runs on the CPU: what it asks of the driver by name.
#pragma once

#include <stdint.h>

typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_NOT_SUPPORTED = 801 } CUresult;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
enum { CU_STREAM_WAIT_VALUE_GEQ = 0 };
