// How many rows a rank's experts have, where the routing alone says it.
#pragma once

#include "models/graph/op.h"

// The part of the places for routed rows that has rows, if experts get attrs.load times as many as in the
// mean: of operands with a place for each. 1 of an op without them.
double fsdp_op_routed_share(fsdp_op_kind kind, const fsdp_op_attrs *attrs);
