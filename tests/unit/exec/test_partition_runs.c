// Tensor, sequence and context parallelism on ranks: losses, norms, gradients and parameters as on one rank,
// and memory as planned.
#include "tests/support/harness.h"

#include "runtime/base/size.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 3, GLOBAL_BATCH = 12 };

static bool near(double found, double expected) {
  return fabs(found - expected) <= 1e-5 * fabs(expected);
}

static void compare(const char *run, const harness_result *result, const harness_result *reference) {
  char message[256];
  if (result->failure[0]) fail_msg("%s: %s", run, result->failure);
  for (int s = 0; s < STEPS; s++)
    if (!near((double)result->loss[s], (double)reference->loss[s]) ||
        !near((double)result->grad_norm[s], (double)reference->grad_norm[s]))
      fail_msg("%s: step %d: loss %.8g for %.8g, norm %.8g for %.8g", run, s, (double)result->loss[s],
               (double)reference->loss[s], (double)result->grad_norm[s], (double)reference->grad_norm[s]);
  for (int p = 0; p < result->param_count; p++) {
    double gradient = harness_difference(&result->gradients[p], &reference->gradients[p]);
    double value = harness_difference(&result->parameters[p], &reference->parameters[p]);
    if (!(gradient <= 1e-5 && value <= 1e-4))
      fail_msg("%s: %s: gradient differs by %.2g, value by %.2g", run, result->parameters[p].name, gradient,
               value);
  }
  if (!harness_memory_as_planned(result, message, sizeof message)) fail_msg("%s: %s", run, message);
}

static harness_config config_of(int data, int fsdp, int tensor, int context) {
  harness_config config = {.plan = harness_small_plan(1), .steps = STEPS, .lr = 1e-4f, .seed = 7};
  config.plan.mesh = fsdp_mesh_of(data, fsdp);
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_CONTEXT, context);
  fsdp_mesh_resize(&config.plan.mesh, FSDP_AXIS_TENSOR, tensor);
  config.plan.sequence_parallel = getenv("SP") != NULL;
  config.plan.batch = GLOBAL_BATCH / (data * fsdp);
  return config;
}

static void test_tensor(void **state) {
  (void)state;
  harness_config plain = config_of(1, 1, 1, 1);
  harness_result *reference = harness_train(&plain);
  const int meshes[][4] = {{1, 1, 2, 1}, {1, 2, 2, 1}, {1, 1, 3, 1}, {1, 1, 4, 1}, {2, 1, 2, 1},
                           {2, 2, 3, 1}, {1, 1, 1, 2}, {1, 1, 1, 3}, {1, 2, 1, 2}, {2, 1, 1, 2},
                           {1, 1, 2, 2}, {1, 2, 2, 2}, {1, 1, 3, 2}, {1, 1, 4, 2}, {1, 1, 2, 3}};
  for (int i = 0; i < 15; i++) {
    const int *m = meshes[i];
    harness_config config = config_of(m[0], m[1], m[2], m[3]);
    config.plan.strategy = m[1] > 1 ? m[0] > 1 ? FSDP_HYBRID : FSDP_FULL : FSDP_NO;
    config.plan.poison = i % 2;
    char run[64];
    snprintf(run, sizeof run, "data=%d,fsdp=%d,tensor=%d,context=%d", m[0], m[1], m[2], m[3]);
    harness_result *result = harness_train(&config);
    compare(run, result, reference);
    printf("ok %s ranks %d pieces %d loss %.6f sent %lld\n", run, fsdp_mesh_ranks(&result->plan->units->mesh),
           (int)result->plan->rows.pieces, (double)result->loss[2],
           (long long)result->traffic.all_reduce_bytes);
    harness_free(result);
  }
  harness_free(reference);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_tensor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
