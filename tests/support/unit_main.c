// The main function of unit tests that have none.
#include "tests/support/unit_test.h"

int main(void) {
  return run_all_tests(NULL, NULL);
}
