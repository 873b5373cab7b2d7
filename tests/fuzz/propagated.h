// What fuzzers of networks and of strategies do with what their readers accept.
#pragma once

#include "runtime/plan/sharding/propagate.h"

// Propagates on 30 ranks, of which a count of slices says the axes. If that is not refused, what is printed
// of it must be a file of strategies from which the same follows.
void fsdp_fuzz_propagate(const fsdp_dataflow *flow, const fsdp_given_strategies *given);
