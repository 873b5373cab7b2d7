// runtime/plan/fsdp_plan.h: an example, and that what fails leaves what was set before.
#include "runtime/plan/fsdp_plan.h"
#include "tests/support/unit_test.h"

#include <jansson.h>
#include <string.h>

static void set(fsdp_planner *planner, const char *name, const char *text) {
  if (fsdp_planner_set(planner, name, text)) fail_msg("%s", fsdp_planner_error(planner));
}

static json_t *parsed(fsdp_planner *planner, char *text) {
  if (!text) fail_msg("%s", fsdp_planner_error(planner));
  json_t *root = json_loads(text, 0, NULL);
  assert_non_null(root);
  fsdp_planner_free(text);
  return root;
}

static json_int_t memory(fsdp_planner *planner, const char *key) {
  json_t *root = parsed(planner, fsdp_planner_plan(planner));
  json_int_t value = json_integer_value(json_object_get(json_object_get(root, "memory"), key));
  json_decref(root);
  return value;
}

// State of 12 bytes a parameter, over as many ranks as shard it.
TEST(plans_and_prices) {
  fsdp_planner *planner = fsdp_planner_create();
  set(planner, "model", "llama-1b");
  set(planner, "profile", "h100-sxm");
  set(planner, "wrap", "block");
  const int64_t parameters = 1071681536, scratch = 32 << 20;
  set(planner, "ranks", "4");
  assert_int_equal(memory(planner, "valley_bytes"), parameters * 12 / 4 + scratch);
  set(planner, "ranks", "8");
  assert_int_equal(memory(planner, "valley_bytes"), parameters * 12 / 8 + scratch);
  set(planner, "master-dtype", "bf16");
  set(planner, "moment-dtype", "bf16");
  assert_int_equal(memory(planner, "valley_bytes"), parameters * 6 / 8 + scratch);
  json_t *price = parsed(planner, fsdp_planner_price(planner));
  assert_true(json_real_value(json_object_get(price, "step_ms")) > 0);
  json_decref(price);
  fsdp_planner_destroy(planner);
}

TEST(refused_settings_leave_the_others) {
  fsdp_planner *planner = fsdp_planner_create();
  assert_null(fsdp_planner_plan(planner));
  assert_non_null(strstr(fsdp_planner_error(planner), "no model"));
  set(planner, "model", "tiny");
  const int64_t peak = memory(planner, "peak_bytes");
  assert_int_equal(fsdp_planner_set(planner, "model", "none-such"), 2);
  assert_int_equal(fsdp_planner_set(planner, "model", "{\"model_type\": 3}"), 3);
  assert_int_equal(fsdp_planner_set(planner, "wrap", "blocks"), 2);
  assert_int_equal(fsdp_planner_set(planner, "profile", "name: a"), 3);
  assert_int_equal(fsdp_planner_set(planner, "sharding", "a: 1"), 3);
  assert_int_equal(fsdp_planner_set(planner, "shard", "a=[fsdp]"), 2); // of no sharding
  assert_int_equal(memory(planner, "peak_bytes"), peak);
  assert_null(fsdp_planner_price(planner));
  assert_non_null(strstr(fsdp_planner_error(planner), "no machine"));
  fsdp_planner_destroy(planner);
}
