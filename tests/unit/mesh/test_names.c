// names.h by example: which names a rule names, and which of two rules holds.
#include "runtime/plan/mesh/names.h"
#include "tests/support/unit_test.h"

TEST(test_star_is_any_integer) {
  assert_true(fsdp_name_matches("model.layers.*.mlp", "model.layers.12.mlp"));
  assert_true(fsdp_name_matches("model.layers.12.mlp", "model.layers.12.mlp"));
  assert_false(fsdp_name_matches("model.layers.*.mlp", "model.layers.12"));
  assert_false(fsdp_name_matches("model.*.mlp", "model.layers.mlp"));
  assert_false(fsdp_name_matches("model.layers.1.mlp", "model.layers.12.mlp"));
}

// The first place where only one of two rules has an integer decides.
TEST(test_an_integer_wins) {
  assert_true(fsdp_name_wins("experts.3.w.*", "experts.*.w.7"));
  assert_false(fsdp_name_wins("experts.*.w.7", "experts.3.w.*"));
}

TEST(test_pattern) {
  char pattern[FSDP_NAME_BYTES];
  fsdp_name_pattern("model.layers.12.mlp.up_proj.weight", pattern);
  assert_string_equal(pattern, "model.layers.*.mlp.up_proj.weight");
}
