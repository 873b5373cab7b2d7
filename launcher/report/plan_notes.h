// What a plan does that its options do not tell.
#pragma once

#include "runtime/plan/plan.h"

#include <stdio.h>

// Ranks that hold nothing but padding, as a dimension or a sequence has fewer items than ranks that cut it:
// one line that says on how many ranks of a group a sequence, or else which parameter, is padding alone.
// False if every rank has something of all.
bool fsdp_padding_note(const fsdp_plan *plan, char *out, size_t out_bytes);

// That sequences are longer than those that the model was made for; false if they are not.
bool fsdp_positions_note(const fsdp_plan *plan, char *out, size_t out_bytes);

// "PROGRAM: warning: ..." for what suits strategies of operators badly (strategies.h), and for each line of a
// sharding file for an output that the plan does not store as it says.
void fsdp_plan_warn(const fsdp_plan *plan, const char *program, FILE *out);
