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

int test_draws(int plain, int sanitized) {
  const char *wanted = getenv("FSDP_TEST_DRAWS");
  const char *part = getenv("FSDP_TEST_PART");
  if (wanted) return atoi(wanted);
  if (test_sanitized()) return sanitized;
  const int fewer = part && !test_all() ? plain / atoi(part) : plain;
  return fewer < sanitized && sanitized < plain ? sanitized : fewer;
}

int test_stride(int sanitized) {
  return test_sanitized() ? sanitized : 1;
}
