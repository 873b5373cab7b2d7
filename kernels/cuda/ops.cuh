// Launchers of the CUDA device's ops, one per row of models/graph/ops.def but FSDP_CPU_OP.
#pragma once

#include "kernels/kernels.h"

#define FSDP_OP(KIND, name, PHASE, operands, RULES) void cuda_##name(const fsdp_kernel_call *call);
#define FSDP_CPU_OP(KIND, name, PHASE, operands, RULES)
#include "models/graph/ops.def"
