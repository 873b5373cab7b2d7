// Names of weights and modules in sharding rules and in listings, part by part between dots.
#pragma once

#include "models/graph/graph.h"

#include <stdbool.h>
#include <stdio.h>

// Whether `name` is one of those that `rule` names: equal parts, where `*` is any integer.
bool fsdp_name_matches(const char *rule, const char *name);
// Of two rules that match one name: whether `a` wins, by an integer where `b` has the first `*` of the two.
bool fsdp_name_wins(const char *a, const char *b);
// The name with `*` for every integer.
void fsdp_name_pattern(const char *name, char out[FSDP_NAME_BYTES]);

// A line "name: text  # note" of a listing.
typedef struct fsdp_name_line {
  char name[2 * FSDP_NAME_BYTES], pattern[2 * FSDP_NAME_BYTES];
  const char *text, *note; // note NULL: none
} fsdp_name_line;

// `output`: of the name, "[0]" behind it; below 0: none.
fsdp_name_line fsdp_name_line_of(const char *name, int output, const char *text, const char *note);
// Prints lines in their order. Those of one pattern whose texts, and if `by_notes` notes, are equal become
// one, with its notes, each once, from `column` on.
void fsdp_name_lines_print(const fsdp_name_line *lines, int count, bool by_notes, int column, FILE *out);
