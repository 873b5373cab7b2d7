#include "runtime/plan/program/optimizer.h"

#include <math.h>

static void adamw_attrs(const fsdp_hyper *hyper, fsdp_op_attrs *attrs) {
  attrs->beta1 = hyper->beta1;
  attrs->beta2 = hyper->beta2;
  attrs->adam_eps = hyper->eps;
  attrs->weight_decay = hyper->weight_decay;
  attrs->decays_some = hyper->decay != FSDP_DECAY_ALL && hyper->weight_decay > 0;
}

static void adamw_scalars(const fsdp_hyper *hyper, double t, float scalars[FSDP_SCALAR_COUNT]) {
  scalars[FSDP_SCALAR_CORRECTION1] = (float)(1 - pow(hyper->beta1, t));
  scalars[FSDP_SCALAR_CORRECTION2] = (float)(1 - pow(hyper->beta2, t));
}

static void balance_attrs(const fsdp_hyper *hyper, fsdp_op_attrs *attrs) {
  attrs->balance_rate = hyper->balance_rate;
}

#define MASTER                                                                                               \
  {                                                                                                          \
    "master", "master parameters", FSDP_CATEGORY_PARAMETERS, FSDP_SLOT_OF_MASTER_DTYPE,                      \
        FSDP_SLOT_FROM_WEIGHTS                                                                               \
  }
#define MOMENT(name, title)                                                                                  \
  { name, title, FSDP_CATEGORY_OPTIMIZER, FSDP_SLOT_OF_MOMENT_DTYPE, FSDP_SLOT_FROM_ZERO }

const fsdp_optimizer fsdp_optimizers[FSDP_OPTIMIZER_COUNT] = {
    [FSDP_OPTIMIZER_ADAMW] = {.name = "adamw",
                              .update = FSDP_OP_ADAMW,
                              .attrs = adamw_attrs,
                              .scalars = adamw_scalars,
                              .slot_count = 3,
                              .slots = {MASTER, MOMENT("m", "first moment (m)"),
                                        MOMENT("v", "second moment (v)")}},
    [FSDP_OPTIMIZER_BALANCE] = {.name = "balance",
                                .update = FSDP_OP_BALANCE,
                                .attrs = balance_attrs,
                                .scalars = adamw_scalars,
                                .slot_count = 3,
                                .slots = {MASTER, MOMENT("m", "first moment (m)"),
                                          MOMENT("v", "second moment (v)")}},
    [FSDP_OPTIMIZER_FROZEN] = {
        .name = "frozen", .update = FSDP_OP_ROW_COUNT, .slot_count = 1, .slots = {MASTER}}};

const fsdp_optimizer *fsdp_optimizer_of(fsdp_optimizer_kind kind, const fsdp_unit *unit) {
  if (!unit->trainable) return &fsdp_optimizers[FSDP_OPTIMIZER_FROZEN];
  return &fsdp_optimizers[unit->balances ? FSDP_OPTIMIZER_BALANCE : kind];
}

bool fsdp_hyper_decays(const fsdp_hyper *hyper, const fsdp_param *param) {
  return hyper->decay == FSDP_DECAY_ALL || param->dims >= 2;
}

void fsdp_optimizer_scalars(fsdp_optimizer_kind kind, const fsdp_hyper *hyper, double t,
                            float scalars[FSDP_SCALAR_COUNT]) {
  scalars[FSDP_SCALAR_STEP] = (float)t;
  fsdp_optimizers[kind].scalars(hyper, t, scalars);
}

fsdp_dtype fsdp_slot_dtype_of(const fsdp_slot *slot, fsdp_dtype master_dtype, fsdp_dtype moment_dtype) {
  return slot->dtype == FSDP_SLOT_OF_MASTER_DTYPE ? master_dtype : moment_dtype;
}

int64_t fsdp_optimizer_elem_bytes(fsdp_optimizer_kind kind, fsdp_dtype master_dtype,
                                  fsdp_dtype moment_dtype) {
  int64_t bytes = 0;
  for (int i = 0; i < fsdp_optimizers[kind].slot_count; i++)
    bytes +=
        fsdp_dtype_bytes(fsdp_slot_dtype_of(&fsdp_optimizers[kind].slots[i], master_dtype, moment_dtype));
  return bytes;
}
