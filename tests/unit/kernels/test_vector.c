// vf_exp over the whole range of floats, against the C library's exp in double precision; and sums, of
// integers, which are exact.
#include "kernels/cpu/vector.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static float exp_of(float x) {
  float lanes[FSDP_LANES];
  vf_store(lanes, vf_exp(vf_set(x)));
  for (int i = 1; i < FSDP_LANES; i++) assert_memory_equal(&lanes[i], &lanes[0], sizeof(float));
  return lanes[0];
}

static void within_two_units(void **state) {
  (void)state;
  for (int i = -87300; i <= 88000; i++) {
    float x = (float)i / 1000;
    double exact = exp((double)x);
    float unit = nextafterf((float)exact, INFINITY) - (float)exact;
    if (fabs((double)exp_of(x) - exact) > 2 * (double)unit)
      fail_msg("exp(%g) is %g", (double)x, (double)exp_of(x));
  }
}

static void ends_of_the_range(void **state) {
  (void)state;
  const float below[] = {-87.31f, -100, -1e3f, -1e4f, -1e9f, -3e38f, -INFINITY};
  for (size_t i = 0; i < sizeof below / sizeof *below; i++) assert_true(exp_of(below[i]) == 0);
  for (int i = 88; i <= 5000; i++) assert_true(exp_of((float)-i) == 0);
  const float above[] = {88, 88.1f, 1e4f, 3e38f, INFINITY};
  for (size_t i = 0; i < sizeof above / sizeof *above; i++) assert_true(exp_of(above[i]) == exp_of(88));
  assert_true(isnan(exp_of(NAN)) && isnan(exp_of(-NAN)));
}

static void sums_of_every_length(void **state) {
  (void)state;
  float x[200], total = 0, dot = 0;
  for (int count = 0; count < 200; count++) {
    assert_true(vf_total(x, count) == total && vf_dot(x, x, count) == dot);
    x[count] = (float)(count % 7 - 2);
    total += x[count], dot += x[count] * x[count];
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(within_two_units), cmocka_unit_test(ends_of_the_range),
                                     cmocka_unit_test(sums_of_every_length)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
