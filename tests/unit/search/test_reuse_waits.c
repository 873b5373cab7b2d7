// What packing costs: no plan takes much longer because instructions wait for memory to be free.
#include "launcher/profile/profile_file.h"
#include "runtime/plan/search/search.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

typedef struct setting {
  const char *name, *preset;
  int ranks, tensor;
  int64_t batch, seq;
  fsdp_wrap_policy wrap;
  const char *recomputed, *offloaded;
} setting;

static const setting settings[] = {
    {"a plain plan", "llama2-70b", 64, 1, 1, 4096, {.kind = FSDP_WRAP_BLOCK}, "none", "none"},
    {"small units",
     "llama2-70b",
     64,
     1,
     1,
     4096,
     {.kind = FSDP_WRAP_SIZE, .numel = 100000000},
     "none",
     "none"},
    {"two layers' reductions", "llama2-70b", 64, 8, 4, 4096, {.kind = FSDP_WRAP_BLOCK}, "none", "none"},
    {"a slow network", "llama3-405b", 512, 8, 1, 8192, {.kind = FSDP_WRAP_BLOCK}, "none", "none"},
    {"copies to the host", "llama2-70b", 64, 1, 1, 4096, {.kind = FSDP_WRAP_BLOCK}, "none", "residual"},
    {"copies that fall behind",
     "llama2-70b",
     64,
     1,
     2,
     4096,
     {.kind = FSDP_WRAP_SIZE, .numel = 150000000},
     "rmsnorm,swiglu",
     "block_inputs@39,attention@39,linear:gate_proj@39,linear:q_proj@39,residual@39"}};

static fsdp_plan_config config_of(const setting *s) {
  fsdp_plan_config c = search_on(NULL, s->preset, 0, s->ranks).base;
  c.batch = s->batch;
  c.seq = s->seq;
  c.strategy = FSDP_FULL;
  c.wrap = s->wrap;
  fsdp_mesh_add(&c.mesh, "data", 1);
  fsdp_mesh_add(&c.mesh, "fsdp", s->ranks / s->tensor);
  if (s->tensor > 1) fsdp_mesh_add(&c.mesh, "tensor", s->tensor);
  fsdp_mesh_complete(&c.mesh);
  assert_int_equal(fsdp_saving_parse(s->recomputed, "-", FSDP_FATE_RECOMPUTE, &c.saving, NULL), FSDP_OK);
  assert_int_equal(fsdp_saving_parse(s->offloaded, "-", FSDP_FATE_OFFLOAD, &c.saving, NULL), FSDP_OK);
  return c;
}

// At most 2% of the step in arenas at most 2% above the peak, and 1% where the limit leaves room.
TEST(test_cost_of_waits) {
  fsdp_device_profile *profile;
  assert_int_equal(fsdp_profile_read("h100-sxm", &profile, NULL), FSDP_OK);
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    const fsdp_plan_config config = config_of(&settings[i]);
    for (int roomy = 0; roomy <= 1; roomy++) {
      const fsdp_search_config search = {.ranks = settings[i].ranks,
                                         .ranks_per_node = 8,
                                         .global_batch =
                                             settings[i].ranks / settings[i].tensor * config.batch,
                                         .profile = profile,
                                         .limit_bytes = {roomy ? INT64_C(1000000000000) : 0}};
      fsdp_search_plan plan;
      assert_int_equal(fsdp_search_price(&search, &config, &plan), FSDP_OK);
      const double waits = plan.step_s / plan.unhindered_s - 1;
      print_message("%s, %s: %.2f%%\n", settings[i].name, roomy ? "with room" : "tight", 100 * waits);
      if (waits > (roomy ? 0.01 : 0.02))
        fail_msg("%s: waits for memory take %.2f%% of the step", settings[i].name, 100 * waits);
    }
  }
  fsdp_device_profile_destroy(profile);
}

// A search does not fill memory to the last byte where a plan that keeps less waits less and is faster.
TEST(test_search_leaves_room) {
  fsdp_device_profile *profile;
  assert_int_equal(fsdp_profile_read("h100-sxm", &profile, NULL), FSDP_OK);
  const setting large = {
      "searched", "llama2-70b", 64, 1, 1, 4096, {.kind = FSDP_WRAP_SIZE, .numel = 150994944}, "none", "none"};
  fsdp_search_config search = {.base = config_of(&large),
                               .ranks = 64,
                               .ranks_per_node = 8,
                               .global_batch = 64,
                               .profile = profile,
                               .limit_bytes = {INT64_C(80000000000), INT64_C(200000000000)}};
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++) search.fixed[f] = f != FSDP_SEARCH_RECOMPUTE;
  fsdp_search_result result;
  assert_int_equal(fsdp_search_run(&search, &result, NULL), FSDP_OK);
  assert_int_equal(result.count, 1);
  const double waits = result.plans[0].step_s / result.plans[0].unhindered_s - 1;
  if (waits > 0.02) fail_msg("the plan found waits for memory %.2f%% of its step", 100 * waits);
  fsdp_search_result_release(&result);
  fsdp_device_profile_destroy(profile);
}
