// What the message of a killed run advises: a command line that a shell reads as the run's own names.
#include "launcher/programs/restart_advice.h"
#include "tests/support/unit_test.h"

#include <string.h>

static void expect(const char *experiment, const char *save_dir, int64_t ckpt_freq, const char *wanted) {
  char out[FSDP_WATCH_ADVICE_BYTES], experiment_text[1024], folder[1024];
  fsdp_options options = {.ckpt_freq = ckpt_freq, .save_dir = folder};
  snprintf(folder, sizeof folder, "%s", save_dir);
  if (experiment) {
    snprintf(experiment_text, sizeof experiment_text, "%s", experiment);
    options.experiment = experiment_text;
  }
  assert_string_equal(fsdp_restart_advice(&options, out), wanted);
}

TEST(names_the_run) {
  expect("pride", "outputs", 500, "Start again with -e pride to resume from the newest checkpoint");
  expect("it's", "/a b", 1,
         "Start again with -e 'it'\\''s' --save-dir '/a b' to resume from the newest checkpoint");
  char folder[700];
  memset(folder, 'a', sizeof folder - 1);
  folder[sizeof folder - 1] = 0;
  expect("pride", folder, 500,
         "Start again with the same -e and --save-dir to resume from the newest checkpoint");
}

TEST(nothing_was_saved) {
  expect(NULL, "outputs", 500, "Nothing of this run was saved; -e NAME saves checkpoints to resume from");
  expect("pride", "outputs", 0, "Nothing of this run was saved (--ckpt-freq 0)");
}
