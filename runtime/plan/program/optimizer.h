// Optimizers as tables: the state of each element of a parameter, and the op that updates it.
//
//   optimizer   slot 0, the parameter   further slots
//   adamw       master                  m, v
//
// Every slot is flat and has the layout of its unit's shard. Plans, executors, checkpoints and comparisons of
// replicas read this table; none of them knows an optimizer's name.
#pragma once

#include "models/graph/op.h"
#include "runtime/plan/program/program.h"

#define FSDP_SLOTS_MAX 4
// The slot of the parameters themselves, in every optimizer.
#define FSDP_SLOT_MASTER 0

// Which of the run's dtypes a slot has.
typedef enum fsdp_slot_dtype { FSDP_SLOT_OF_MASTER_DTYPE, FSDP_SLOT_OF_MOMENT_DTYPE } fsdp_slot_dtype;
// What a new run begins with.
typedef enum fsdp_slot_start { FSDP_SLOT_FROM_WEIGHTS, FSDP_SLOT_FROM_ZERO } fsdp_slot_start;

typedef struct fsdp_slot {
  const char *name;  // of its tensors, and in checkpoints
  const char *title; // in messages
  fsdp_category category;
  fsdp_slot_dtype dtype;
  fsdp_slot_start start;
  bool rounds; // stochastically rounded in bf16
} fsdp_slot;

typedef struct fsdp_optimizer {
  const char *name;
  // r gradient shard, r scalars, r factor, then u each slot in order, [w copy of slot 0].
  fsdp_op_kind update;
  int slot_count;
  fsdp_slot slots[FSDP_SLOTS_MAX];
} fsdp_optimizer;

#define FSDP_UPDATE_FIRST_SLOT 3 // index of slot 0 among the update's operands

// Static, not to be freed.
const fsdp_optimizer *fsdp_optimizer_adamw(void);

// The dtype of a slot in a run.
fsdp_dtype fsdp_slot_dtype_of(const fsdp_slot *slot, fsdp_dtype master_dtype, fsdp_dtype moment_dtype);
