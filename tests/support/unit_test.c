#include "tests/support/unit_test.h"

#include "runtime/base/check.h"

static struct CMUnitTest tests[64]; // cmocka passes over those without a name

void add_test(struct CMUnitTest test) {
  static size_t count;
  FSDP_CHECK(count < sizeof tests / sizeof *tests, "more tests than %zu", count);
  tests[count++] = test;
}

int run_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
