// The CUDA device's kernels: the table, the scratch that its ops need, and the decisions made when the plan
// is sealed.
//
// A kernel enqueues on call->stream and returns; it allocates nothing and waits for nothing. CUDA errors
// abort with the call's name. Operands are those of ops.def. An op with fsdp_op_workspace_bytes above 0 takes
// a workspace as an additional last operand (fp32, written).
#pragma once

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// The row "cuda"; every op has an entry.
const fsdp_kernel_table *fsdp_cuda_kernels(void);

// Scratch of the gemms, inside the device's arena: a planned constant.
#define FSDP_CUDA_GEMM_WORKSPACE_BYTES ((int64_t)32 << 20)

// Those of attention that this build holds: a set of 1u << fsdp_attention_kernel.
unsigned fsdp_cuda_attention_kernels(void);

// Loads the gemm library, which a process that uses no GPU does without. FSDP_ERR_PEER if it is not found.
fsdp_status fsdp_cuda_gemm_load(fsdp_error *error);

// Loads the gemm library if that is not done, and opens it for the current device, with
// FSDP_CUDA_GEMM_WORKSPACE_BYTES of device memory that one stream at a time may use. Close it after the
// streams are idle.
void fsdp_cuda_gemm_open(void *workspace);
void fsdp_cuda_gemm_close(void);

// For a call that the program will make, when the plan is sealed and before memory is filled. Loads its
// kernels, which CUDA otherwise does at their first launch, in the middle of a step, and notes its products.
void fsdp_cuda_prepare(const fsdp_kernel_call *call);

// The products noted, whose algorithms are then chosen on the memory that they were noted with.
extern const fsdp_product_library fsdp_cuda_products;

// Draws into `out` (drawing->numel elements of fp32 or bf16, any address) the same bits as
// fsdp_random_normal, rounded to nearest; enqueues on `stream`.
void fsdp_cuda_draw(const fsdp_drawing *drawing, void *out, fsdp_dtype dtype, void *stream);

// The cudaError_t of loading one of the kernels on the current device, whose context this makes. It shows
// whether the executable holds code for this kind of device, or PTX that the driver can translate.
int fsdp_cuda_probe(void);

// Tests launch as if a grid had at most so many blocks along y: those of many sequences and heads are then
// small. 0: as many as it has.
void fsdp_cuda_limit_grid(int64_t blocks);

// Calls `launched` just after every launch of a kernel, for benchmarks; NULL: no observer.
void fsdp_cuda_observe_launches(void (*launched)(const void *kernel, void *stream));

#ifdef __cplusplus
}
#endif
