#include "runtime/plan/program/optimizer.h"

const fsdp_optimizer *fsdp_optimizer_adamw(void) {
  static const fsdp_optimizer adamw = {.name = "adamw",
                                       .update = FSDP_OP_ADAMW,
                                       .slot_count = 3,
                                       .slots = {{"master", "master parameters", FSDP_CATEGORY_PARAMETERS,
                                                  FSDP_SLOT_OF_MASTER_DTYPE, FSDP_SLOT_FROM_WEIGHTS, true},
                                                 {"m", "first moment (m)", FSDP_CATEGORY_OPTIMIZER,
                                                  FSDP_SLOT_OF_MOMENT_DTYPE, FSDP_SLOT_FROM_ZERO, true},
                                                 {"v", "second moment (v)", FSDP_CATEGORY_OPTIMIZER,
                                                  FSDP_SLOT_OF_MOMENT_DTYPE, FSDP_SLOT_FROM_ZERO, true}}};
  return &adamw;
}

fsdp_dtype fsdp_slot_dtype_of(const fsdp_slot *slot, fsdp_dtype master_dtype, fsdp_dtype moment_dtype) {
  return slot->dtype == FSDP_SLOT_OF_MASTER_DTYPE ? master_dtype : moment_dtype;
}
