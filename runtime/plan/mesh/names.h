// Names of weights and modules in sharding rules, part by part between dots.
#pragma once

#include "models/graph/graph.h"

#include <stdbool.h>

// Whether `name` is one of those that `rule` names: equal parts, where `*` is any integer.
bool fsdp_name_matches(const char *rule, const char *name);
// Of two rules that match one name: whether `a` wins, by an integer where `b` has the first `*` of the two.
bool fsdp_name_wins(const char *a, const char *b);
// The name with `*` for every integer.
void fsdp_name_pattern(const char *name, char out[FSDP_NAME_BYTES]);
