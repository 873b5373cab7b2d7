// What the parts of the verifier share; see verify.h for what they prove. Only this file and verify_ranges.c
// know how an operand moves from rank to rank.
//
//   verify_ranges.c       messages; where operands lie; operands in tensors, tensors in arenas, live tensors
//                         apart
//   verify_collectives.c  operands of collectives and copies, communicators
//   verify_order.c        vector clocks: no race
//   verify_data.c         what every read finds, on every rank
//   verify_launches.c     operands of ops
#pragma once

#include "runtime/plan/program/program.h"
#include "runtime/plan/proof/violation.h"

// Runs of the seam order: a tensor has at most so many lifetimes.
#define VERIFY_RUNS_MAX FSDP_SEAM_RUNS_MAX
// Middle micro-batches that are walked over: what is proved for k and k + 1 holds for k + 1 and k + 2.
#define VERIFY_MIDDLES  3
#define VERIFY_AXES_MAX FSDP_MESH_AXES_MAX
// The most ranks with operands at different places that are checked one by one.
#define VERIFY_EXACT_RANKS 16

typedef struct verifier {
  const fsdp_program *program;
  fsdp_violation *violation;                                     // the caller's or a dummy
  int order[VERIFY_RUNS_MAX], steps[VERIFY_RUNS_MAX], run_count; // section and step of each run
  int64_t space_base[FSDP_SPACE_COUNT];                          // both arenas on one line
} verifier;

// A place in the mesh.
typedef struct verify_place {
  int coordinate[VERIFY_AXES_MAX];
} verify_place;

// Bytes [begin, end) of the line.
typedef struct verify_range {
  int64_t begin, end;
} verify_range;

// Bytes that the operand moves by for each step along the axis; 0 along an axis of one.
int64_t verify_stride(const verifier *v, const fsdp_operand *operand, int axis);
int verify_axis_size(const verifier *v, int axis);

verify_range verify_tensor_range(const verifier *v, int tensor);
// What the operand covers on one rank, and the hull of what it covers on all.
verify_range verify_operand_range(const verifier *v, const fsdp_operand *operand, const verify_place *place);
verify_range verify_operand_hull(const verifier *v, const fsdp_operand *operand);

// Fills the violation. Returns false.
__attribute__((format(printf, 3, 4))) bool verify_reject(const verifier *v, fsdp_violation found,
                                                         const char *format, ...);

#define VERIFY_WHO_BYTES 96
// "linear on stream compute at 12"
const char *verify_describe(const verifier *v, int position, char out[VERIFY_WHO_BYTES]);

// The parts, each false after a violation. Each relies on what the earlier ones have proved.
bool verify_ranges(const verifier *v);
bool verify_collectives(const verifier *v);
bool verify_overlap(const verifier *v);
bool verify_order(const verifier *v);
bool verify_data(const verifier *v);
bool verify_launches(const verifier *v);
