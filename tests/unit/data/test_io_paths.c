// The files that --data names: patterns and what is literal, their order, what is refused; and a data set of
// many files.
#include "runtime/data/data_paths.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void make_files(const char *names) {
  char *copy = strdup(names), *rest = copy, *name;
  while ((name = strsep(&rest, " "))) io_write_text(name, "x");
  free(copy);
}

// `list` stands for these files, which are written with blanks between them.
static void expect(const char *list, const char *wanted) {
  fsdp_data_paths paths;
  fsdp_error error;
  char found[2048] = "";
  if (fsdp_data_paths_find("data", list, &paths, &error)) fail_msg("%s: %s", list, error.message);
  for (int i = 0; i < paths.count; i++) {
    if (i) strcat(found, " ");
    strcat(found, paths.files[i]);
  }
  assert_string_equal(found, wanted);
  assert_string_equal(paths.list, list);
  fsdp_data_paths_destroy(&paths);
}

#define REFUSED(list, ...)                                                                                   \
  do {                                                                                                       \
    fsdp_data_paths refused;                                                                                 \
    fsdp_error error;                                                                                        \
    IO_EXPECT(fsdp_data_paths_find("eval-data", list, &refused, &error), FSDP_ERR_INPUT, &error,             \
              "--eval-data", __VA_ARGS__);                                                                   \
    fsdp_data_paths_destroy(&refused);                                                                       \
  } while (0)

TEST_IN_FOLDER(patterns_are_the_files_they_match) {
  make_files("t_10.bin t_2.bin t_1.bin v_1.bin T_1.bin t_1.tok .t_3.bin");
  expect("t_*.bin", "t_1.bin t_10.bin t_2.bin");
  expect("t_?.bin", "t_1.bin t_2.bin");
  expect("[tv]_1.bin", "t_1.bin v_1.bin");
  expect("[!t]_1.*", "T_1.bin v_1.bin");
  expect("v_*.bin,none.txt,t_?.bin", "v_1.bin none.txt t_1.bin t_2.bin");
  expect("*", "T_1.bin t_1.bin t_1.tok t_10.bin t_2.bin v_1.bin");
  char absolute[600], wanted[600];
  snprintf(absolute, sizeof absolute, "%s", io_path("*.tok"));
  snprintf(wanted, sizeof wanted, "%s", io_path("t_1.tok"));
  expect(absolute, wanted);
  fsdp_data_paths none;
  assert_int_equal(fsdp_data_paths_find("data", NULL, &none, NULL), FSDP_OK);
  assert_true(none.count == 0 && !none.list);
}

TEST_IN_FOLDER(names_with_letters_of_patterns_are_names) {
  mkdir("d[1]", 0700), mkdir("d1", 0700), mkdir("e[1]", 0700), mkdir("e1", 0700);
  make_files("a[1].txt a1.txt b[1] d[1]/x.bin d1/y.bin e1/z.bin");
  expect("a[1].txt", "a[1].txt");
  expect("a[1].tx?", "a1.txt");
  expect("a[[]1].tx?", "a[1].txt");
  expect("d[1]/*", "d[1]/x.bin");
  expect("d?/*", "d1/y.bin");
  expect("d*/*", "d1/y.bin d[1]/x.bin");
  REFUSED("e[1]/*", "no files");
  rmdir("e[1]");
  expect("e[1]/*", "e1/z.bin");
}

TEST_IN_FOLDER(a_pattern_without_a_match_is_explained) {
  mkdir("sub", 0700);
  make_files("train_1.bin train_2.bin train_3.bin val_1.bin a.txt sub/x.tok");
  REFUSED("trains_*.bin", "\"trains_*.bin\"",
          "4 files that end in .bin (train_1.bin, train_2.bin, train_3.bin, ...)");
  REFUSED("valid*.bin", "(val_1.bin, train_1.bin, train_2.bin, ...)");
  REFUSED("sub/y*.tok", "/sub has 1 file that ends in .tok (x.tok)");
  REFUSED("sub/y*", "/sub has 1 file (x.tok)");
  REFUSED("sub/*.bin", "/sub has no files that end in .bin");
  REFUSED("absent/*.bin", io_path("absent"), "No such file");
  REFUSED("a.txt/*.bin", "a.txt cannot be read", "Not a directory");
  REFUSED("a.txt,b*.txt", "\"b*.txt\"", "1 file that ends in .txt (a.txt)");
}

TEST_IN_FOLDER(other_bad_lists_are_refused) {
  make_files("a_1.bin a_2.bin");
  REFUSED("a_*.bin,,", "comma");
  REFUSED(",a", "comma");
  REFUSED("a_*.bin,a_2.bin", "a_2.bin twice");
  REFUSED("a_?.bin,a_*.bin", "a_1.bin twice");
  // By whatever path.
  REFUSED("a_*.bin,./a_2.bin", "./a_2.bin twice, also as a_2.bin");
  assert_int_equal(symlink("a_1.bin", "b_1.bin"), 0);
  REFUSED("[ab]_*.bin", "a_1.bin twice, also as b_1.bin");
  assert_int_equal(unlink("b_1.bin"), 0);
  expect("a_1.bin,a_1.bin", "a_1.bin a_1.bin");
}

