// The verifier: a proof that a program with addresses and waits has no race, reads what it expects and never
// deadlocks, on every rank.
//
//   proved, for every rank                                      by
//   operands lie inside their tensors, tensors inside arenas,   hulls of operands' ranges over all ranks
//     instructions inside the lifetimes of what they access
//   operands of collectives and copies have the sizes, places   differences of affine offsets
//     and memory that the group and the call demand
//   operands of ops have the number, elements, accesses and    the op's row and its attributes
//     dtypes that the op's kernels take
//   ranks meet in one order at every collective, and none       one stream per communicator; see below
//     waits forever
//   tensors that live at the same time do not overlap           a sweep over the list
//   two instructions that access overlapping bytes, one of      vector clocks, over hulls
//     them writing, are ordered by streams and waits
//   every read finds, in every byte, data of its operand's      the list walked for all ranks at once, and
//     tensor, written in this lifetime of it                    if that does not suffice, rank by rank
//
// The list is the same on every rank, but an operand's offset is affine in the rank's coordinates. Hulls hold
// on any rank, since each rank's range lies inside. All of it is checked over every seam between sections and
// steps (fsdp_program_seam_order, which is all that this shares with the code that makes waits). A tensor
// that lives always holds data from the start. POISON may access bytes that no live tensor has.
//
// Reads. For all ranks at once, a byte's tag is known only if it is the same on every rank; an operand that
// moves with the rank is remembered with its offset function. A read is accepted if its hull carries its tag
// on every rank, or if writes of its tag with the same strides cover it, and nothing else was written into
// their hulls since: then each rank reads what that rank wrote. That is sound for any number of ranks and
// costs one walk. What it does not accept is walked exactly, rank by rank, if operands lie at no more than 16
// different places of the mesh; so up to 16 ranks the answer is exact. Above, the program is rejected: as
// FSDP_VIOLATION_STALE_READ if the first or last rank reads stale bytes, else as FSDP_VIOLATION_UNPROVED.
//
// Meeting. A communicator is used from one stream, streams run in list order, and the list is the same
// everywhere. So the k-th call on a communicator is the same instruction on each of its members.
//
// No deadlock. Number each rank's issues in the order of issue. A wait refers to an earlier issue, so an
// issue waits for smaller numbers alone, and a collective also for its own number on other ranks. If all
// ranks have completed everything below n, each can start n, so all members of n's group arrive and n
// completes. That requires every stream to progress by itself, as workers, CUDA streams and one communicator
// per stream do.
//
// Cost: the walks take O(n log n) for n operands in the seam order.
#pragma once

#include "runtime/plan/program/program.h"
#include "runtime/plan/proof/violation.h"

// True if the program is proved; otherwise fills `violation` (may be NULL) with the first thing found.
bool fsdp_verify(const fsdp_program *program, fsdp_violation *violation);
// All of it but what ops take: of a program that stands for accesses alone.
bool fsdp_verify_accesses(const fsdp_program *program, fsdp_violation *violation);
