// The step program: a training step as a flat list of instructions on streams, with waits.
//
//   sections   micro-batch sections (only | first last | first middle... last), update; beside steps, if
//              used, evaluation, check, snapshot and exchange. Of a program of evaluations alone, a step is
//              the section `only`
//   a run      first, middle x (accumulation - 2), last, update, and again from the start, without a barrier
//   tensors    ranges of one of two arenas (device, pinned host), each live over a range of list positions
//   positions  an instruction's index in the whole list; sections lie in it one after another
//
// Within a stream, instructions run in program order; across streams only a wait orders. A wait names an
// instruction and means its most recent issue before the waiting one (as a CUDA event does): in this run of
// the section, an earlier section, or the previous step. If it was never issued, the wait ends at once. So
// seams between sections are ordered like everything else, and every wait points back in the order of issue:
// no deadlock.
//
// The list is the same on every rank. What depends on the rank is affine in its coordinates on the mesh:
// where an operand begins, and the first index of what a kernel works on (op.h).
//
// A communicator is a set of axes and a stream, and is used from that stream alone, so that gathering and
// reducing over the same axes overlap.
#pragma once

#include "models/graph/graph.h"
#include "runtime/base/collective.h"
#include "runtime/base/stream.h"
#include "runtime/plan/mesh/mesh.h"

#include <stdio.h>

typedef enum fsdp_category {
  FSDP_CATEGORY_PARAMETERS, // master shards, low-precision copies
  FSDP_CATEGORY_GATHERED,
  FSDP_CATEGORY_GRADIENTS,
  FSDP_CATEGORY_OPTIMIZER,
  FSDP_CATEGORY_ACTIVATIONS,
  FSDP_CATEGORY_WORKSPACE,
  FSDP_CATEGORY_INPUTS, // tokens, targets, scalars
  FSDP_CATEGORY_COUNT
} fsdp_category;

typedef enum fsdp_lifetime {
  FSDP_LIVE_ALWAYS,  // between steps too: its bytes are the valley
  FSDP_LIVE_STEP,    // from its first instruction to its last, through every section between
  FSDP_LIVE_SECTION, // the same, both in one section
} fsdp_lifetime;

typedef struct fsdp_tensor {
  char name[FSDP_NAME_BYTES];
  fsdp_space space;
  fsdp_category category;
  fsdp_lifetime lifetime;
  int unit;       // whose parameters, gradients or state it holds, or -1
  int module;     // whose op makes it (activations, workspaces), or -1
  int64_t bytes;  // what the program accesses, without alignment
  int begin, end; // list positions of the first and last instruction that accesses it; ALWAYS: the whole list
  int64_t address; // offset in its space's arena, set by the memory plan
} fsdp_tensor;

typedef enum fsdp_instr_kind {
  FSDP_INSTR_OP, // a kernel: instr.op
// r input, w output, or u both: FSDP_INSTR_ALL_GATHER, ...
#define FSDP_COLLECTIVE(KIND, ...) FSDP_INSTR_##KIND,
#include "runtime/base/collectives.def"
  FSDP_INSTR_H2D,        // r host, w device, same dtype and size
  FSDP_INSTR_D2H,        // r device (a snapshot: or host), w host
  FSDP_INSTR_FEED_STEP,  // w host scalars, w host target count[, w host row]: asks the caller for the step's
                         // numbers; the row is of the logits that it wants
  FSDP_INSTR_FEED_BATCH, // w host inputs of the graph: asks the caller for the next micro-batch
  FSDP_INSTR_PUBLISH,    // r host results (fp32 losses[, gradient norm, or logits of an evaluation's row]):
                         // passes them to the caller
  FSDP_INSTR_DIGESTS,    // r host digests (64 bits each): passes them to the caller
  FSDP_INSTR_SNAPSHOT,   // no operand: notifies the caller that the earlier copies on its stream are complete
  FSDP_INSTR_KIND_COUNT
} fsdp_instr_kind;

typedef struct fsdp_operand {
  int tensor;
  fsdp_dtype dtype;
  fsdp_access access;
  fsdp_affine offset; // in bytes from the start of the tensor
  int64_t size_bytes;
} fsdp_operand;

// The reason for a wait.
typedef enum fsdp_wait_reason {
  FSDP_WAIT_DATA,  // the bytes are the same tensor's
  FSDP_WAIT_REUSE, // the bytes belong to a different tensor at the same address
  FSDP_WAIT_POLICY // bounds how far a prefetch runs ahead; nothing breaks without it
} fsdp_wait_reason;

typedef struct fsdp_wait {
  int position; // of the awaited instruction
  fsdp_wait_reason reason;
} fsdp_wait;

// What every walk over a program reads comes first: the whole is many cache lines.
typedef struct fsdp_instr {
  fsdp_instr_kind kind;
  fsdp_stream stream;
  fsdp_op_kind op;
  int comm;                         // of a collective: in program->comms
  int unit;                         // that it serves, or -1
  int module;                       // whose op it is, or -1
  int first_operand, operand_count; // in program->operands
  int first_wait, wait_count;       // in program->waits
  int policy;          // position of the instruction before which it must not start (a POLICY wait), or -1
  fsdp_op_attrs attrs; // without those that depend on the rank
  fsdp_affine first_index;           // evaluated into attrs.first_index
  fsdp_affine second_index;          // evaluated into attrs.second_index
  fsdp_affine first_row, first_head; // likewise
} fsdp_instr;

