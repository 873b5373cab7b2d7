// Names that are none of ours: what was mistyped is found, what means something else has an answer of its own
// or none, and the short names of other trainers mean what they say there.
#include "launcher/options/options.h"
#include "runtime/plan/text/option_query.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>

static fsdp_status parse(const char *line, fsdp_options *options, fsdp_error *error) {
  enum { WORDS_MAX = 40 };
  static char words[512];
  char *argv[WORDS_MAX] = {"fsdp_train"};
  int argc = 1;
  snprintf(words, sizeof words, "%s", line);
  for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
  memset(error, 0, sizeof *error);
  return fsdp_options_parse(options, FSDP_PROGRAM_TRAIN, argc, argv, error);
}

// `--name 3` is refused; whether a name is proposed, and which.
static void refused(const char *name, const char *proposed) {
  char line[64], question[64] = "did you mean";
  fsdp_options options;
  fsdp_error error;
  snprintf(line, sizeof line, "--%s 3", name);
  if (proposed) snprintf(question, sizeof question, "did you mean --%s?", proposed);
  assert_int_equal(parse(line, &options, &error), FSDP_ERR_OPTION);
  if ((strstr(error.message, question) != NULL) != (proposed != NULL))
    fail_msg("%s: %s", line, error.message);
  fsdp_options_destroy(&options);
}

TEST(no_unrelated_name_is_proposed) {
  static const char *const unlike[] = {
      "lora",      "gpus",      "pipe",          "nodes",         "dp",   "packing",     "save_strategy",
      "no_fa",     "log_loss",  "wandb_project", "torch_compile", "rope", "perplexity",  "best",
      "deepspeed", "halt",      "test",          "eval_all",      "sft",  "train-speed", "wandb",
      "cpu",       "checkpoint"};
  for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++) refused(unlike[i], NULL);
}

TEST(what_was_mistyped_is_found) {
  static const char *const alike[][2] = {{"stratgey", "strategy"},
                                         {"lr-shedule", "lr-schedule"},
                                         {"seqlenght", "seq-length"},
                                         {"batchsize", "batch-size"},
                                         {"warp", "wrap"},
                                         {"strat", "strategy"},
                                         {"max", "max-steps"},
                                         {"exper", "expert-parallel"},
                                         {"learning-rat", "lr"},
                                         {"save_dirs", "save-dir"}};
  for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) refused(alike[i][0], alike[i][1]);
}

TEST(short_names_mean_the_same) {
  fsdp_options o;
  fsdp_error error;
  const char line[] =
      "--mbs 6 --ga 3 --gc --tp 4 --cp 2 --sp off --steps 200 --val_set_size 0.1 --max_length 64";
  if (parse(line, &o, &error)) fail_msg("%s", error.message);
  assert_true(o.batch == 6 && o.grad_accum == 3 && o.tensor_parallel == 4 && o.context_parallel == 2);
  assert_true(!o.sequence_parallel && o.max_steps == 200 && o.eval_split == 0.1 && o.seq == 64);
  assert_string_equal(o.recompute, "block");
  fsdp_options_destroy(&o);
}

// What --auto chose for itself needs no remark.
TEST(choices_of_auto_are_not_noted) {
  static const char *const places[] = {"command line", "--auto"};
  for (int i = 0; i < 2; i++) {
    fsdp_options o;
    fsdp_error error;
    char note[256];
    assert_int_equal(parse("", &o, &error), FSDP_OK);
    assert_int_equal(fsdp_options_set(&o, FSDP_PROGRAM_TRAIN, "accumulate", "local", places[i], &error),
                     FSDP_OK);
    assert_int_equal(fsdp_options_note(&o, 0, note, sizeof note), i == 0);
    fsdp_options_destroy(&o);
  }
}
