// The kernels of one instruction set level (isa.h), one per row of models/graph/ops.def.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"

#define FSDP_OP(KIND, name, PHASE, operands, RULES) void FSDP_CPU(name)(const fsdp_kernel_call *call);
#include "models/graph/ops.def"

// What add_bias does, within a call whose operands are open: to = bias + from, in the op's columns of rows.
void FSDP_CPU(add_bias_to)(const fsdp_kernel_call *call, const fsdp_view *bias, const fsdp_view *from,
                           const fsdp_view *to);

// What rope_backward does, within a call whose operands are open: of its rows d_qkv.
void FSDP_CPU(rotate_back)(const fsdp_kernel_call *call, const fsdp_view *d_qkv);
