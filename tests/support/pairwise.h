// Sets of choices in which every pair of values of two settings occurs, where some choices are not allowed.
#pragma once

#include <stdbool.h>

enum { PAIRWISE_SETTINGS_MAX = 20, PAIRWISE_VALUES_MAX = 64 };

typedef struct pairwise {
  int settings;
  int value_count[PAIRWISE_SETTINGS_MAX];
  bool (*allowed)(const int *values); // `settings` values; NULL: all choices are
} pairwise;

typedef struct pairwise_choice {
  int values[PAIRWISE_SETTINGS_MAX];
} pairwise_choice;

// The choices, in *out, which the caller frees; returns their number. The same at every call. A pair that no
// allowed choice has is left out; *left_out is how many are.
int pairwise_choices(const pairwise *settings, pairwise_choice **out, int *left_out);
