// Makers: how passes make tensors and nodes. New nodes go to the list's cursor.
#pragma once

#include "runtime/plan/program/builder.h"

// A tensor named "<owner>.<what>" (or "<what>" without an owner).
int make_tensor(step_builder *s, const char *owner, const char *what, fsdp_space space,
                fsdp_category category, fsdp_lifetime lifetime, int unit, int module, int64_t bytes);
// A tensor of unit `u` with `numel` elements.
int make_unit_tensor(step_builder *s, int u, const char *what, fsdp_space space, fsdp_category category,
                     fsdp_lifetime lifetime, int64_t numel, fsdp_dtype dtype);
// A small tensor of the step: `count` fp32 or int32 numbers.
int make_scalars(step_builder *s, const char *what, fsdp_space space, fsdp_lifetime lifetime, int64_t count);

// All of a tensor.
fsdp_operand make_whole(const step_builder *s, int tensor, fsdp_dtype dtype, fsdp_access access);
// This rank's slot of a buffer that holds unit `u` whole.
fsdp_operand make_own_slot(const step_builder *s, int u, int tensor, fsdp_dtype dtype, fsdp_access access);

// `numel` elements of a shard of unit `u` from this rank's slice of it on.
fsdp_operand make_slice(const step_builder *s, int u, int tensor, fsdp_dtype dtype, fsdp_access access,
                        int64_t numel);

// Each returns the node's index. `operands` are copied.
int make_op(step_builder *s, fsdp_stream stream, fsdp_op_kind op, const fsdp_op_attrs *attrs, int unit,
            const fsdp_operand *operands, int operand_count);
// Writes `from` into `to`, or adds it to that, as its access says (FSDP_WRITE, FSDP_UPDATE).
int make_move(step_builder *s, fsdp_stream stream, int unit, fsdp_operand from, fsdp_operand to);
// A copy between the arenas; accesses are set here.
int make_copy(step_builder *s, fsdp_instr_kind kind, int unit, fsdp_operand from, fsdp_operand to);
int make_copy_whole(step_builder *s, fsdp_instr_kind kind, int from, int to, fsdp_dtype dtype);
// The same on a stream of its own: a saved activation to the host, or back.
int make_copy_saved(step_builder *s, fsdp_instr_kind kind, int from, int to, fsdp_dtype dtype);
// Over `axes`, which are more than one rank. Input and output, or one that is both; accesses are set here.
int make_collective(step_builder *s, fsdp_instr_kind kind, fsdp_axis_set axes, fsdp_stream stream, int unit,
                    const fsdp_operand *operands);
// An instruction of the host stream that calls the program's user.
int make_host_call(step_builder *s, fsdp_instr_kind kind, const fsdp_operand *operands, int operand_count);
// The sum of an fp32 tensor over the ranks of these axes; nothing if there are none.
void make_sum(step_builder *s, int tensor, fsdp_axis_set axes);
