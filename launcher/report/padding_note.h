// Ranks that hold nothing but padding: a dimension or a sequence has fewer items than ranks that cut it.
#pragma once

#include "runtime/plan/plan.h"

// One line that says on how many ranks of a group a sequence, or else which parameter, is padding alone;
// false if every rank has something of all.
bool fsdp_padding_note(const fsdp_plan *plan, char *out, size_t out_bytes);
