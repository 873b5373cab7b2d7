// Random step programs and plans for the tests of runtime/plan.
#pragma once

#include "runtime/plan/program/program.h"

// A stream of numbers that depends on `seed` alone.
typedef struct random_source {
  uint64_t seed, next;
} random_source;

// Uniform in [low, high].
int random_int(random_source *random, int low, int high);

// A program without addresses and waits in which every read finds data. It has several streams, one to five
// micro-batches, with or without evaluation, and tensors of every lifetime. Tensors are written whole, piece
// by piece, slot by slot, or own slot and gathered; they are updated in place, reduced and copied. Offsets of
// operands are affine in the coordinates. Meshes have three axes and 1 to `ranks_max` ranks (at least 4, at
// most 64). Lifetimes are set. The caller owns it.
fsdp_program *random_program(random_source *random, int ranks_max);

// A copy of everything; the caller owns it.
fsdp_program *copy_program(const fsdp_program *program);