TEST_IN_FOLDER(blanks_around_paths_are_not_of_them) {
  make_files("a.txt b.txt");
  expect(" a.txt ,\tb.*", "a.txt b.txt");
  io_write_text("b.txt ", "x");
  expect("a.txt,b.txt ", "a.txt b.txt ");
  REFUSED("a.txt, ", "comma");
  fsdp_data_paths paths;
  fsdp_error error;
  IO_OK(fsdp_data_paths_find("data", "a.txt:0.7 , b.txt:0.3", &paths, &error), &error);
  assert_int_equal(paths.group_count, 2);
  assert_string_equal(paths.groups[0].name, "a.txt");
  fsdp_data_paths_destroy(&paths);
}

// The message is of the file whose weight is wrong.
TEST_IN_FOLDER(a_weight_that_is_no_number_is_named) {
  static const char *const weights[] = {"nan", "inf", "half", "0", "-1"};
  make_files("a.txt b.txt");
  for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
    char list[64];
    fsdp_data_paths paths;
    fsdp_error error;
    snprintf(list, sizeof list, "a.txt:%s,b.txt:1", weights[i]);
    IO_EXPECT(fsdp_data_paths_find("data", list, &paths, &error), FSDP_ERR_OPTION, &error,
              "the weight of a.txt is not a number above 0");
    fsdp_data_paths_destroy(&paths);
  }
}

TEST_IN_FOLDER(common_files_are_counted) {
  make_files("t_1.bin t_2.bin v_1.bin");
  fsdp_data_paths all, some, none;
  fsdp_error error;
  const char *first, *pair[2];
  IO_OK(fsdp_data_paths_find("data", "*.bin", &all, &error), &error);
  IO_OK(fsdp_data_paths_find("data", "x,v_1.bin,t_*.bin", &some, &error), &error);
  IO_OK(fsdp_data_paths_find("data", NULL, &none, &error), &error);
  assert_int_equal(fsdp_data_paths_common(&some, &all, &first), 3);
  assert_string_equal(first, "v_1.bin");
  assert_int_equal(fsdp_data_paths_common(&none, &all, &first), 0);
  assert_null(first);
  assert_int_equal(fsdp_data_paths_common(&all, &none, &first), 0);
  assert_int_equal(fsdp_data_paths_repeated(&all, pair), 0);
  fsdp_data_paths_destroy(&some);
  IO_OK(fsdp_data_paths_find("data", "b,x,b,a,x,x", &some, &error), &error);
  assert_int_equal(fsdp_data_paths_repeated(&some, pair), 2);
  assert_string_equal(pair[0], "b");
  assert_string_equal(pair[1], "b");
  fsdp_data_paths_destroy(&some);
  assert_int_equal(symlink("t_1.bin", "link.bin"), 0);
  IO_OK(fsdp_data_paths_find("data", "link.bin,./t_2.bin", &some, &error), &error);
  assert_int_equal(fsdp_data_paths_common(&some, &all, &first), 2);
  assert_string_equal(first, "link.bin");
  fsdp_data_paths_destroy(&some);
  IO_OK(fsdp_data_paths_find("data", "v_1.bin,./v_1.bin,t_1.bin,link.bin", &some, &error), &error);
  assert_int_equal(fsdp_data_paths_repeated(&some, pair), 2);
  fsdp_data_paths_destroy(&all);
  fsdp_data_paths_destroy(&some);
  fsdp_data_paths_destroy(&none);
}

// More files than handles that may be open; the samples are those of the tokens one after the other.
TEST_IN_FOLDER(a_data_set_of_many_files) {
  enum { FILES = 1100, EACH = 7, SEQ = 16 };
  struct rlimit before, few;
  for (int i = 0; i < FILES; i++) {
    char name[32];
    uint16_t tokens[EACH];
    for (int k = 0; k < EACH; k++) tokens[k] = (uint16_t)((i * EACH + k) * 31 % 50257);
    snprintf(name, sizeof name, "train_%06d.bin", i);
    io_write(name, tokens, sizeof tokens);
  }
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  few = (struct rlimit){.rlim_cur = 32, .rlim_max = before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
  fsdp_dataset_config config = {.seq = SEQ, .vocab_size = 50257, .verify = true};
  fsdp_dataset *dataset = io_dataset("train_*.bin", config);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(dataset->token_count, FILES * EACH);
  assert_int_equal(dataset->sample_count, (FILES * EACH - 1) / SEQ);
  assert_non_null(strstr(dataset->description, "train_*.bin, 1,100 files, taken for"));
  for (int64_t i = 0; i < dataset->sample_count; i++) {
    int32_t tokens[SEQ], targets[SEQ];
    io_fill(dataset, i, tokens, targets);
    for (int64_t k = 0; k < SEQ; k++) {
      assert_int_equal(tokens[k], (i * SEQ + k) * 31 % 50257);
      assert_int_equal(targets[k], (i * SEQ + k + 1) * 31 % 50257);
    }
  }
  fsdp_dataset_close(dataset);
}
