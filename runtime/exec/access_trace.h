// The access trace: which bytes a step reads and writes, as kernels, copies and collectives report them.
//
// Each stream's thread records into its own fixed buffer; no locks. A reported range is resolved to the
// operand of the running instruction that holds it; one that no operand holds is an error that names
// instruction and range. Two steps are kept, the newest issued and the one before, as a step may still be
// finishing when the next is issued.
#pragma once

#include "kernels/kernels.h"
#include "runtime/device/device.h"
#include "runtime/exec/measure.h"
#include "runtime/plan/program/program.h"

typedef struct fsdp_access_trace fsdp_access_trace;

// Bytes that an access trace of the program takes; they grow with the micro-batches per step.
int64_t fsdp_access_trace_bytes(const fsdp_program *program);

// Both outlive the trace. `common` is a tensor that every instruction may access, or -1.
fsdp_access_trace *fsdp_access_trace_create(const fsdp_program *program, const fsdp_device *device,
                                            int common);
void fsdp_access_trace_destroy(fsdp_access_trace *trace); // NULL is allowed

// Starts recording step `step` in the buffers of the step two before, which no stream may still record.
void fsdp_access_trace_begin_step(fsdp_access_trace *trace, int64_t step);

// The recorder for one instruction, on its stream's thread: `issue` is its place in the step's order of
// issue, `views` are its operands' addresses. Valid until the stream's next instruction; used by that thread
// alone.
fsdp_access_recorder *fsdp_access_trace_instr(fsdp_access_trace *trace, int64_t step, int64_t issue,
                                              int position, const fsdp_view *views);

// Valley and peak of the step, whose instructions must be complete; memory that only sections beside steps
// access (a snapshot) is added as planned, and what steps only read counts whole, whatever they read of it.
// False with a message for an access outside the operands, a write to a read-only operand, more ranges than
// fit, or buffers that collide.
bool fsdp_access_trace_measure(fsdp_access_trace *trace, int64_t step, int64_t issue_count,
                               fsdp_measurement *measurement, char *message, int message_bytes);
