// The probe's operands on the emulated GPU: choosing the algorithms of a gemm leaves NaNs in the memory that
// it is given, and none of that may be among what is then timed.
#include "runtime/comm/world.h"
#include "runtime/probe/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#define ROWS 48

static int bind_none(void *context, int ranks) {
  (void)context, (void)ranks;
  return 1;
}

static const fsdp_op_kind kinds[] = {FSDP_OP_LINEAR,
                                     FSDP_OP_LINEAR_BIAS,
                                     FSDP_OP_LINEAR_ADD,
                                     FSDP_OP_LINEAR_BACKWARD_INPUT,
                                     FSDP_OP_LINEAR_BACKWARD_WEIGHT,
                                     FSDP_OP_RMSNORM};

static void expect_numbers(const probe *self, const probe_region *region, fsdp_op_kind kind) {
  const int64_t numel = region->bytes / (int64_t)sizeof(fsdp_bf16);
  fsdp_bf16 *values = malloc((size_t)region->bytes);
  assert_non_null(values);
  self->session.device->table->read(self->session.device, values, region->memory, region->bytes);
  for (int64_t i = 0; i < numel; i++)
    if (isnan(fsdp_bf16_to_f32(values[i])))
      fail_msg("%s: element %lld of the inputs is a NaN", fsdp_op_name(kind), (long long)i);
  free(values);
}

static void operands_are_numbers(void **state) {
  fsdp_world *world;
  fsdp_error error = {0};
  fsdp_gpu gpu;
  (void)state;
  setenv("FSDP_SIMT_GPU_BYTES", "167772160", 1); // a quarter of it is the arena
  assert_int_equal(fsdp_world_create(NULL, NULL, &world, &error), FSDP_OK);
  assert_int_equal(fsdp_gpu_find(0, &gpu, &error), FSDP_OK);
  gpu.sharers = 1;
  probe self = {.world = world,
                .gpu = &gpu,
                .gpu_bytes = gpu.total_bytes,
                .seconds = 1,
                .cores = 1,
                .bind = bind_none,
                .profile = fsdp_device_profile_create(),
                .device = FSDP_OP_CUDA,
                .unit_s = 0.001};
  assert_int_equal(probe_open(&self, 1, &error), FSDP_OK);
  const fsdp_op_attrs attrs = {.batch = 1,
                               .seq = ROWS,
                               .channels = 24,
                               .in_features = 24,
                               .out_features = 40,
                               .out_stride = 40,
                               .eps = 1e-5f};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    probe_call *call = probe_call_create(&self, kinds[i], &attrs, 0);
    assert_non_null(call);
    expect_numbers(&self, &self.inputs, kinds[i]);
    probe_call_destroy(call);
  }
  probe_close(&self);
  fsdp_device_profile_destroy(self.profile);
  fsdp_world_destroy(world);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(operands_are_numbers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
