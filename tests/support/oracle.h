// The oracle: the verifier's expected verdicts, found by brute force. It calls no function of runtime/plan.
// It computes again, from the definitions, which bytes an operand covers on a rank, who meets in a
// collective, and in which order sections run.
//
// Steps, evaluations and checks are unrolled into events, with every sequence of up to two of the latter
// between two steps. "Comes before" is the transitive closure of stream order and waits, one bit per pair of
// events; conflicts are all pairs of events whose operands overlap, one of them writing; what a byte holds is
// kept for every two bytes of the arenas. Slow, for small programs.
#pragma once

#include "runtime/plan/program/program.h"

// Which bytes are compared for an operand whose offset depends on the rank.
typedef enum oracle_ranks {
  ORACLE_EACH_RANK, // its own on each rank: the truth
  ORACLE_HULL       // those of all ranks: the rule that waits and verifier state
} oracle_ranks;

typedef struct oracle oracle;

// Events and conflicts of the program with its current addresses. Only the program's waits may change
// afterwards.
oracle *oracle_create(const fsdp_program *program, oracle_ranks ranks);
void oracle_destroy(oracle *o);

// Whether two conflicting events are not ordered by streams and the program's waits. `position`, `other` (may
// be NULL) receive the instructions.
bool oracle_finds_race(oracle *o, int *position, int *other);

// Whether an operand lies outside its tensor or lifetime, or a tensor outside its arena.
bool oracle_finds_out_of_range(const fsdp_program *program);

// Whether two tensors that are live at the same time overlap.
bool oracle_finds_overlap(const fsdp_program *program);

// Whether a read finds a byte without data of its tensor's current lifetime, on any rank.
bool oracle_finds_stale_read(const fsdp_program *program);

// Whether operands of a collective or a copy have the wrong number, sizes, dtypes, memory, accesses, or
// (inside one another) places, on any rank.
bool oracle_finds_bad_operands(const fsdp_program *program);

// Whether two streams use one communicator.
bool oracle_finds_shared_communicator(const fsdp_program *program);

// All of the above: whether none is found.
bool oracle_accepts(const fsdp_program *program, oracle_ranks ranks);
