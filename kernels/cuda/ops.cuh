// Launchers of the CUDA device's ops, one per row of models/graph/ops.def.
#pragma once

#include "kernels/kernels.h"

#define FSDP_OP(KIND, name, PHASE, operands, RULES) void cuda_##name(const fsdp_kernel_call *call);
#include "models/graph/ops.def"
