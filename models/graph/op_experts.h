// How many rows a rank's experts have, where the routing alone says it.
#pragma once

#include "models/graph/op.h"

// The products of all experts with weights of `out` rows of `in` columns: of each as many rows as there are
// on average.
fsdp_op_product fsdp_op_expert_product(const fsdp_op_attrs *attrs, fsdp_op_product_form form, int64_t out,
                                       int64_t in);

// The part of the places for routed rows that has rows, if experts get attrs.load times as many as in the
// mean: of operands with a place for each. 1 of an op without them.
double fsdp_op_routed_share(fsdp_op_kind kind, const fsdp_op_attrs *attrs);

// Whether an op of a block writes its own rows of the operand, beside those of other blocks.
bool fsdp_op_writes_block(const fsdp_op_operand *operand);

// The operand that says where the rows of the op's experts begin, one number for each and the end; -1: the op
// does not work on the rows of its experts alone.
int fsdp_op_offsets_operand(fsdp_op_kind kind);
