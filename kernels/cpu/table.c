#include "kernels/cpu/gemm_builtin.h"
#include "kernels/cpu/operand.h"
#include "kernels/cpu/ops.h"

extern const fsdp_cpu_isa FSDP_CPU(isa);
const fsdp_cpu_isa FSDP_CPU(isa) = {
    .name = FSDP_CPU_TEXT(FSDP_ISA),
    .product = FSDP_CPU(product),
    .convert = FSDP_CPU(convert),
    .table =
        {
            .device = "cpu",
            .kernels =
                {
                    [FSDP_OP_EMBEDDING] = FSDP_CPU(embedding),
                    [FSDP_OP_RMSNORM] = FSDP_CPU(rmsnorm),
                    [FSDP_OP_ADD_RMSNORM] = FSDP_CPU(add_rmsnorm),
                    [FSDP_OP_LINEAR] = FSDP_CPU(linear),
                    [FSDP_OP_ROPE] = FSDP_CPU(rope),
                    [FSDP_OP_ATTENTION] = FSDP_CPU(attention),
                    [FSDP_OP_SWIGLU] = FSDP_CPU(swiglu),
                    [FSDP_OP_LINEAR_CROSS_ENTROPY] = FSDP_CPU(linear_cross_entropy),
                    [FSDP_OP_EMBEDDING_BACKWARD] = FSDP_CPU(embedding_backward),
                    [FSDP_OP_RMSNORM_BACKWARD] = FSDP_CPU(rmsnorm_backward),
                    [FSDP_OP_LINEAR_BACKWARD_INPUT] = FSDP_CPU(linear_backward_input),
                    [FSDP_OP_LINEAR_BACKWARD_WEIGHT] = FSDP_CPU(linear_backward_weight),
                    [FSDP_OP_ROPE_BACKWARD] = FSDP_CPU(rope_backward),
                    [FSDP_OP_ATTENTION_BACKWARD] = FSDP_CPU(attention_backward),
                    [FSDP_OP_SWIGLU_BACKWARD] = FSDP_CPU(swiglu_backward),
                    [FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD] = FSDP_CPU(linear_cross_entropy_backward),
                    [FSDP_OP_CAST] = FSDP_CPU(cast),
                    [FSDP_OP_ADD] = FSDP_CPU(add),
                    [FSDP_OP_ZERO] = FSDP_CPU(zero),
                    [FSDP_OP_SUM_SQUARES] = FSDP_CPU(sum_squares),
                    [FSDP_OP_SUM] = FSDP_CPU(sum),
                    [FSDP_OP_CLIP_FACTOR] = FSDP_CPU(clip_factor),
                    [FSDP_OP_ADAMW] = FSDP_CPU(adamw),
                    [FSDP_OP_CHECKSUM] = FSDP_CPU(checksum),
                    [FSDP_OP_POISON] = FSDP_CPU(poison),
                },
        },
};
