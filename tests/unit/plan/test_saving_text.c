// The lists of what layers recompute and offload as text: what they mean, printed again, and refused.
#include "runtime/base/nearest.h"
#include "runtime/plan/program/saving.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>

static fsdp_saving accept(const char *text, fsdp_fate fate) {
  fsdp_saving saving = {0};
  fsdp_error error = {0};
  if (fsdp_saving_parse(text, "--option", fate, &saving, &error) != FSDP_OK) fail_msg("%s", error.message);
  return saving;
}

static void check_printed(const char *text, const char *wanted) {
  fsdp_saving saving = accept(text, FSDP_FATE_OFFLOAD);
  char out[FSDP_SAVING_TEXT_BYTES];
  assert_string_equal(fsdp_saving_print(&saving, FSDP_FATE_OFFLOAD, out), wanted);
  assert_string_equal(fsdp_saving_print(&saving, FSDP_FATE_RECOMPUTE, out), "none");
}

TEST(text_that_is_accepted) {
  check_printed("", "none");
  check_printed("none", "none");
  check_printed("off", "none");
  check_printed("block", "block");
  check_printed("block:8", "block:8");
  check_printed("block@8", "block:8"); // the same
  check_printed("rmsnorm, swiglu@17,linear:up_proj@2", "rmsnorm,swiglu@17,linear:up_proj@2");
  fsdp_saving saving = accept("swiglu,block:3", FSDP_FATE_RECOMPUTE);
  assert_int_equal(saving.count, 2);
  assert_string_equal(saving.rules[0].name, "swiglu");
  assert_int_equal(saving.rules[0].layers, 0);
  assert_string_equal(saving.rules[1].name, "block");
  assert_int_equal(saving.rules[1].layers, 3);
  assert_int_equal(saving.rules[1].fate, FSDP_FATE_RECOMPUTE);
}

// As many rules as there may be, each as long as it may be, have room when they are printed.
TEST(longest_text) {
  char text[FSDP_SAVING_TEXT_BYTES + 256] = "", out[FSDP_SAVING_TEXT_BYTES];
  for (int i = 0; i < FSDP_SAVING_RULES_MAX; i++) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%02d%.*s@%d", i ? "," : "", i, FSDP_SAVING_NAME_BYTES - 3,
             "abcdefghijklmnopqrstuvwxyz_abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKL", INT32_MAX);
  }
  fsdp_saving saving = accept(text, FSDP_FATE_RECOMPUTE);
  assert_int_equal(saving.count, FSDP_SAVING_RULES_MAX);
  assert_int_equal(strlen(saving.rules[0].name), FSDP_SAVING_NAME_BYTES - 1);
  assert_string_equal(fsdp_saving_print(&saving, FSDP_FATE_RECOMPUTE, out), text);
}

static void refuse(const char *text, const char *wanted) {
  fsdp_saving saving = {0};
  fsdp_error error = {0};
  assert_int_equal(fsdp_saving_parse(text, "--option (here)", FSDP_FATE_OFFLOAD, &saving, &error),
                   FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "--option (here)"));
  if (!strstr(error.message, wanted)) fail_msg("no \"%s\" in: %s", wanted, error.message);
}

TEST(text_that_is_refused) {
  refuse(",", "''");
  refuse("rmsnorm,", "''");
  refuse("rmsnorm@", "'rmsnorm@'");
  refuse("rmsnorm@0", "'rmsnorm@0'");
  refuse("rmsnorm@-1", "'rmsnorm@-1'");
  refuse("rmsnorm@2x", "'rmsnorm@2x'");
  refuse("rmsnorm@2147483648", "'rmsnorm@2147483648'");
  refuse("block:", "'block:'");
  refuse("block:x", "'block:x'");
  refuse("linear:", "'linear:'");
  refuse("linear:a:b", "'linear:a:b'");
  refuse(":up_proj", "':up_proj'");
  refuse("rms-norm", "'rms-norm'");
  refuse("rmsnorm swiglu", "'rmsnorm swiglu'");
  refuse("rmsnorm,auto", "'auto' in a list");
  refuse("none,rmsnorm", "'none' in a list");
  char many[256] = "a";
  for (int i = 0; i < FSDP_SAVING_RULES_MAX; i++) strcat(many, ",a");
  refuse(many, "more than 24 items");
}

TEST(nearest_words) {
  static const char *const names[] = {"block", "block_inputs", "rmsnorm", "linear:up_proj", "linear:k_proj"};
  enum { COUNT = sizeof names / sizeof *names };
  assert_int_equal(fsdp_nearest_word("rmsnrom", names, COUNT), 2);
  assert_int_equal(fsdp_nearest_word("norm", names, COUNT), -1);
  assert_int_equal(fsdp_nearest_word("blok", names, COUNT), 0);
  assert_int_equal(fsdp_nearest_word("block_in", names, COUNT), 1); // cut short
  assert_int_equal(fsdp_nearest_word("linear:u_proj", names, COUNT), 3);
  assert_int_equal(fsdp_nearest_word("", names, COUNT), -1);
  // Several: the nearest first, of equals that in front, three at most.
  static const char *const many[] = {"fc12", "fc1", "fc2", "fc3", "act"};
  char question[FSDP_NEAREST_TEXT];
  assert_string_equal(fsdp_nearest_question("fc", many, 5, question), " (did you mean fc1, fc2 or fc3?)");
  assert_string_equal(fsdp_nearest_question("fc0", many + 1, 4, question),
                      " (did you mean fc1, fc2 or fc3?)");
  assert_string_equal(fsdp_nearest_question("fc3", many, 3, question), " (did you mean fc1 or fc2?)");
  assert_string_equal(fsdp_nearest_question("fc11", many, 4, question), " (did you mean fc12, fc1 or fc2?)");
  assert_string_equal(fsdp_nearest_question("atc", many, 5, question), " (did you mean act?)");
  assert_string_equal(fsdp_nearest_question("gelu", many, 5, question), "");
}
