// Random cases of a test, by number. A case that fails is named at the end, with the command that repeats it.
//
//   for (int n = cases_begin(COUNT); cases_run(__func__, n); n++) { ... the case of seed n ... }
//
// FSDP_TEST_CASE=N in the environment runs case N alone, FSDP_TEST_FIRST=N as many from N on: other seeds.
#pragma once

#include <stdbool.h>

// The first of `count` cases. One loop at a time.
int cases_begin(int count);

// Whether to run case `number`; records it for `test`, a string that outlives the process' tests.
bool cases_run(const char *test, int number);
