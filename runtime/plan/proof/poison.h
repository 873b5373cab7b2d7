// Poison: a transformation of a program for tests. Before a tensor's first instruction and after its last, an
// instruction fills its bytes with signalling NaNs. So a lifetime that was planned too short shows in the
// results.
#pragma once

#include "runtime/plan/program/program.h"

// Inserts instructions that poison (device tensors on the compute stream, host tensors on the host stream)
// for every tensor that is not ALWAYS live. Call between memory plan and wait inference; lifetimes, addresses
// and peaks do not change.
void fsdp_program_insert_poison(fsdp_program *program);
