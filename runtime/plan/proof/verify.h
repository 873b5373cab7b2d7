// The verifier: a proof, by vector clocks, that a program with addresses and waits has no race and reads what
// it expects.
//
// It shares nothing with the code that makes waits (other intervals, other clocks). Over every seam
// (fsdp_program_seam_order) it checks:
// - any two instructions that touch overlapping bytes of a space, one of them writing, are ordered (stream
// order, waits);
// - every read finds, in every byte, data of the tensor that the operand names, written in this lifetime of
// it;
// - tensors live at one time do not overlap; operands lie inside their tensors, tensors inside their arena;
// - instructions touch a tensor within its lifetime only (begin to end), but for POISON, whose bytes are
// nobody's data;
// - waits point back in the order of issue (to an instruction of the program: the most recent issue never
// lies ahead).
//
// A tensor that lives always holds data from the start. Ranks: a program is the same for every rank, and an
// operand may move with the rank in its shard group. Races are checked on the hull of an operand's ranges
// over all ranks, so that the order holds whichever rank it is. What a read finds is checked for the exact
// ranges of every rank where there are four at most, else of ranks 0, 1 and the last: offsets are affine in
// the rank, so a read that lies inside a write at both ends lies inside it in between.
#pragma once

#include "runtime/plan/program/program.h"

typedef enum fsdp_violation_kind {
  FSDP_VIOLATION_NONE,
  FSDP_VIOLATION_RACE,        // two instructions, not ordered, overlapping bytes
  FSDP_VIOLATION_STALE_READ,  // a byte holds another tensor's data, or was never written
  FSDP_VIOLATION_OVERLAP,     // two live tensors at one address
  FSDP_VIOLATION_OUT_OF_RANGE // operand outside its tensor or its tensor's lifetime, tensor outside its
                              // arena, wait on an instruction that does not exist
} fsdp_violation_kind;

typedef struct fsdp_violation {
  fsdp_violation_kind kind;
  int position, other_position; // the instructions (-1: none)
  int tensor, other_tensor;
  int64_t address; // of the first byte concerned
  char message[512];
} fsdp_violation;

// True where the program is proved; otherwise fills `violation` (may be NULL) with the first thing found.
bool fsdp_verify(const fsdp_program *program, fsdp_violation *violation);
