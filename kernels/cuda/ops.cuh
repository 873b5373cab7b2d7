// Launchers of the CUDA device's ops, one an op; operands as in models/graph/op.h and cuda_kernels.h.
#pragma once

#include "kernels/kernels.h"

void cuda_embedding(const fsdp_kernel_call *call);
void cuda_embedding_backward(const fsdp_kernel_call *call);
void cuda_rmsnorm(const fsdp_kernel_call *call);
void cuda_add_rmsnorm(const fsdp_kernel_call *call);
void cuda_rmsnorm_backward(const fsdp_kernel_call *call);
void cuda_linear(const fsdp_kernel_call *call);
void cuda_linear_backward_input(const fsdp_kernel_call *call);
void cuda_linear_backward_weight(const fsdp_kernel_call *call);
void cuda_rope(const fsdp_kernel_call *call);
void cuda_rope_backward(const fsdp_kernel_call *call);
void cuda_attention(const fsdp_kernel_call *call);
void cuda_attention_backward(const fsdp_kernel_call *call);
void cuda_swiglu(const fsdp_kernel_call *call);
void cuda_swiglu_backward(const fsdp_kernel_call *call);
void cuda_linear_cross_entropy(const fsdp_kernel_call *call);
void cuda_linear_cross_entropy_backward(const fsdp_kernel_call *call);
void cuda_cast(const fsdp_kernel_call *call);
void cuda_add(const fsdp_kernel_call *call);
void cuda_zero(const fsdp_kernel_call *call);
void cuda_sum_squares(const fsdp_kernel_call *call);
void cuda_sum(const fsdp_kernel_call *call);
void cuda_clip_factor(const fsdp_kernel_call *call);
void cuda_adamw(const fsdp_kernel_call *call);
void cuda_checksum(const fsdp_kernel_call *call);
void cuda_poison(const fsdp_kernel_call *call);
