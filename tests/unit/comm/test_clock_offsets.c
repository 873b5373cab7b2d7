// Offsets between clocks: the bounds hold the truth, however ranks come and leave.
#include "runtime/comm/clock_offsets.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>

// Exchanges at random times between a rank whose clock is `offset_ns` ahead and rank 0.
TEST(test_bounds) {
  uint32_t seed = 1;
  for (int round = 0; round < 200; round++) {
    int64_t offset_ns = (int64_t)(seed % 2000001) - 1000000, narrowest_ns = INT64_MAX;
    fsdp_clock_bounds bounds = {INT64_MIN, INT64_MAX};
    for (int exchange = 0; exchange < 20; exchange++) {
      int64_t drawn_ns[4];
      for (int i = 0; i < 4; i++) drawn_ns[i] = (int64_t)((seed = seed * 1664525 + 1013904223) >> 8) % 50000;
      int64_t now_ns = INT64_C(1000000) * exchange, enter_ns[2], leave_ns[2];
      for (int i = 0; i < 2; i++) enter_ns[i] = now_ns + drawn_ns[i];
      int64_t met_ns = enter_ns[0] > enter_ns[1] ? enter_ns[0] : enter_ns[1];
      for (int i = 0; i < 2; i++) leave_ns[i] = met_ns + drawn_ns[2 + i];
      fsdp_clock_bounds_narrow(&bounds, (fsdp_clock_visit){enter_ns[1] + offset_ns, leave_ns[1] + offset_ns},
                               (fsdp_clock_visit){enter_ns[0], leave_ns[0]});
      assert_true(bounds.low_ns <= offset_ns && offset_ns <= bounds.high_ns);
      int64_t width_ns = leave_ns[1] - enter_ns[0] + leave_ns[0] - enter_ns[1];
      narrowest_ns = width_ns < narrowest_ns ? width_ns : narrowest_ns;
    }
    assert_true(bounds.high_ns - bounds.low_ns <= narrowest_ns);
    fsdp_clock_offset found = fsdp_clock_offset_within(bounds, false);
    assert_true(llabs(found.ns - offset_ns) <= found.error_ns && found.error_ns > 0);
    assert_true(found.error_ns <= narrowest_ns / 2 + 1);
  }
}

// The clock of one machine is one, unless the bounds say otherwise.
TEST(test_same_machine) {
  fsdp_clock_offset one = fsdp_clock_offset_within((fsdp_clock_bounds){-40, 100}, true);
  assert_true(one.ns == 0 && one.error_ns == 0);
  fsdp_clock_offset own = fsdp_clock_offset_within((fsdp_clock_bounds){40, 100}, true);
  assert_true(own.ns == 70 && own.error_ns == 31);
  fsdp_clock_offset other = fsdp_clock_offset_within((fsdp_clock_bounds){-40, 100}, false);
  assert_true(other.ns == 30 && other.error_ns == 71);
}
