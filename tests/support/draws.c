#include "tests/support/draws.h"

#include <stdlib.h>
#include <string.h>

bool test_all(void) {
  const char *all = getenv("FSDP_TEST_ALL");
  return all && strcmp(all, "1") == 0;
}

bool test_sanitized(void) {
#if defined FSDP_SANITIZE_ADDRESS || defined FSDP_SANITIZE_THREAD
  return !test_all();
#else
  return false;
#endif
}

int test_part(void) {
  const char *wanted = getenv("FSDP_TEST_PART");
  const int part = wanted && !test_all() ? atoi(wanted) : 1;
  return part > 1 ? part : 1;
}

bool test_whole(void) {
  return !test_sanitized() && test_part() == 1;
}

int test_draws(int plain, int sanitized) {
  const char *wanted = getenv("FSDP_TEST_DRAWS");
  const int least = sanitized < plain ? sanitized : plain;
  if (wanted) return atoi(wanted);
  if (test_sanitized()) return sanitized;
  return plain / test_part() < least ? least : plain / test_part();
}

int test_stride(int sanitized) {
  return test_sanitized() ? sanitized : 1;
}
