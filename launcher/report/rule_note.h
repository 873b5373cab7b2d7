// Lines of a sharding file for outputs that the plan does not store as they say.
#pragma once

#include "runtime/plan/plan.h"

// The warning of this number, from 0, one for each line that is not followed. False if there are fewer.
bool fsdp_rule_note(const fsdp_plan *plan, int number, char *note, size_t note_bytes);
