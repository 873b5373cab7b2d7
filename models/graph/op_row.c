#include "models/graph/op.h"

#include "models/graph/op_row.h"
#include "runtime/base/check.h"

#define PRODUCT(FORM)        .product = 1 + FSDP_PRODUCT_##FORM,
#define PRODUCTS(f)          .products = (f),
#define FLOPS(f)             .flops = (f),
#define WORK(f)              .work = (f),
#define WORKSPACE(DEVICE, f) .workspace[FSDP_OP_##DEVICE] = (f),
#define BACKWARD(f)          .backward = (f),
#define BACKWARD_BY(KIND)    .backward_by = 1 + FSDP_OP_##KIND,
#define RECOMPUTE(f)         .recompute = (f),
#define ATTRS(f)             .attrs = (f),
#define SLICED               .traits[FSDP_TRAIT_SLICED] = true,
#define BY_ROW               .traits[FSDP_TRAIT_BY_ROW] = true,
#define NORM                 .traits[FSDP_TRAIT_NORM] = true,
#define ADDS(operand)        .added = 1 + (operand),
#define RESIDUAL(operand)    .residual = 1 + (operand),
#define NAMED(own)           .alias = #own,
#define JUST_WRITTEN         .traits[FSDP_TRAIT_JUST_WRITTEN] = true,
#define CHOOSES              .traits[FSDP_TRAIT_CHOOSES] = true,
#define OVER_TOKENS          .traits[FSDP_TRAIT_OVER_TOKENS] = true,
#define SHRINKS              .traits[FSDP_TRAIT_SHRINKS] = true,
#define FSDP_OP_ROW(KIND, op_name, PHASE, op_operands, RULES)                                                \
  [FSDP_OP_##KIND] = {.name = #op_name, .operands = (op_operands), .phase = FSDP_OP_IN_##PHASE, RULES},

#define FSDP_CPU_OP_ROW(KIND, op_name, PHASE, op_operands, RULES)                                            \
  [FSDP_OP_##KIND] = {                                                                                       \
      .name = #op_name, .operands = (op_operands), .phase = FSDP_OP_IN_##PHASE, .cpu_alone = true, RULES},

static const fsdp_op_row rows[FSDP_OP_ROW_COUNT] = {
#define FSDP_OP     FSDP_OP_ROW
#define FSDP_CPU_OP FSDP_CPU_OP_ROW
#include "models/graph/ops.def"
#define FSDP_GRAPH_OP FSDP_OP_ROW
#include "models/graph/ops.def"
};

const fsdp_op_row *fsdp_op_row_of(fsdp_op_kind kind) {
  FSDP_CHECK((unsigned)kind < FSDP_OP_ROW_COUNT, "op kind %d has no row", (int)kind);
  return &rows[kind];
}

const char *fsdp_op_name(fsdp_op_kind kind) {
  return fsdp_op_row_of(kind)->name;
}

fsdp_op_phase fsdp_op_phase_of(fsdp_op_kind kind) {
  return fsdp_op_row_of(kind)->phase;
}

bool fsdp_op_makes_gemms(fsdp_op_kind kind) {
  return fsdp_op_row_of(kind)->product || fsdp_op_row_of(kind)->products;
}

bool fsdp_op_runs_on(fsdp_op_device device, fsdp_op_kind kind) {
  return device == FSDP_OP_CPU || !fsdp_op_row_of(kind)->cpu_alone;
}

bool fsdp_op_has(fsdp_op_kind kind, fsdp_op_trait trait) {
  return fsdp_op_row_of(kind)->traits[trait];
}

int fsdp_op_added(fsdp_op_kind kind) {
  return fsdp_op_row_of(kind)->added - 1;
}

int fsdp_op_residual(fsdp_op_kind kind) {
  return fsdp_op_row_of(kind)->residual - 1;
}

const char *fsdp_op_family(fsdp_op_kind kind) {
  const char *alias = fsdp_op_row_of(kind)->alias;
  return alias ? alias : fsdp_op_name(kind);
}

// ---- Ops by what they are for

fsdp_op_kind fsdp_op_move(fsdp_access destination) {
  return destination == FSDP_UPDATE ? FSDP_OP_ADD : FSDP_OP_CAST;
}

fsdp_op_kind fsdp_op_product_kind(fsdp_op_product_form form) {
  static const fsdp_op_kind kinds[] = {[FSDP_PRODUCT_FORWARD] = FSDP_OP_LINEAR,
                                       [FSDP_PRODUCT_INPUT] = FSDP_OP_LINEAR_BACKWARD_INPUT,
                                       [FSDP_PRODUCT_WEIGHT] = FSDP_OP_LINEAR_BACKWARD_WEIGHT};
  return kinds[form];
}

int64_t fsdp_op_workspace_bytes(fsdp_op_device device, fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                                int64_t flat_elems) {
  FSDP_CHECK((unsigned)device < FSDP_OP_DEVICE_COUNT, "op device %d", (int)device);
  fsdp_op_workspace_rule *rule = fsdp_op_row_of(kind)->workspace[device];
  return rule ? rule(attrs, flat_elems) : 0;
}

bool fsdp_op_remainder_of(fsdp_op_kind kind, const bool *kept, fsdp_op_remainder *remainder) {
  const fsdp_op_row *row = fsdp_op_row_of(kind);
  return row->recompute && row->recompute(kept, remainder);
}

void fsdp_op_complete_attrs(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_kind kind,
                            fsdp_op_attrs *attrs, const fsdp_dtype *dtypes) {
  const fsdp_op_row *row = fsdp_op_row_of(kind);
  if (row->attrs) row->attrs(device, gpu, attrs, dtypes);
}
