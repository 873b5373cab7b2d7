// The executor over real plans: ranks as threads train a small model; what they touched must be what was
// planned.
#include "tests/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static harness_result *train(fsdp_plan_config plan) {
  harness_config config = {.plan = plan, .steps = 3, .lr = 1e-3f, .seed = 7};
  harness_result *result = harness_train(&config);
  if (result->failure[0]) print_error("%s\n", result->failure);
  assert_string_equal(result->failure, "");
  return result;
}

static void assert_as_planned(const harness_result *result) {
  char message[256] = "";
  if (!harness_memory_as_planned(result, message, sizeof message)) print_error("%s\n", message);
  assert_string_equal(message, "");
}

static void one_rank_learns(void **state) {
  (void)state;
  harness_result *result = train(harness_small_plan(1));
  // Targets are random: at the start the loss is the logarithm of the vocabulary, within the noise of small
  // weights.
  assert_true(fabsf(result->loss[0] - logf(101)) < 0.3f);
  assert_true(isfinite(result->grad_norm[2]));
  assert_as_planned(result);
  harness_free(result);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_rank_learns),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
