#include "kernels/cpu/operand.h"

extern const fsdp_cpu_isa FSDP_CPU(isa);

#define FSDP_OP(KIND, name, PHASE, operands, RULES) [FSDP_OP_##KIND] = FSDP_CPU(name),
const fsdp_cpu_isa FSDP_CPU(isa) = {
    .name = FSDP_CPU_TEXT(FSDP_ISA),
    .product = FSDP_CPU(product),
    .convert = FSDP_CPU(convert),
    .table = {.device = "cpu",
              .kernels =
                  {
#include "models/graph/ops.def"
                  }},
};
