// The folder of an experiment: which checkpoints it holds and keeps, and who removes what.
#include "runtime/base/check.h"
#include "runtime/checkpoint/checkpoint_file.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "tests/support/harness.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// What is gone is removed at once, by `parts` ranks one after the other.
static void remove_gone(const char *folder, fsdp_checkpoint_gone_list *gone, int parts) {
  for (int part = 0; part < parts; part++) fsdp_checkpoint_remove_files(folder, gone, part, parts);
  fsdp_checkpoint_remove_rest(folder, gone);
}

static void prune(const char *folder, int keep) {
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_gone_list gone = {0};
  fsdp_checkpoint_prune(folder, &(fsdp_checkpoint_keep){.newest = keep}, &index, &gone);
  remove_gone(folder, &gone, 3);
  free(index.entries);
}

static const void *make_zeros(void *context, const fsdp_checkpoint_range *range) {
  static const float zeros[1 << 20];
  assert_true(range->numel <= (int64_t)(sizeof zeros / sizeof *zeros));
  return zeros;
}

// Saves step `step` of a small model on so many ranks, nothing but zeros, with this evaluation's loss.
static void save_evaluated(int ranks, const char *folder, int64_t step, double eval_loss) {
  fsdp_plan_config config = harness_small_plan(1);
  fsdp_plan *plan;
  fsdp_error error;
  config.strategy = FSDP_FULL;
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_FSDP, ranks);
  if (fsdp_plan_create(&config, &plan, &error) != FSDP_OK) fail_msg("%s", error.message);
  fsdp_checkpoint *c = fsdp_checkpoint_create(plan, "small");
  c->progress = (fsdp_checkpoint_progress){.step = step, .global_batch = 8, .sample_count = 100};
  c->progress.results.eval_loss = eval_loss;
  c->save = (uint64_t)step;
  char temporary[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_path(folder, step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  IO_OK(fsdp_checkpoint_begin(folder, step, c->save, &error), &error);
  for (int r = 0; r < ranks; r++) {
    const fsdp_checkpoint_file_config file = {
        .checkpoint = c, .rank = r, .folder = temporary, .source = make_zeros};
    int64_t bytes;
    IO_OK(fsdp_checkpoint_file_write(&file, &bytes, &error), &error);
  }
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_gone_list gone = {0};
  IO_OK(fsdp_checkpoint_commit(folder, NULL, c, &index, &gone, &error), &error);
  remove_gone(folder, &gone, ranks);
  free(index.entries);
  fsdp_checkpoint_destroy(c);
  fsdp_plan_destroy(plan);
}

static void save(int ranks, const char *folder, int64_t step) {
  save_evaluated(ranks, folder, step, 0);
}

static int64_t step_of(const char *folder, const char *word) {
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  return fsdp_checkpoint_named(folder, word, path) ? fsdp_checkpoint_named_step(path) : -1;
}

// The one with the least loss stays beside the newest, and words name each.
TEST_WITH_FOLDER(the_best_stays_and_is_named) {
  static const double losses[] = {0, 3.5, 2.25, 0, 2.5, 2.25, 4};
  const char *folder = io_folder();
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_gone_list gone = {0};
  assert_int_equal(step_of(folder, "best"), -1);
  for (int step = 1; step <= 4; step++) save_evaluated(1, folder, step, losses[step]);
  assert_int_equal(step_of(folder, "best"), 2);
  fsdp_checkpoint_prune(folder, &(fsdp_checkpoint_keep){.newest = 1, .best = true}, &index, &gone);
  remove_gone(folder, &gone, 1);
  assert_int_equal(index.count, 4);
  const struct {
    const char *word;
    int64_t step;
  } words[] = {{"step-2", 2},  {"2", 2},       {"step-00000004", 4}, {"0004", 4}, {"1", -1},
               {"step-3", -1}, {"newest", -1}, {"step-", -1},        {"4x", -1},  {"", -1}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    assert_int_equal(step_of(folder, words[i].word), words[i].step);
  // Of equals the newer.
  save_evaluated(1, folder, 5, losses[5]);
  save_evaluated(1, folder, 6, losses[6]);
  assert_int_equal(step_of(folder, "best"), 5);
  fsdp_checkpoint_drop(folder, &gone);
  assert_int_equal(gone.count, 4);
  remove_gone(folder, &gone, 1);
  assert_int_equal(step_of(folder, "6"), -1);
  free(index.entries);
}

// What a user renames stays, is listed apart, and is meant by its name alone.
TEST_WITH_FOLDER(other_names_are_kept) {
  const char *folder = io_folder();
  fsdp_checkpoint_gone_list gone = {0};
  fsdp_checkpoint_entry *entries;
  char from[FSDP_CHECKPOINT_PATH_BYTES], to[FSDP_CHECKPOINT_PATH_BYTES], names[FSDP_CHECKPOINT_NAMES_BYTES];
  assert_string_equal(fsdp_checkpoint_print_names(folder, names), " has none");
  for (int step = 1; step <= 3; step++) save(1, folder, step);
  static const char *const renamed[] = {"mine", "best"};
  for (int i = 0; i < 2; i++) {
    snprintf(from, sizeof from, "%.4000s/step-0000000%d", folder, i + 1);
    snprintf(to, sizeof to, "%.4000s/%s", folder, renamed[i]);
    assert_int_equal(rename(from, to), 0);
  }
  assert_int_equal(fsdp_checkpoint_list_kept(folder, &entries), 2);
  assert_string_equal(strrchr(entries[0].path, '/'), "/best");
  assert_string_equal(strrchr(entries[1].path, '/'), "/mine");
  free(entries);
  assert_string_equal(fsdp_checkpoint_print_names(folder, names), " has step-3, best, mine");
  static const char *const words[] = {"mine", "best"}; // none was evaluated
  for (int i = 0; i < 2; i++) {
    assert_true(fsdp_checkpoint_named(folder, words[i], to));
    assert_string_equal(strrchr(to, '/') + 1, words[i]);
  }
  static const char *const nothing[] = {"", ".", "..", "other", "./mine", "mine/"};
  for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
    assert_false(fsdp_checkpoint_named(folder, nothing[i], to));
  fsdp_checkpoint_drop(folder, &gone);
  remove_gone(folder, &gone, 1);
  assert_int_equal(fsdp_checkpoint_list_kept(folder, &entries), 2);
  free(entries);
}

// A rank on a node with a folder of its own, which may have a leftover of the same name.
TEST_WITH_FOLDER(a_folder_of_its_own_is_found) {
  const char *folder = io_folder();
  fsdp_error error;
  assert_int_equal(fsdp_checkpoint_begin(folder, 7, 1, &error), FSDP_OK);
  assert_int_equal(fsdp_checkpoint_find_mark(folder, 7, 1, &error), FSDP_OK);
  IO_EXPECT(fsdp_checkpoint_find_mark(folder, 7, 2, &error), FSDP_ERR_INPUT, &error, "step-00000007.tmp",
            "rank 0 has made it", "--save-dir");
  IO_EXPECT(fsdp_checkpoint_find_mark(io_path("b"), 7, 1, &error), FSDP_ERR_INPUT, &error, "No such file");
}

// Each rank removes its own file, rank 0 what is left; before that the folder has no checkpoint's name.
TEST(what_is_gone_is_removed_in_parts) {
  for (int ranks = 3; ranks <= 300; ranks += 297) {
    const char *folder = io_folder_make();
    fsdp_checkpoint_index index = {0};
    fsdp_checkpoint_gone_list gone = {0};
    save(ranks, folder, 7);
    save(ranks, folder, 8);
    fsdp_checkpoint_prune(folder, &(fsdp_checkpoint_keep){.newest = 1}, &index, &gone);
    assert_int_equal(gone.count, 1);
    assert_int_equal(gone.items[0].step, 7);
    fsdp_checkpoint_entry *entries;
    assert_int_equal(fsdp_checkpoint_list(folder, &entries), 1);
    free(entries);
    char file[128];
    for (int part = 0; part < ranks; part++) {
      snprintf(file, sizeof file, "step-00000007.gone/%srank-%05d.safetensors",
               ranks > 256 ? part < 256 ? "ranks-00000/" : "ranks-00256/" : "", part);
      assert_int_equal(access(io_path(file), F_OK), 0);
      fsdp_checkpoint_remove_files(folder, &gone, part, ranks);
      assert_int_equal(access(io_path(file), F_OK), -1);
    }
    assert_int_equal(access(io_path("step-00000007.gone/checkpoint.json"), F_OK), 0);
    // Killed here: the next start finds the rest.
    gone.count = 0;
    fsdp_checkpoint_clean(folder, &gone);
    assert_int_equal(gone.count, 1);
    fsdp_checkpoint_remove_rest(folder, &gone);
    assert_int_equal(gone.count, 0);
    assert_int_equal(access(io_path("step-00000007.gone"), F_OK), -1);
    assert_int_equal(access(io_path("step-00000008"), F_OK), 0);
    free(index.entries);
    io_folder_remove();
  }
}

// A kept manifest is read once: what is known of it is believed until it changes.
TEST_WITH_FOLDER(manifests_are_read_once) {
  const char *folder = io_folder();
  fsdp_checkpoint_index index = {0};
  save(1, folder, 7);
  fsdp_checkpoint_refresh(folder, &index);
  assert_int_equal(index.count, 1);
  assert_int_equal(index.entries[0].sequence, 1);
  index.entries[0].sequence = 41;
  fsdp_checkpoint_refresh(folder, &index);
  assert_int_equal(index.entries[0].sequence, 41);
  save(1, folder, 8);
  fsdp_checkpoint_refresh(folder, &index);
  assert_int_equal(index.count, 2);
  assert_int_equal(index.entries[0].sequence, 41);
  assert_int_equal(index.entries[1].sequence, 2);
  // Of the same size and in the same file, at a later tick of the clock that files are stamped by.
  struct stat information;
  assert_int_equal(stat(io_path("step-00000007/checkpoint.json"), &information), 0);
  char *text = fsdp_alloc((size_t)information.st_size);
  memset(text, '{', (size_t)information.st_size);
  nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
  io_write("step-00000007/checkpoint.json", text, information.st_size);
  free(text);
  fsdp_checkpoint_refresh(folder, &index);
  assert_int_equal(index.entries[0].step, 7);
  assert_int_equal(index.entries[0].sequence, 0);
  free(index.entries);
}

static void expect_list(const char *folder, const int64_t *steps) {
  fsdp_checkpoint_entry *entries;
  int count = fsdp_checkpoint_list(folder, &entries), i = 0;
  for (; steps[i]; i++) {
    if (i >= count || entries[i].step != steps[i]) fail_msg("entry %d is not step %d", i, (int)steps[i]);
  }
  assert_int_equal(count, i);
  free(entries);
}
#define EXPECT_LIST(folder, ...) expect_list(folder, (const int64_t[]){__VA_ARGS__, 0})

TEST_WITH_FOLDER(folder_keeps_the_newest) {
  const char *folder = io_folder();
  for (int64_t step = 10; step <= 40; step += 10) save(1, folder, step);
  EXPECT_LIST(folder, 40, 30, 20, 10);
  save(1, folder, 20); // again: it is the newest now
  EXPECT_LIST(folder, 20, 40, 30, 10);
  prune(folder, 3);
  EXPECT_LIST(folder, 20, 40, 30);
  // What crashes leave: temporary ones go, one that was set aside for a successor that never came is back.
  assert_int_equal(mkdir(io_path("step-00000050.tmp"), 0777), 0);
  io_write_text("step-00000050.tmp/rank-00000.safetensors", "half");
  assert_int_equal(rename(io_path("step-00000030"), io_path("step-00000030.old")), 0);
  io_write_text("log.jsonl", "{}\n");
  fsdp_checkpoint_gone_list gone = {0};
  fsdp_checkpoint_clean(folder, &gone);
  assert_int_equal(gone.count, 1);
  remove_gone(folder, &gone, 2);
  EXPECT_LIST(folder, 20, 40, 30);
  assert_int_equal(access(io_path("step-00000050.tmp"), F_OK), -1);
  assert_int_equal(access(io_path("log.jsonl"), F_OK), 0);
  // Unreadable ones come first, for they may be the newest, and go first.
  io_write_text("step-00000040/checkpoint.json", "{");
  EXPECT_LIST(folder, 40, 20, 30);
  prune(folder, 2);
  EXPECT_LIST(folder, 20, 30);
  prune(folder, 0);
  EXPECT_LIST(folder, 20, 30);
}
