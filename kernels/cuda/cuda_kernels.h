// The CUDA device's row of kernels: the table, the scratch that its ops need, and what is decided when the
// plan is sealed.
//
// A kernel enqueues on call->stream and returns; nothing is allocated, nothing waits. Failures of CUDA abort
// with the call's name. Operands are those of ops.def, with a workspace as one more, last operand (fp32,
// written) where fsdp_op_workspace_bytes says so.
#pragma once

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// The row "cuda"; every op has an entry.
const fsdp_kernel_table *fsdp_cuda_kernels(void);

// Scratch of the matrix products, inside the device's arena: a planned constant.
#define FSDP_CUDA_GEMM_WORKSPACE_BYTES ((int64_t)32 << 20)

// Opens the library of matrix products for the current device, with FSDP_CUDA_GEMM_WORKSPACE_BYTES of device
// memory that one stream at a time may use; close after the streams are idle.
void fsdp_cuda_gemm_open(void *workspace);
void fsdp_cuda_gemm_close(void);

// For a call that the program will make, when the plan is sealed and before memory is filled: loads its
// kernels, which CUDA otherwise does at their first launch, in the middle of a step, and chooses the
// algorithms of its products: the fastest of a few, which are run on the operands' memory and awaited. That
// holds random numbers meanwhile and NaNs afterwards.
void fsdp_cuda_prepare(const fsdp_kernel_call *call);

// Draws into `out` (drawing->elems of fp32 or bf16, anywhere), the same bits as fsdp_random_normal, rounded
// to nearest; enqueues on `stream`.
void fsdp_cuda_draw(const fsdp_drawing *drawing, void *out, fsdp_dtype dtype, void *stream);

// The cudaError_t of loading one of the kernels on the current device, whose context this makes: it says
// whether the program holds code for a device of this kind, or PTX that the driver can translate.
int fsdp_cuda_probe(void);

#ifdef __cplusplus
}
#endif
