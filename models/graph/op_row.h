// A row of ops.def as C sees it: the functions that it names, declared here so that an op's file
// (ops/<family>.c) is held to their types, and the table of rows.
#pragma once

#include "models/graph/op.h"

// models/graph/graph.h
typedef struct fsdp_graph fsdp_graph;
typedef struct fsdp_node fsdp_node;

typedef double fsdp_op_flops_rule(const fsdp_op_attrs *attrs);

// Returns their number.
typedef int fsdp_op_products_rule(fsdp_op_kind kind, const fsdp_op_attrs *attrs,
                                  fsdp_op_product products[FSDP_OP_PRODUCTS_MAX]);

// Corrects `work`, which counts every operand once, and an updated one twice.
typedef void fsdp_op_work_rule(const fsdp_op_attrs *attrs, const fsdp_op_extent *operands,
                               fsdp_op_work *work);

// Bytes; `flat_elems` is p.
typedef int64_t fsdp_op_workspace_rule(const fsdp_op_attrs *attrs, int64_t flat_elems);

// Appends the backward of `forward` to the graph, by the functions of backward.h.
typedef void fsdp_op_backward_rule(fsdp_graph *graph, const fsdp_node *forward);

// What remains of it if the operands that `kept` names are outputs that were kept. False: all of it.
typedef bool fsdp_op_recompute_rule(const bool *kept, fsdp_op_remainder *remainder);

// Sets the attributes that depend on the device and the operands' dtypes, in the row's order.
typedef void fsdp_op_attrs_rule(fsdp_op_device device, const fsdp_op_gpu *gpu, fsdp_op_attrs *attrs,
                                const fsdp_dtype *dtypes);

typedef struct fsdp_op_row {
  const char *name, *operands;
  fsdp_op_phase phase;
  bool traits[FSDP_TRAIT_COUNT], cpu_alone;
  int added;         // 1 + the operand that it adds to the residual stream; 0: none
  int residual;      // 1 + the operand that is the residual stream, which its gemm adds; 0: none
  const char *alias; // NULL: its name
  int product;       // 1 + the form of its one gemm (fsdp_op_product_form); 0: none
  fsdp_op_products_rule *products;
  fsdp_op_flops_rule *flops;
  fsdp_op_work_rule *work;
  fsdp_op_workspace_rule *workspace[FSDP_OP_DEVICE_COUNT];
  fsdp_op_backward_rule *backward;
  int backward_by; // 1 + the op that is its backward by the operands' names; 0: none
  fsdp_op_recompute_rule *recompute;
  fsdp_op_attrs_rule *attrs;
} fsdp_op_row;

// The row of an op; aborts if `kind` is not an op.
const fsdp_op_row *fsdp_op_row_of(fsdp_op_kind kind);

// A gemm of `rows` rows with a weight of `out` rows of `in` columns.
static inline fsdp_op_product fsdp_op_product_of(fsdp_op_product_form form, int64_t rows, int64_t out,
                                                 int64_t in, double count) {
  if (form == FSDP_PRODUCT_WEIGHT) return (fsdp_op_product){form, out, in, rows, count};
  return form == FSDP_PRODUCT_FORWARD ? (fsdp_op_product){form, rows, out, in, count}
                                      : (fsdp_op_product){form, rows, in, out, count};
}

// The products of all experts with weights of `out` rows of `in` columns: of each as many rows as there are
// on average.
fsdp_op_product fsdp_op_expert_product(const fsdp_op_attrs *attrs, fsdp_op_product_form form, int64_t out,
                                       int64_t in);

// The part of the places for routed rows that has rows: of operands with a place for each.
double fsdp_op_routed_share(const fsdp_op_attrs *attrs);

#define PRODUCT(FORM)
#define PRODUCTS(f)          fsdp_op_products_rule f;
#define FLOPS(f)             fsdp_op_flops_rule f;
#define WORK(f)              fsdp_op_work_rule f;
#define WORKSPACE(DEVICE, f) fsdp_op_workspace_rule f;
#define BACKWARD(f)          fsdp_op_backward_rule f;
#define BACKWARD_BY(KIND)
#define RECOMPUTE(f) fsdp_op_recompute_rule f;
#define ATTRS(f)     fsdp_op_attrs_rule f;
#define SLICED
#define BY_ROW
#define NORM
#define ADDS(operand)
#define RESIDUAL(operand)
#define NAMED(name)
#define JUST_WRITTEN
#define CHOOSES
#define OVER_TOKENS
#define SHRINKS
#define FSDP_OP(KIND, name, PHASE, operands, RULES) RULES
#include "models/graph/ops.def"
#define FSDP_GRAPH_OP(KIND, name, PHASE, operands, RULES) RULES
#include "models/graph/ops.def"
#undef PRODUCT
#undef PRODUCTS
#undef FLOPS
#undef WORK
#undef WORKSPACE
#undef BACKWARD
#undef BACKWARD_BY
#undef RECOMPUTE
#undef ATTRS
#undef SLICED
#undef BY_ROW
#undef NORM
#undef ADDS
#undef RESIDUAL
#undef NAMED
#undef JUST_WRITTEN
#undef CHOOSES
#undef OVER_TOKENS
#undef SHRINKS
