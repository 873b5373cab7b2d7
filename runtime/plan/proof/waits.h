// Waits from addresses: if two instructions on different streams access overlapping bytes, one of them
// writing, the later one waits for the earlier, unless its other waits imply that.
//
// The program is walked over every seam (fsdp_program_seam_order) with one vector clock per stream; the waits
// that an instruction needs in any of its runs become its waits. Works on bytes, so a tensor's own
// dependences and the reuse of its address are one thing. An operand that moves with the rank counts as the
// hull of its ranges over all ranks, so that the waits are the same on every rank and hold for each. Waits
// that others imply in every run are omitted. A POLICY wait never replaces one that the bytes require.
#pragma once

#include "runtime/plan/program/program.h"

// Replaces the program's waits. Needs addresses. An instruction's `policy` becomes a POLICY wait if nothing
// implies it.
void fsdp_waits_infer(fsdp_program *program);
