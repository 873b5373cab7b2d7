// What a kernel does first, on either device: check its operands against the op's row (models/graph/ops.def)
// and report them to the access trace.
#pragma once

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

// Aborts unless the call has the operands that the row names, with their element counts, accesses and dtypes,
// and after them this device's workspace or nothing. Reports the accesses: all of each operand, and of a
// slice its columns. Operands in `in_part` (bit i: operand i) are not reported: the kernel accesses only part
// of them and reports that part itself. Returns the operands.
const fsdp_view *fsdp_kernel_open(const fsdp_kernel_call *call, fsdp_op_device device, unsigned in_part);

// The workspace, which is the last operand; aborts if the call has none.
const fsdp_view *fsdp_kernel_workspace(const fsdp_kernel_call *call);

// The operand that is there for this reason: starts of documents, attrs.documents for each sequence; targets
// of each row's document. NULL: the call has none. On a GPU it is the device that can read them.
const int32_t *fsdp_kernel_given(const fsdp_kernel_call *call, fsdp_op_given given);

// Reports elements [first, first + count) of operand `index`.
void fsdp_kernel_report(const fsdp_kernel_call *call, int index, int64_t first, int64_t count,
                        fsdp_access access);

#ifdef __cplusplus
}
#endif