typedef enum fsdp_section_kind {
  FSDP_SECTION_ONLY, // the one micro-batch of a step without accumulation
  FSDP_SECTION_FIRST,
  FSDP_SECTION_MIDDLE,
  FSDP_SECTION_LAST,
  FSDP_SECTION_UPDATE,
  FSDP_SECTION_EVALUATION, // this and the following kinds are no part of a step
  FSDP_SECTION_CHECK,      // digests of every shard of the state, for replicas to compare
  FSDP_SECTION_SNAPSHOT,   // this rank's slices of the state to host memory, for a checkpoint
  FSDP_SECTION_EXCHANGE,   // after a load: slices of the state between replicas, and low-precision copies
  FSDP_SECTION_KIND_COUNT
} fsdp_section_kind;

typedef struct fsdp_section {
  fsdp_section_kind kind;
  int begin, end; // positions [begin, end)
} fsdp_section;

#define FSDP_MAX_SECTIONS      8
#define FSDP_PROGRAM_COMMS_MAX 32

typedef struct fsdp_program_comm {
  fsdp_axis_set axes; // no axis of size 1
  fsdp_stream stream;
} fsdp_program_comm;

typedef struct fsdp_program {
  fsdp_instr *instrs;
  fsdp_operand *operands;
  fsdp_wait *waits;
  fsdp_tensor *tensors;
  int instr_count, operand_count, wait_count, tensor_count;
  fsdp_section sections[FSDP_MAX_SECTIONS];
  int section_count;
  int micro_batches; // micro-batches of a step
  fsdp_mesh mesh;
  fsdp_program_comm comms[FSDP_PROGRAM_COMMS_MAX]; // every one that it uses, once
  int comm_count;
  int64_t arena_bytes[FSDP_SPACE_COUNT]; // set by the memory plan
  int gemm_workspace; // tensor of the gemm library's scratch, or -1; every gemm runs on one stream
  int logits;         // tensor in host memory: of the row that an evaluation was asked for, or -1
  int instr_capacity, operand_capacity, wait_capacity, tensor_capacity;
} fsdp_program;

// A program of one micro-batch on one rank, without sections.
fsdp_program *fsdp_program_create(void);
// Makes room for about so many instructions, so that they are seldom moved while they are added.
void fsdp_program_reserve(fsdp_program *program, int instrs);
void fsdp_program_destroy(fsdp_program *program); // NULL is allowed

// Appends; returns the index. A tensor's begin, end and address are set later (fsdp_program_lifetimes, memory
// plan).
int fsdp_program_tensor(fsdp_program *program, const fsdp_tensor *tensor);
int fsdp_program_instr(fsdp_program *program, const fsdp_instr *instr, const fsdp_operand *operands,
                       int operand_count);
// The communicator over `axes` on `stream`, which is added if there is none yet.
int fsdp_program_comm_add(fsdp_program *program, fsdp_axis_set axes, fsdp_stream stream);
// Ranks of the group of a collective.
int fsdp_program_comm_size(const fsdp_program *program, const fsdp_instr *instr);
// The bytes of the whole buffer of a collective.
int64_t fsdp_program_whole_bytes(const fsdp_program *program, const fsdp_instr *instr);
// Whether it fills unused memory with what nothing may read (tests).
static inline bool fsdp_instr_is_poison(const fsdp_instr *instr) {
  return instr->kind == FSDP_INSTR_OP && instr->op == FSDP_PLAN_OP_POISON;
}

static inline bool fsdp_instr_is_collective(const fsdp_instr *instr) {
  return instr->kind > FSDP_INSTR_OP && instr->kind <= FSDP_INSTR_OP + (int)FSDP_COLLECTIVE_COUNT;
}
// Of a collective.
static inline fsdp_collective_kind fsdp_instr_collective(const fsdp_instr *instr) {
  return (fsdp_collective_kind)(instr->kind - FSDP_INSTR_OP - 1);
}
static inline const fsdp_collective_row *fsdp_instr_collective_row(const fsdp_instr *instr) {
  return &fsdp_collective_rows[fsdp_instr_collective(instr)];
}

void fsdp_program_begin_section(fsdp_program *program, fsdp_section_kind kind);
void fsdp_program_end_section(fsdp_program *program);

// Replaces every instruction's waits: counts[i] entries of waits[] for instruction i, in order.
void fsdp_program_set_waits(fsdp_program *program, const fsdp_wait *waits, const int *counts);

// Sets begin and end of every tensor from the instructions (poison does not count).
void fsdp_program_lifetimes(fsdp_program *program);

// The first position in [section.begin, section.end) where the backward has begun; section.end if none
// has.
int fsdp_program_backward_begin(const fsdp_program *program, const fsdp_section *section);

// The order in which sections are issued in one step, as section indices; returns their number. `out` holds
// at least accumulation + 1. Evaluation and check are not in it.
int fsdp_program_step_order(const fsdp_program *program, int *out);

#define FSDP_SEAM_RUNS_MAX 64

// A sequence of section indices that contains every seam: whole steps with at most `middles` middles each,
// and the sections beside steps, each after itself and after every other. Returns the length.
int fsdp_program_seam_order(const fsdp_program *program, int middles, int out[FSDP_SEAM_RUNS_MAX]);

// XXH3 of everything that every rank must agree on: instructions, operands, waits, tensors with their
// addresses.
uint64_t fsdp_program_hash(const fsdp_program *program);

// One line per instruction, as --print-program shows it.
void fsdp_program_print(const fsdp_program *program, FILE *out);

const char *fsdp_category_name(fsdp_category category);
const char *fsdp_instr_kind_name(fsdp_instr_kind kind);
// "all_gather"; of an op its own name.
const char *fsdp_instr_name(const fsdp_instr *instr);
const char *fsdp_section_name(fsdp_section_kind kind);
