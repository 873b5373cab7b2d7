// What an operator of a network is, in double and by its letters alone.
#pragma once

#include "runtime/plan/sharding/dataflow.h"

// Computes an operator from the whole values of its inputs, by tensor. `out` and `scale`: for each element of
// its output, the value and what rounding errors are relative to, the sum of its summands' sizes.
void network_reference(const fsdp_dataflow *flow, int op, float *const *values, double *out, double *scale);
