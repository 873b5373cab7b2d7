// The kernels of one instruction set level (isa.h), one an op; operands as in models/graph/op.h.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

void FSDP_CPU(embedding)(const fsdp_kernel_call *call);
void FSDP_CPU(embedding_backward)(const fsdp_kernel_call *call);
void FSDP_CPU(rmsnorm)(const fsdp_kernel_call *call);
void FSDP_CPU(add_rmsnorm)(const fsdp_kernel_call *call);
void FSDP_CPU(rmsnorm_backward)(const fsdp_kernel_call *call);
void FSDP_CPU(linear)(const fsdp_kernel_call *call);
void FSDP_CPU(linear_backward_input)(const fsdp_kernel_call *call);
void FSDP_CPU(linear_backward_weight)(const fsdp_kernel_call *call);
void FSDP_CPU(rope)(const fsdp_kernel_call *call);
void FSDP_CPU(rope_backward)(const fsdp_kernel_call *call);
void FSDP_CPU(attention)(const fsdp_kernel_call *call);
void FSDP_CPU(attention_backward)(const fsdp_kernel_call *call);
void FSDP_CPU(swiglu)(const fsdp_kernel_call *call);
void FSDP_CPU(swiglu_backward)(const fsdp_kernel_call *call);
void FSDP_CPU(linear_cross_entropy)(const fsdp_kernel_call *call);
void FSDP_CPU(linear_cross_entropy_backward)(const fsdp_kernel_call *call);
void FSDP_CPU(cast)(const fsdp_kernel_call *call);
void FSDP_CPU(add)(const fsdp_kernel_call *call);
void FSDP_CPU(zero)(const fsdp_kernel_call *call);
void FSDP_CPU(sum_squares)(const fsdp_kernel_call *call);
void FSDP_CPU(sum)(const fsdp_kernel_call *call);
void FSDP_CPU(clip_factor)(const fsdp_kernel_call *call);
void FSDP_CPU(adamw)(const fsdp_kernel_call *call);
void FSDP_CPU(checksum)(const fsdp_kernel_call *call);
void FSDP_CPU(poison)(const fsdp_kernel_call *call);
