// What products grouped by expert take: by rows of an expert, tiles that are not full, and the fullest rank.
#include "runtime/plan/price/simulate.h"
#include "runtime/plan/text/profile_text.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

static void assert_near(double value, double expected) {
  if (!(fabs(value - expected) <= 1e-9 * fabs(expected))) fail_msg("%.12g, not %.12g", value, expected);
}

static fsdp_device_profile *profile_of(const char *text) {
  fsdp_device_profile *profile;
  fsdp_error error = {0};
  if (fsdp_profile_read_text("test", text, &profile, &error)) fail_msg("%s", error.message);
  return profile;
}

static const char cuda[] =
    "name: test\ndevice: cuda\nprocessors: 1\nmemory_gb: 1\nmemory_gbps: 1000\ncapability: 9.0\ntiles: true\n"
    "products:\n- {dtype: bf16, form: any, m: 128, n: 64, k: 64, tflops: 0.5}\n"
    "grouped:\n- {kernel: fsdp-mma, dtype: bf16, form: any, tflops: {32: 0.1, 128: 0.4}, estimated: true}\n"
    "- {kernel: fsdp-mma, dtype: bf16, form: weight, tflops: {128: 0.2}, estimated: true}\n"
    "- {kernel: other, dtype: bf16, form: any, tflops: {128: 0.8}}\n";

static fsdp_grouped_kernel kernel = FSDP_GROUPED_MMA;

static double seconds(const fsdp_device_profile *p, fsdp_op_product product, bool *estimated) {
  const fsdp_profile_grouped_call call = {FSDP_BF16, product, 8, kernel};
  return fsdp_profile_grouped_s(p, 1, &call, estimated);
}

// Of 8 experts, 64 inputs and 64 outputs.
TEST(by_rows_of_an_expert) {
  fsdp_device_profile *p = profile_of(cuda);
  bool estimated = false;
  const double flops = 2.0 * 8 * 128 * 64 * 64;
  // 128 rows in the mean are 191.5 in tiles of 128.
  assert_near(seconds(p, (fsdp_op_product){FSDP_PRODUCT_FORWARD, 128, 64, 64, 8}, &estimated),
              flops / 0.4e12 * 191.5 / 128);
  assert_true(estimated);
  // 64 rows are less than a tile in the mean too; halfway between 32 and 128 in logarithms.
  assert_near(seconds(p, (fsdp_op_product){FSDP_PRODUCT_INPUT, 64, 64, 64, 8}, &estimated),
              flops / 2 / 0.2e12);
  // A weight's gradient has rows of its own, and sums over 64 at a time.
  assert_near(seconds(p, (fsdp_op_product){FSDP_PRODUCT_WEIGHT, 64, 64, 128, 8}, &estimated),
              flops / 0.2e12 * 159.5 / 128);
  strcpy(p->grouped_kernel, "other");
  assert_near(seconds(p, (fsdp_op_product){FSDP_PRODUCT_FORWARD, 128, 64, 64, 8}, &estimated),
              flops / 0.8e12 * 191.5 / 128);
  assert_false(estimated);
  // Without rows of the kernel: as one product of all rows, with the same waste, and estimated.
  strcpy(p->grouped_kernel, "none");
  const fsdp_op_product all = {FSDP_PRODUCT_FORWARD, 1024, 64, 64, 1};
  assert_near(seconds(p, (fsdp_op_product){FSDP_PRODUCT_FORWARD, 128, 64, 64, 8}, &estimated),
              fsdp_profile_product_s(p, 1, FSDP_BF16, &all) * (1024 + 8 * 63.5) / 1024);
  assert_true(estimated);
  fsdp_device_profile_destroy(p);
}

// By its own rows; without them by those of mma, as an estimate, unless the profile says which.
TEST(by_the_plans_kernel) {
  fsdp_device_profile *p =
      profile_of("name: test\ndevice: cuda\nprocessors: 1\nmemory_gb: 1\nmemory_gbps: 1000\ncapability: 9.0\n"
                 "products:\n- {dtype: bf16, form: any, m: 128, n: 64, k: 64, tflops: 0.5}\n"
                 "grouped:\n- {kernel: fsdp-mma, dtype: bf16, form: any, tflops: {128: 0.4}}\n"
                 "- {kernel: fsdp-general, dtype: bf16, form: any, tflops: {128: 0.1}}\n");
  const fsdp_op_product product = {FSDP_PRODUCT_FORWARD, 128, 64, 64, 8};
  const double flops = 2.0 * 8 * 128 * 64 * 64;
  bool estimated;
  assert_near(seconds(p, product, &estimated), flops / 0.4e12);
  assert_false(estimated);
  kernel = FSDP_GROUPED_GENERAL;
  assert_near(seconds(p, product, &estimated), flops / 0.1e12);
  kernel = FSDP_GROUPED_WGMMA;
  assert_near(seconds(p, product, &estimated), flops / 0.4e12);
  assert_true(estimated);
  strcpy(p->grouped_kernel, "fsdp-mma");
  assert_near(seconds(p, product, &estimated), flops / 0.4e12);
  assert_false(estimated);
  *p->grouped_kernel = 0;
  fsdp_profile_point point = {128, 1e12};
  const fsdp_profile_grouped row = {
      .kernel = "fsdp-wgmma", .dtype = FSDP_BF16, .form = FSDP_PRODUCT_FORWARD, .rate = {&point, 1}};
  fsdp_device_profile_add(p, FSDP_PROFILE_GROUPED, &row);
  assert_near(seconds(p, product, &estimated), flops / 1e12);
  assert_false(estimated);
  kernel = FSDP_GROUPED_MMA;
  assert_near(seconds(p, product, &estimated), flops / 0.4e12);
  fsdp_device_profile_destroy(p);
}

