// Waits from addresses: for two instructions on different streams that touch overlapping bytes, one of them
// writing, the later one waits for the earlier, unless what it already waits for implies that.
//
// The program is walked over every seam (fsdp_program_seam_order) with one vector clock a stream; the waits
// that an instruction needs in any of its runs become its waits. Works on bytes, so a tensor's own
// dependences and the reuse of its address are one thing. An operand that moves with the rank counts as the
// hull of its ranges over all ranks, so that the waits are the same on every rank and hold for each. Waits
// that others imply in every run are left out; a POLICY wait never stands in for one that the bytes ask for.
#pragma once

#include "runtime/plan/program/program.h"

// Replaces the program's waits. Needs addresses. An instruction's `policy` becomes a POLICY wait where
// nothing implies it.
void fsdp_waits_infer(fsdp_program *program);
