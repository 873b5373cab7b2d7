// Optimizers as a table: the state of each element of a parameter, the op that updates it, and what that op
// takes of the run's hyper-parameters.
//
//   optimizer   slot 0, the parameter   further slots
//   adamw       master                  m, v
//   frozen      master                  (parameters that do not train)
//   balance     master                  m, v: zeros, so that a run's units have the same slots
//
// Every slot is flat and has the layout of its unit's shard. Each unit has one optimizer, which its
// parameters choose (fsdp_optimizer_of). Plans, executors, checkpoints and comparisons of replicas read this
// table; none of them knows an optimizer's name.
#pragma once

#include "models/graph/op.h"
#include "runtime/plan/mesh/units.h"
#include "runtime/plan/program/program.h"

#define FSDP_SLOTS_MAX 4
// The slot of the parameters themselves, in every optimizer.
#define FSDP_SLOT_MASTER 0

typedef enum fsdp_optimizer_kind {
  FSDP_OPTIMIZER_ADAMW,
  FSDP_OPTIMIZER_FROZEN,
  FSDP_OPTIMIZER_BALANCE, // of routers' correction biases
  FSDP_OPTIMIZER_COUNT
} fsdp_optimizer_kind;

// Which parameters weight decay shrinks: all, or those of two dimensions and more (no norms, no biases).
typedef enum fsdp_decay { FSDP_DECAY_ALL, FSDP_DECAY_MATRICES } fsdp_decay;

// The run's hyper-parameters, of which an optimizer takes some; the learning rate is a scalar of each step.
typedef struct fsdp_hyper {
  double beta1, beta2;
  float eps, weight_decay;
  fsdp_decay decay;
  float balance_rate; // how far a router's correction bias moves in a step; 0: it stays
} fsdp_hyper;

// Which of the run's dtypes a slot has.
typedef enum fsdp_slot_dtype { FSDP_SLOT_OF_MASTER_DTYPE, FSDP_SLOT_OF_MOMENT_DTYPE } fsdp_slot_dtype;
// What a new run begins with.
typedef enum fsdp_slot_start { FSDP_SLOT_FROM_WEIGHTS, FSDP_SLOT_FROM_ZERO } fsdp_slot_start;

// In bf16 each is rounded stochastically.
typedef struct fsdp_slot {
  const char *name;  // of its tensors, and in checkpoints
  const char *title; // in messages
  fsdp_category category;
  fsdp_slot_dtype dtype;
  fsdp_slot_start start;
} fsdp_slot;

typedef struct fsdp_optimizer {
  const char *name;
  // r gradient shard, r scalars, r factor, then u each slot in order, [w copy of slot 0]. FSDP_OP_ROW_COUNT:
  // it has none.
  fsdp_op_kind update;
  // The attributes of `update`; and its scalars, but the learning rate, of update `t`, counted from 1.
  void (*attrs)(const fsdp_hyper *hyper, fsdp_op_attrs *attrs);
  void (*scalars)(const fsdp_hyper *hyper, double t, float scalars[FSDP_SCALAR_COUNT]);
  int slot_count;
  fsdp_slot slots[FSDP_SLOTS_MAX];
} fsdp_optimizer;

#define FSDP_UPDATE_FIRST_SLOT 3 // index of slot 0 among the update's operands

extern const fsdp_optimizer fsdp_optimizers[FSDP_OPTIMIZER_COUNT]; // by kind

// The optimizer of a unit in a run whose parameters train with `kind`.
const fsdp_optimizer *fsdp_optimizer_of(fsdp_optimizer_kind kind, const fsdp_unit *unit);

// Whether weight decay shrinks a parameter.
bool fsdp_hyper_decays(const fsdp_hyper *hyper, const fsdp_param *param);

// The scalars of update `t` but the learning rate.
void fsdp_optimizer_scalars(fsdp_optimizer_kind kind, const fsdp_hyper *hyper, double t,
                            float scalars[FSDP_SCALAR_COUNT]);

// The dtype of a slot in a run, and the bytes of all slots of one element.
fsdp_dtype fsdp_slot_dtype_of(const fsdp_slot *slot, fsdp_dtype master_dtype, fsdp_dtype moment_dtype);
int64_t fsdp_optimizer_elem_bytes(fsdp_optimizer_kind kind, fsdp_dtype master_dtype, fsdp_dtype moment_dtype);
