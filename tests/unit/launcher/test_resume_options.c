// How options are reported that changed since a checkpoint was saved.
#include "launcher/train/resume_changes.h"
#include "runtime/plan/text/option_table.h"
#include "tests/support/unit_test.h"

#include <string.h>

static void expect(json_t *saved, const char *current, bool data_differs, const char *wanted) {
  char out[256];
  bool differs = fsdp_resume_changes(saved, current, data_differs, out, sizeof out);
  assert_string_equal(out, wanted);
  assert_int_equal(differs, *wanted != 0);
}

TEST(changes_are_listed_with_both_values) {
  json_t *saved = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "lr", "0.002", "data", "a.txt",
                            "max-steps", "0", "weight-decay", "0.050000000000000003", "strategy", "full",
                            "log-freq", "10", "eval-data", "");
  assert_non_null(saved);
  const char *same = "lr=0.002\ndata=a.txt\nmax-steps=0\nweight-decay=0.050000000000000003\n"
                     "strategy=full\nlog-freq=10\neval-data=\n";
  expect(saved, same, false, "");
  expect(saved, same, true, "--data a.txt has different contents");
  expect(saved, "", true, "");
  // Options that change no number, and those that the saved run did not know.
  expect(saved, "lr=0.002\nstrategy=hybrid\nlog-freq=1\nnew-option=5\n", false, "");
  json_t *offload = json_pack("{s:s, s:s}", "recompute", "none", "offload-activations", "none");
  expect(offload, "recompute=block\noffload-activations=block_inputs\n", false, "");
  json_decref(offload);
  json_t *priced = json_pack("{s:s, s:s, s:s}", "profile", "", "auto", "off", "global-batch", "0");
  expect(priced, "profile=h100-sxm\nauto=on\nglobal-batch=8\n", false, "");
  json_decref(priced);
  expect(saved, "lr=0.00030000000000000003\nweight-decay=0\nmax-steps=7\neval-data=e.txt\n", false,
         "--lr 0.002 → 0.00030000000000000003, --weight-decay 0.05 → 0, --max-steps none → 7, "
         "--eval-data none → e.txt");
  expect(saved, "lr=0.29999999999999999\n", false, "--lr 0.002 → 0.3");
  json_t *older = json_pack("{s:s}", "eval-split", "2e+01");
  expect(older, "eval-split=20\n", false, "");
  expect(older, "eval-split=21\n", false, "--eval-split 20 → 21");
  json_decref(older);
  expect(saved, "data=b.txt\n", true, "--data a.txt → b.txt");
  expect(saved, "data=b.txt\n", false, "--data a.txt → b.txt (the same contents)");
  expect(saved, "data=\n", true, "--data a.txt → none");
  json_object_set_new(saved, "data", json_string(""));
  expect(saved, "data=\n", true, "--data of the program has different contents");
  char out[8];
  memset(out, 'x', sizeof out);
  assert_true(fsdp_resume_changes(saved, "lr=5\nseed=7\n", false, out, 6));
  assert_string_equal(out, "--lr ");
  assert_int_equal(out[6], 'x');
  json_decref(saved);
}

TEST(options_that_are_not_compared_exist) {
  for (const char *const *name = fsdp_resume_unchanging(); *name; name++) {
    if (!fsdp_option_find(*name)) fail_msg("there is no option --%s", *name);
  }
}