// A CPU's kernel takes one product after the other, and no tile is wasted.
TEST(of_a_cpu) {
  fsdp_device_profile *p =
      profile_of("name: test\ndevice: cpu\nprocessors: 1\nmemory_gb: 1\nmemory_gbps: 1\n"
                 "products:\n- {dtype: bf16, form: any, m: 1, n: 1, k: 1, tflops: 0.5}\n");
  const fsdp_op_product product = {FSDP_PRODUCT_FORWARD, 100, 64, 64, 8};
  const double flops = 2.0 * 8 * 100 * 64 * 64;
  bool estimated = true;
  assert_near(seconds(p, product, &estimated), flops / 0.5e12);
  assert_false(estimated);
  fsdp_profile_point point = {100, 0.25e12};
  const fsdp_profile_grouped row = {
      .kernel = "fsdp", .dtype = FSDP_BF16, .form = FSDP_PRODUCT_FORWARD, .rate = {&point, 1}};
  fsdp_device_profile_add(p, FSDP_PROFILE_GROUPED, &row);
  assert_near(seconds(p, product, &estimated), flops / 0.25e12);
  fsdp_device_profile_destroy(p);
}

typedef struct step {
  double grouped_s, flops, gathers_s; // grouped_s: products grouped by expert; gathers_s: weights of units
} step;

// A step of a tiny model on four ranks of a GPU, whose memory is fast and which collectives do not slow down.
static step step_of(int fsdp, int expert, double imbalance, int blocks) {
  fsdp_device_profile *profile = profile_of("base: h100-sxm\n");
  fsdp_plan_config config = {.batch = 1,
                             .seq = 4096,
                             .micro_batches = 1,
                             .strategy = FSDP_FULL,
                             .mesh = fsdp_mesh_of(1, fsdp),
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .param_dtype = FSDP_BF16,
                             .imbalance = imbalance,
                             .expert_blocks = blocks,
                             .backend = fsdp_plan_backend_cuda()};
  fsdp_error error = {0};
  fsdp_plan *plan;
  fsdp_pricing pricing;
  fsdp_step_price price;
  profile->memory_rate = 1e24;
  profile->launch_s = 0;
  for (int i = 0; i < profile->grouped_count; i++) profile->grouped[i].estimated = true; // to tell them apart
  profile->product_slowdown = profile->collective_slowdown = 1;
  config.model = model_of_preset("tiny-qwen3-moe");
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_EXPERT, expert);
  if (fsdp_plan_create(&config, &plan, &error)) fail_msg("%s", error.message);
  if (fsdp_pricing_create(plan, profile, 8, &pricing, &error)) fail_msg("%s", error.message);
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &price);
  const step found = {.grouped_s = price.estimated_s[FSDP_PRICE_PRODUCTS],
                      .flops = price.flops,
                      .gathers_s = price.busy_s[FSDP_STREAM_GATHER]};
  assert_true(found.grouped_s > 0 && found.grouped_s < price.kind_s[FSDP_PRICE_PRODUCTS]);
  fsdp_step_price_release(&price);
  fsdp_simulation_destroy(simulation);
  fsdp_plan_destroy(plan);
  fsdp_device_profile_destroy(profile);
  return found;
}

// Without an axis a rank has as many rows whatever the routing; with one the step takes the fullest rank.
TEST(imbalance_is_of_ranks) {
  assert_near(step_of(4, 1, 2, 1).grouped_s, step_of(4, 1, 1, 1).grouped_s);
  assert_true(step_of(1, 4, 2, 1).grouped_s > 1.8 * step_of(1, 4, 1, 1).grouped_s);
}

// Blocks of experts have each its rows: they take as long as all together, and are sent in more messages.
TEST(blocks_share_the_work) {
  for (int expert = 1; expert <= 2; expert++) {
    const step whole = step_of(4 / expert, expert, 1, 1);
    for (int blocks = 2; blocks <= 4; blocks *= 2) {
      const step cut = step_of(4 / expert, expert, 1, blocks);
      assert_near(cut.grouped_s, whole.grouped_s);
      assert_near(cut.flops, whole.flops);
      assert_true(cut.gathers_s > 1.1 * whole.gathers_s);
    }
  }
}
