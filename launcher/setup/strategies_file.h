// Strategies of a few operators as users write them: --op-strategies FILE.
//
//   # slice counts, one list for each input of the operator; an input without dimensions has an empty list
//   model.layers.*.self_attn.q_proj: [[2, 1], [4, 1]]      # a module's one operator
//   model.layers.*.self_attn.attention: [[2, 1, 4]]        # one of several: batch, sequence, heads
#pragma once

#include "launcher/options/options.h"
#include "runtime/plan/propagate/slices.h"

// Reads the file. *strategies is NULL without the option; the caller destroys it. FSDP_ERR_INPUT, with file
// and line, for a file that is missing, is no YAML, or has anything but such a mapping.
fsdp_status fsdp_strategies_read(const fsdp_options *options, fsdp_given_strategies **strategies,
                                 fsdp_error *error);
void fsdp_strategies_destroy(fsdp_given_strategies *strategies); // NULL is allowed
