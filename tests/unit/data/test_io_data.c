// dataset and sampler: what a sample is, what is refused, and an order that no split of the batch
// changes.
#include "models/graph/op.h"
#include "runtime/data/builtin_text.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sampler.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static fsdp_dataset *open_good(const char *paths, int64_t seq, int64_t global_batch) {
  return io_dataset(paths,
                    (fsdp_dataset_config){.seq = seq, .global_batch = global_batch, .vocab_size = 256});
}

TEST(the_builtin_text_is_real) {
  assert_true(fsdp_builtin_text_bytes() >= 200000);
  int64_t letters = 0;
  for (int64_t i = 0; i < fsdp_builtin_text_bytes(); i++) {
    unsigned char c = fsdp_builtin_text[i];
    assert_true(c == '\n' || (c >= 32 && c < 127));
    letters += (c >= 'a' && c <= 'z');
  }
  assert_true(letters > fsdp_builtin_text_bytes() * 7 / 10);
  assert_memory_equal(fsdp_builtin_text, "NORTHANGER ABBEY\n", 17);
  fsdp_dataset *dataset = open_good(NULL, 1024, 8);
  assert_int_equal(dataset->token_count, fsdp_builtin_text_bytes());
  assert_int_equal(dataset->sample_count, (fsdp_builtin_text_bytes() - 1) / 1024);
  assert_non_null(strstr(dataset->description, "built-in"));
  fsdp_dataset_close(dataset);
}

// Three files whose ends fall inside samples, against the text put together by hand.
TEST(samples_run_over_the_ends_of_files) {
  static const char *const parts[] = {"abcde", "f", "ghijklmnopqrstuvwxyz\xff\x01"};
  char paths[2048], all[64];
  snprintf(paths, sizeof paths, "%s,%s,%s", io_write_text("0.txt", parts[0]),
           io_write_text("1.txt", parts[1]), io_write_text("2.txt", parts[2]));
  snprintf(all, sizeof all, "%s%s%s", parts[0], parts[1], parts[2]);
  fsdp_dataset *dataset = open_good(paths, 4, 2);
  int64_t tokens_count = (int64_t)strlen(all);
  assert_int_equal(dataset->token_count, tokens_count);
  assert_int_equal(dataset->sample_count, (tokens_count - 1) / 4);
  for (int64_t sample = 0; sample < dataset->sample_count; sample++) {
    int32_t tokens[4], targets[4];
    io_fill(dataset, sample, tokens, targets);
    for (int64_t i = 0; i < 4; i++) {
      assert_int_equal(tokens[i], (unsigned char)all[sample * 4 + i]);
      assert_int_equal(targets[i], (unsigned char)all[sample * 4 + i + 1]);
    }
    assert_int_equal(fsdp_dataset_target_count(dataset, sample), 4);
  }
  // The same tokens in one file have the same fingerprint, other tokens a different one.
  fsdp_dataset *one = open_good(io_write_text("all.TXT", all), 4, 2);
  assert_true(fsdp_dataset_fingerprint(one) == fsdp_dataset_fingerprint(dataset));
  fsdp_dataset *other = open_good(io_write_text("other.txt", all + 1), 4, 2);
  assert_true(fsdp_dataset_fingerprint(other) != fsdp_dataset_fingerprint(dataset));
  fsdp_dataset_close(dataset);
  fsdp_dataset_close(one);
  fsdp_dataset_close(other);
}

// test_prepare_data.py has the same for the script.
TEST(a_byte_order_mark_is_no_text) {
  fsdp_dataset *dataset = open_good(io_write_text("mark.txt", "\xef\xbb\xbf"
                                                              "abc\xef\xbb\xbf"),
                                    5, 1);
  int32_t tokens[5], targets[5];
  assert_int_equal(dataset->token_count, 6);
  io_fill(dataset, 0, tokens, targets);
  assert_int_equal(tokens[0], 'a');
  assert_int_equal(targets[4], 0xbf);
  fsdp_dataset_close(dataset);
  fsdp_error error;
  const fsdp_dataset_config config = {.seq = 1, .global_batch = 1, .vocab_size = 256};
  IO_EXPECT(io_dataset_status(io_write_text("mark.txt", "\xef\xbb\xbf"), config, &error), FSDP_ERR_INPUT,
            &error, "mark.txt: has 0 tokens");
}

TEST(a_text_of_just_one_batch_suffices) {
  fsdp_error error;
  const char *path = io_write_text("nine.txt", "123456789");
  fsdp_dataset *dataset = open_good(path, 4, 2);
  assert_int_equal(dataset->sample_count, 2);
  fsdp_dataset_close(dataset);
  path = io_write_text("eight.txt", "12345678");
  fsdp_dataset_config config = {.seq = 4, .global_batch = 2, .vocab_size = 256};
  IO_EXPECT(io_dataset_status(path, config, &error), FSDP_ERR_INPUT, &error, "eight.txt", "8 tokens",
            "needs 9", "--seq-length");
  config.seq = INT64_MAX / 2, config.global_batch = 3;
  IO_EXPECT(io_dataset_status(path, config, &error), FSDP_ERR_INPUT, &error, "8 tokens");
}

