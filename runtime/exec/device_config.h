// What a step program asks of a device: arenas, threads of each stream, room for work under way.
#pragma once

#include "runtime/device/device.h"
#include "runtime/plan/program/program.h"

// Threads for each stream of `program` when a rank may use `threads` cores: compute and host kernels all of
// them, the kernels of other streams (casts) at most four, a stream without instructions none. Fills `config`
// but for `shared`, `ordinal` and the memory's functions. Arenas are poisoned where the program is, or where
// the environment has FSDP_POISON_ARENAS.
void fsdp_device_configure(const fsdp_program *program, int threads, fsdp_device_config *config);

// Which instructions another stream waits for, or who takes over the books of a step: awaited[instr_count].
void fsdp_device_mark_awaited(const fsdp_program *program, bool *awaited);
