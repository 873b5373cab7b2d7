// What a step program asks of a device: arenas, threads per stream, queue sizes.
#pragma once

#include "runtime/device/device.h"
#include "runtime/plan/program/program.h"

// Threads per stream of `program` for a rank that may use `threads` cores: compute and host kernels get all
// of them, the kernels of other streams (casts) at most four, a stream without instructions none. `config` is
// zero but for `shared`, `ordinal` and the memory's functions. Arenas are poisoned if the program is, or if
// FSDP_POISON_ARENAS is set in the environment.
void fsdp_device_configure(const fsdp_program *program, int threads, fsdp_device_config *config);

// Which instructions another stream, or the reuse of a step's records, waits for: awaited[instr_count].
void fsdp_device_mark_awaited(const fsdp_program *program, bool *awaited);
