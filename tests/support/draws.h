// How much of a test a build runs.
//
// The plain build runs all that a test lists or draws. A sanitizer's build looks for races and memory errors
// of each path of the code, which a few of many cases show as well, at ten times the price of each. So a
// loop over cases states both:
//
//   for (int n = 0; n < test_draws(120, 12); n++) ...     // random cases
//   for (int s = 0; s < SHAPES; s += test_stride(3)) ...  // every third of a list
//
// In the environment, FSDP_TEST_PART=N runs the Nth part of a plain build's random cases, but no fewer than
// under a sanitizer, and of long lists of cases every Nth (scripts/test.sh without --all), FSDP_TEST_ALL=1
// all in every build, and FSDP_TEST_DRAWS=N N of them in every build. tests/support/programs.py has the same
// for scripts.
#pragma once

#include <stdbool.h>

// Whether this build has a sanitizer and is to run less.
bool test_sanitized(void);

// FSDP_TEST_ALL=1.
bool test_all(void);

// FSDP_TEST_PART, 1 where all cases run.
int test_part(void);

// Whether all random cases of a plain build run: what only many cases reach can be required.
bool test_whole(void);

// How many random cases to run: `plain`, or `sanitized` if test_sanitized().
int test_draws(int plain, int sanitized);

// How far to go in a list of cases: 1, or `sanitized` if test_sanitized().
int test_stride(int sanitized);
