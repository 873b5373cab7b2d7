// What a plan does that its options do not tell.
#pragma once

#include "runtime/plan/plan.h"

// Ranks that hold nothing but padding, as a dimension or a sequence has fewer items than ranks that cut it:
// one line that says on how many ranks of a group a sequence, or else which parameter, is padding alone.
// False if every rank has something of all.
bool fsdp_padding_note(const fsdp_plan *plan, char *out, size_t out_bytes);

// Lines of a sharding file for outputs that the plan does not store as they say: the warning of this number,
// from 0, one for each line that is not followed. False if there are fewer.
bool fsdp_rule_note(const fsdp_plan *plan, int number, char *note, size_t note_bytes);