TEST(bad_paths_are_named) {
  fsdp_error error;
  const char *paths;
  char good[512], both[1100];
  snprintf(good, sizeof good, "%s", io_write_text("good.txt", "some text that is long enough"));
  fsdp_dataset_config config = {.seq = 2, .global_batch = 1, .vocab_size = 256};
#define REFUSED(...) IO_EXPECT(io_dataset_status(paths, config, &error), FSDP_ERR_INPUT, &error, __VA_ARGS__)
  paths = io_path("absent.txt");
  REFUSED("absent.txt", "No such file", "give files");
  paths = io_write("empty.txt", "", 0);
  REFUSED("empty.txt", "is empty");
  mkdir(io_path("sub.txt"), 0700);
  paths = io_path("sub.txt");
  REFUSED("sub.txt", "folder");
  paths = "/dev/null";
  REFUSED("/dev/null", "regular file");
  paths = io_write_text("book.pdf", "x");
  REFUSED("book.pdf", "\".pdf\"", ".txt", ".tok");
  paths = io_write_text("book", "x");
  REFUSED("book", "\"\"", ".txt");
  snprintf(both, sizeof both, "%s,,%s", good, good);
  paths = both;
  REFUSED("empty", "comma");
  snprintf(both, sizeof both, "%s,%s", good, io_path("absent.txt"));
  REFUSED("absent.txt");
  paths = good, config.vocab_size = 255;
  REFUSED("good.txt", "256", "255");
#undef REFUSED
}

// Each epoch visits every sample but the dropped ones once, and epochs and seeds differ.
TEST(an_epoch_is_a_permutation) {
  for (int64_t samples = 1; samples < 70; samples += 4) {
    for (int64_t batch = 1; batch <= samples && batch < 9; batch += 3) {
      fsdp_sampler sampler = {.seed = 5, .sample_count = samples, .global_batch = batch};
      int64_t steps = fsdp_sampler_steps_per_epoch(&sampler), seen[70] = {0};
      assert_int_equal(steps, samples / batch);
      for (int64_t i = 0; i < steps * batch; i++)
        seen[fsdp_sampler_sample(&sampler, 3, i / batch, i % batch)]++;
      int64_t visited = 0;
      for (int64_t i = 0; i < samples; i++) {
        assert_true(seen[i] <= 1);
        visited += seen[i];
      }
      assert_int_equal(visited, steps * batch);
    }
  }
  fsdp_sampler a = {.seed = 0, .sample_count = 1000, .global_batch = 10}, b = a;
  b.seed = 1;
  int same_seed = 0, same_epoch = 0, sorted = 0;
  for (int64_t i = 0; i < 1000; i++) {
    int64_t sample = fsdp_sampler_sample(&a, 0, i / 10, i % 10);
    same_seed += sample == fsdp_sampler_sample(&b, 0, i / 10, i % 10);
    same_epoch += sample == fsdp_sampler_sample(&a, 1, i / 10, i % 10);
    sorted += sample == i;
  }
  assert_true(same_seed < 10 && same_epoch < 10 && sorted < 10); // about one each by chance
}

// The samples of a step are the same however ranks and micro-batches cut them, and each is taken just once.
TEST(no_split_changes_a_step) {
  const int64_t global = 24;
  fsdp_sampler sampler = {.seed = 9, .sample_count = 100, .global_batch = global};
  for (int64_t ranks = 1; ranks <= global; ranks++) {
    for (int64_t batch = 1; ranks * batch <= global; batch++) {
      if (global % (ranks * batch)) continue;
      int64_t taken[100] = {0}, wanted[100] = {0};
      for (int64_t m = 0; m < global / (ranks * batch); m++)
        for (int64_t rank = 0; rank < ranks; rank++)
          for (int64_t i = 0; i < batch; i++) {
            fsdp_sampler_part part = {.ranks = ranks, .rank = rank, .micro_batch = m, .batch = batch};
            taken[fsdp_sampler_sample(&sampler, 1, 2, fsdp_sampler_position(&part, i))]++;
          }
      for (int64_t position = 0; position < global; position++)
        wanted[fsdp_sampler_sample(&sampler, 1, 2, position)]++;
      assert_memory_equal(taken, wanted, sizeof taken);
    }
  }
  fsdp_sampler_part part = {.ranks = 4, .rank = 3, .micro_batch = 2, .batch = 5};
  assert_int_equal(fsdp_sampler_position(&part, 1), (2 * 4 + 3) * 5 + 1);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
