#include "tests/support/unit_test.h"

#include "runtime/base/check.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct CMUnitTest tests[64]; // cmocka passes over those without a name

void add_test(struct CMUnitTest test) {
  static size_t count;
  FSDP_CHECK(count < sizeof tests / sizeof *tests, "more tests than %zu", count);
  tests[count++] = test;
}

int run_all_tests(CMFixtureFunction set_up, CMFixtureFunction tear_down) {
  return cmocka_run_group_tests(tests, set_up, tear_down);
}

bool aborts(void (*call)(void *argument), void *argument) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (!freopen("/dev/null", "w", stderr)) _exit(0);
    call(argument);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  // A sanitizer may turn the signal into an exit.
  return WIFSIGNALED(status) ? WTERMSIG(status) == SIGABRT : WEXITSTATUS(status) != 0;
}
