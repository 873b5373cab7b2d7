// What steps tell of an op's rate is put into the curve of the op alone: exactly where steps had the op, and
// by the same ratio elsewhere.
#include "runtime/base/check.h"
#include "runtime/probe/run.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>

static fsdp_profile_curve curve_of(const fsdp_profile_point *points, int count) {
  fsdp_profile_curve curve = {fsdp_alloc((size_t)count * sizeof *points), count};
  for (int i = 0; i < count; i++) curve.points[i] = points[i];
  return curve;
}

static void assert_close(double found, double expected) {
  assert_true(fabs(found / expected - 1) < 1e-12);
}

TEST(test_points_and_ratios) {
  static const fsdp_profile_point alone[] = {{1e2, 1}, {1e3, 10}, {1e4, 10}, {1e5, 10}, {1e6, 20}};
  static const fsdp_profile_point met[] = {{1.1e3, 5}, {3e4, 10}, {1e5, 40}};
  fsdp_profile_curve curve = curve_of(alone, 5);
  probe_settle_curve(&curve, met, 3);
  assert_int_equal(curve.count, 6);
  for (int i = 1; i < curve.count; i++) assert_true(curve.points[i].size > curve.points[i - 1].size);
  for (int i = 0; i < 3; i++) assert_close(fsdp_profile_curve_at(&curve, met[i].size), met[i].value);
  assert_close(curve.points[0].value, 0.5);  // as at the smallest of them: half the rate
  assert_close(curve.points[5].value, 80.0); // as at the largest: four times the rate
  // Between a half and the same, straight in logarithms.
  const double share = log(1e4 / 1.1e3) / log(3e4 / 1.1e3);
  assert_close(curve.points[2].value, 10 * pow(0.5, 1 - share));
  free(curve.points);
}

TEST(test_sizes_beyond) {
  static const fsdp_profile_point alone[] = {{1e3, 10}};
  static const fsdp_profile_point met[] = {{10, 2}, {1e5, 30}};
  fsdp_profile_curve curve = curve_of(alone, 1);
  probe_settle_curve(&curve, met, 2);
  assert_int_equal(curve.count, 3);
  assert_close(curve.points[0].value, 2);
  assert_close(curve.points[1].value, 10 * sqrt(0.2 * 3));
  assert_close(curve.points[2].value, 30);
  free(curve.points);
}
