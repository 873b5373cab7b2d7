// Of each measurement of the probe the median over sweeps counts, and what disturbs one sweep
// is not seen.
#include "runtime/probe/run.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>

#define COUNT 600

// Of measurement i, in one of the sweeps: another one for each is disturbed.
static double seconds_of(int i, int sweep) {
  return sweep == i % PROBE_SWEEPS_MAX ? 10.0 * COUNT : i + 0.25 * sweep;
}

TEST(test_median_of_each) {
  probe_sweeps sweeps = {.wanted = PROBE_SWEEPS_MAX};
  for (; sweeps.sweep < sweeps.wanted; sweeps.sweep++) {
    sweeps.next = 0;
    for (int i = 0; i < COUNT; i++) {
      const double median = probe_sweeps_median(&sweeps, seconds_of(i, sweeps.sweep));
      if (sweeps.sweep == 0) assert_true(median == seconds_of(i, 0));
      if (sweeps.sweep < PROBE_SWEEPS_MAX - 1) continue;
      // The greater one of the two that nothing disturbed.
      const int greater = i % PROBE_SWEEPS_MAX == PROBE_SWEEPS_MAX - 1 ? 1 : PROBE_SWEEPS_MAX - 1;
      assert_true(median == i + 0.25 * greater);
    }
  }
  assert_int_equal(sweeps.count, COUNT);
  free(sweeps.seconds);
}
