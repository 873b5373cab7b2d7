// vf_exp over the whole range of floats, against the C library's exp in double precision; sums, of integers,
// which are exact; the greater and the lesser of two; and every bf16.
#include "kernels/cpu/vector.h"
#include "tests/support/unit_test.h"

#include <math.h>

static float exp_of(float x) {
  float lanes[FSDP_LANES];
  vf_store(lanes, vf_exp(vf_set(x)));
  for (int i = 1; i < FSDP_LANES; i++) assert_memory_equal(&lanes[i], &lanes[0], sizeof(float));
  return lanes[0];
}

TEST(within_two_units) {
  for (int i = -87300; i <= 88000; i++) {
    float x = (float)i / 1000;
    double exact = exp((double)x);
    float unit = nextafterf((float)exact, INFINITY) - (float)exact;
    if (fabs((double)exp_of(x) - exact) > 2 * (double)unit)
      fail_msg("exp(%g) is %g", (double)x, (double)exp_of(x));
  }
}

TEST(ends_of_the_range) {
  const float below[] = {-87.31f, -100, -1e3f, -1e4f, -1e9f, -3e38f, -INFINITY};
  for (size_t i = 0; i < sizeof below / sizeof *below; i++) assert_true(exp_of(below[i]) == 0);
  for (int i = 88; i <= 5000; i++) assert_true(exp_of((float)-i) == 0);
  const float above[] = {88, 88.1f, 1e4f, 3e38f, INFINITY};
  for (size_t i = 0; i < sizeof above / sizeof *above; i++) assert_true(exp_of(above[i]) == exp_of(88));
  assert_true(isnan(exp_of(NAN)) && isnan(exp_of(-NAN)));
}

TEST(sums_of_every_length) {
  float x[200], total = 0, dot = 0;
  for (int count = 0; count < 200; count++) {
    assert_true(vf_total(x, count) == total && vf_dot(x, x, count) == dot);
    x[count] = (float)(count % 7 - 2);
    total += x[count], dot += x[count] * x[count];
  }
}

static float lane_of(fsdp_vf v, int lane) {
  float lanes[FSDP_LANES];
  vf_store(lanes, v);
  return lanes[lane];
}

// Of neighbouring lanes the one has the greater value first, the other the lesser one.
TEST(greater_and_lesser) {
  float a[FSDP_LANES], b[FSDP_LANES];
  for (int i = 0; i < FSDP_LANES; i++) a[i] = i % 2 ? -1.5f : 2.5f, b[i] = i % 2 ? 2.5f : -1.5f;
  for (int i = 0; i < FSDP_LANES; i++) {
    assert_true(lane_of(vf_max(vf_load(a), vf_load(b)), i) == 2.5f);
    assert_true(lane_of(vf_min(vf_load(a), vf_load(b)), i) == -1.5f);
  }
  assert_true(isnan(lane_of(vf_max(vf_set(NAN), vf_load(b)), 0)));
  assert_true(isnan(lane_of(vf_min(vf_set(NAN), vf_load(b)), 0)));
  assert_true(lane_of(vf_max(vf_set(-INFINITY), vf_load(b)), 0) == -1.5f);
}

TEST(every_bf16) {
  for (uint32_t first = 0; first < 1u << 16; first += FSDP_LANES) {
    uint16_t halves[FSDP_LANES];
    uint32_t expected[FSDP_LANES];
    for (uint32_t i = 0; i < FSDP_LANES; i++)
      halves[i] = (uint16_t)(first + i), expected[i] = (first + i) << 16;
    fsdp_vf loaded = vf_load_bf16(halves);
    assert_memory_equal(&loaded, expected, sizeof expected);
  }
}
