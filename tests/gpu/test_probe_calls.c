// The probe's operands on the emulated GPU: choosing the algorithms of a gemm leaves NaNs in the memory that
// it is given, and none of that may be among what is then timed.
#include "runtime/comm/world.h"
#include "runtime/probe/run.h"
#include "tests/support/unit_test.h"

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

static fsdp_world *world; // MPI starts once

static int create_world(void **state) {
  fsdp_error error = {0};
  return fsdp_world_create(NULL, NULL, &world, &error) != FSDP_OK;
}

static int destroy_world(void **state) {
  fsdp_world_destroy(world);
  return 0;
}

// On a GPU of `bytes` bytes, a quarter of which is the arena.
static probe open_probe(fsdp_gpu *gpu, const char *bytes) {
  static probe_spread spread[PROBE_SPREAD_COUNT];
  fsdp_error error = {0};
  setenv("FSDP_SIMT_GPU_BYTES", bytes, 1);
  assert_int_equal(fsdp_gpu_find(0, gpu, &error), FSDP_OK);
  gpu->sharers = 1;
  probe self = {.world = world,
                .gpu = gpu,
                .gpu_bytes = gpu->total_bytes,
                .seconds = 1,
                .cores = 1,
                .bind = bind_none,
                .profile = fsdp_device_profile_create(),
                .spread = spread,
                .device = FSDP_OP_CUDA,
                .unit_s = 0.001};
  assert_int_equal(probe_open(&self, 1, &error), FSDP_OK);
  return self;
}

static void close_probe(probe *self) {
  probe_close(self);
  fsdp_device_profile_destroy(self->profile);
}

TEST(operands_are_numbers) {
  fsdp_gpu gpu;
  probe self = open_probe(&gpu, "167772160");
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
  close_probe(&self);
}

// Of a device whose products and attention all have one rate.
static fsdp_profile_sustained sustained_at(probe *self, double flops_per_s) {
  fsdp_profile_point point = {1024, flops_per_s};
  fsdp_device_profile *measured = self->profile;
  self->profile = fsdp_device_profile_create();
  self->profile->memory_rate = 1e12;
  fsdp_device_profile_add(self->profile, FSDP_PROFILE_PRODUCTS,
                          &(fsdp_profile_product){.dtype = FSDP_BF16,
                                                  .form = FSDP_PRODUCT_FORM_COUNT,
                                                  .m = 64,
                                                  .n = 64,
                                                  .k = 64,
                                                  .flops_per_s = flops_per_s});
  fsdp_device_profile_add(
      self->profile, FSDP_PROFILE_ATTENTION,
      &(fsdp_profile_attention){
          .dtype = FSDP_BF16, .head_dim = 32, .direction = FSDP_ATTENTION_BOTH, .rate = {&point, 1}});
  probe_sustained(self);
  const fsdp_profile_sustained sustained = self->profile->sustained;
  fsdp_device_profile_destroy(self->profile);
  self->profile = measured;
  return sustained;
}

// The layer is halved until it fits. Nothing is faster in a step than its rate says.
TEST(ratios_of_a_step_are_measured) {
  fsdp_gpu gpu;
  probe self = open_probe(&gpu, "139460608"); // 1.25 MiB beside the workspace of products
  probe_fill(&self, FSDP_BF16);
  const fsdp_profile_sustained slower = sustained_at(&self, 1e15), faster = sustained_at(&self, 1);
  assert_true(slower.products > 2 && slower.products < 1e12);
  assert_true(slower.attention > 2 && slower.attention < 1e12);
  assert_true(faster.products == 1 && faster.attention == 1);
  close_probe(&self);
}

int main(void) {
  return run_all_tests(create_world, destroy_world);
}
