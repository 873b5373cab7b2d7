#include "tests/support/cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TESTS_MAX 16

static int first, end;
// The case that each test is in; -1 once its loop is complete.
static struct {
  const char *test;
  int number;
} current[TESTS_MAX];
static int test_count;

// A test that left its loop in the middle failed there.
static void print_unfinished(void) {
  for (int i = 0; i < test_count; i++) {
    if (current[i].number < 0) continue;
    fprintf(stderr, "%s failed; repeat with: FSDP_TEST_CASE=%d %s\n", current[i].test, current[i].number,
            program_invocation_name);
  }
}

int cases_begin(int count) {
  const char *only = getenv("FSDP_TEST_CASE"), *from = getenv("FSDP_TEST_FIRST");
  first = only ? atoi(only) : from ? atoi(from) : 0;
  end = only ? first + 1 : first + count;
  return first;
}

bool cases_run(const char *test, int number) {
  int i = 0;
  while (i < test_count && strcmp(current[i].test, test) != 0) i++;
  if (i == TESTS_MAX) return number < end;
  if (test_count == 0) atexit(print_unfinished);
  if (i == test_count) current[test_count++].test = test;
  current[i].number = number < end ? number : -1;
  return number < end;
}
