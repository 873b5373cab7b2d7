// Data with weights: what a list of paths says, samples that never run from one group into another, and an
// order in which every group has its share of each epoch and every sample of a group comes as often as any
// other.
#include "runtime/base/random.h"
#include "runtime/data/sampler.h"
#include "tests/support/draws.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fsdp_sampler sampler_of(const int64_t *counts, const double *shares, int groups, uint64_t seed) {
  fsdp_sampler sampler = {.seed = seed, .global_batch = 1};
  fsdp_sampler_group list[8] = {{0}};
  fsdp_error error;
  for (int g = 0; g < groups; g++) {
    list[g] = (fsdp_sampler_group){.share = shares[g], .first = sampler.sample_count, .count = counts[g]};
    sampler.sample_count += counts[g];
  }
  IO_OK(fsdp_sampler_mix(&sampler, list, groups, &error), &error);
  return sampler;
}

static int group_of(const int64_t *counts, int64_t sample) {
  int g = 0;
  while (sample >= counts[g]) sample -= counts[g++];
  return g;
}

// By counting: `held` of the samples never come, of an epoch's positions each group has its share to one, and
// over all epochs no sample of a group comes twice more than another.
static void check_order(const int64_t *counts, const double *shares, int groups, int64_t held,
                        uint64_t seed) {
  enum { EPOCHS = 7, MOST = 4000 };
  static int64_t seen[MOST], evaluated[MOST];
  fsdp_sampler sampler = sampler_of(counts, shares, groups, seed);
  fsdp_error error;
  IO_OK(fsdp_sampler_hold_out(&sampler, (double)held, &error), &error);
  memset(seen, 0, sizeof seen), memset(evaluated, 0, sizeof evaluated);
  const int64_t positions = fsdp_sampler_steps_per_epoch(&sampler);
  assert_int_equal(positions, sampler.sample_count - held);
  for (int64_t i = 0; i < held; i++) evaluated[fsdp_sampler_validation_sample(&sampler, i, 0)]++;
  for (int epoch = 0; epoch < EPOCHS; epoch++) {
    int64_t of_group[8] = {0};
    for (int64_t i = 0; i < positions; i++) {
      const int64_t sample = fsdp_sampler_sample(&sampler, epoch, i, 0);
      seen[sample]++, of_group[group_of(counts, sample)]++;
    }
    for (int g = 0; g < groups; g++)
      assert_true(llabs(of_group[g] - (int64_t)(shares[g] * (double)positions)) <= 1);
  }
  for (int64_t first = 0, g = 0; g < groups; first += counts[g++]) {
    int64_t least = INT64_MAX, most = 0, held_here = 0;
    for (int64_t i = first; i < first + counts[g]; i++) {
      assert_true(evaluated[i] <= 1 && !(evaluated[i] && seen[i]));
      held_here += evaluated[i];
      if (evaluated[i]) continue;
      least = seen[i] < least ? seen[i] : least;
      most = seen[i] > most ? seen[i] : most;
    }
    assert_true(most <= least + 1);
    assert_true(llabs(held_here - held * counts[g] / sampler.sample_count) <= 1);
  }
}

TEST(every_group_has_its_share) {
  check_order((int64_t[]){100, 900}, (double[]){0.7, 0.3}, 2, 0, 5);
  check_order((int64_t[]){100, 900}, (double[]){0.7, 0.3}, 2, 50, 5);
  for (int trial = 0; trial < test_draws(30, 8); trial++) {
    int64_t counts[5], held = 0, sum = 0;
    double shares[5], all = 0;
    uint32_t words[4];
    const int groups = 1 + trial % 5;
    for (int g = 0; g < groups; g++) {
      fsdp_random_words(3, (uint64_t)trial, (uint64_t)g, words);
      counts[g] = 12 + words[0] % 600, shares[g] = 1 + words[1] % 9;
      all += shares[g], sum += counts[g];
    }
    for (int g = 0; g < groups; g++) shares[g] /= all;
    if (trial % 2) held = sum / 5;
    check_order(counts, shares, groups, held, (uint64_t)trial);
  }
}

// Orders are of the seed, and groups of like sizes are not permuted alike.
TEST(seeds_and_groups_differ) {
  const int64_t counts[] = {500, 500};
  const double shares[] = {0.5, 0.5};
  fsdp_sampler a = sampler_of(counts, shares, 2, 1), b = sampler_of(counts, shares, 2, 2);
  int same = 0, passes = 0;
  int64_t order[2][500], next[2] = {0};
  for (int64_t i = 0; i < 1000; i++) {
    const int64_t sample = fsdp_sampler_sample(&a, 0, i, 0);
    same += sample == fsdp_sampler_sample(&b, 0, i, 0);
    passes += sample == fsdp_sampler_sample(&a, 1, i, 0);
    order[sample / 500][next[sample / 500]++] = sample % 500;
  }
  assert_true(same < 20 && passes < 20);
  assert_true(memcmp(order[0], order[1], sizeof order[0]) != 0);
}

TEST(weights_that_leave_nothing_are_refused) {
  fsdp_sampler sampler = {.sample_count = 10, .global_batch = 1};
  fsdp_sampler_group groups[FSDP_SAMPLER_GROUPS_MAX + 1] = {{.share = 0.99, .count = 5},
                                                            {.share = 0.01, .first = 5, .count = 5}};
  fsdp_error error;
  IO_EXPECT(fsdp_sampler_mix(&sampler, groups, 2, &error), FSDP_ERR_OPTION, &error, "1%", "none of the 10");
  IO_EXPECT(fsdp_sampler_mix(&sampler, groups, FSDP_SAMPLER_GROUPS_MAX + 1, &error), FSDP_ERR_OPTION, &error,
            "at most 64");
  groups[0].share = groups[1].share = 0.5;
  groups[0].count = 1, groups[1].first = 1, groups[1].count = 9;
  IO_OK(fsdp_sampler_mix(&sampler, groups, 2, &error), &error);
  IO_EXPECT(fsdp_sampler_hold_out(&sampler, 6, &error), FSDP_ERR_OPTION, &error, "none of the 1 of data 1");
  // A document of many rows is held out whole; as a stream it is divided.
  fsdp_sampler whole = {.sample_count = 100, .global_batch = 4};
  IO_OK(fsdp_sampler_hold_out_last(&whole, (int64_t[]){96}, &error), &error);
  IO_EXPECT(fsdp_sampler_hold_out_last(&whole, (int64_t[]){97}, &error), FSDP_ERR_OPTION, &error,
            "those of whole records", "--packing stream");
}

TEST_IN_FOLDER(paths_have_weights) {
  fsdp_data_paths paths;
  fsdp_error error;
  for (const char *name = "a.txt b1.txt b2.txt c:3.txt d.txt:4"; *name; name += *name == ' ') {
    char one[16];
    snprintf(one, sizeof one, "%.*s", (int)strcspn(name, " "), name);
    io_write_text(one, "x");
    name += strlen(one);
  }
  IO_OK(fsdp_data_paths_find("data", "a.txt:6,b*.txt:1.5e0,c:3.txt:0.5", &paths, &error), &error);
  const char *const names[] = {"a.txt", "b*.txt", "c:3.txt"};
  const double shares[] = {0.75, 0.1875, 0.0625};
  const int firsts[] = {0, 1, 3}, counts[] = {1, 2, 1};
  assert_int_equal(paths.group_count, 3);
  for (int g = 0; g < 3; g++) {
    assert_string_equal(paths.groups[g].name, names[g]);
    assert_true(paths.groups[g].share == shares[g]);
    assert_int_equal(paths.groups[g].first, firsts[g]);
    assert_int_equal(paths.groups[g].count, counts[g]);
  }
  assert_string_equal(paths.files[2], "b2.txt");
  fsdp_data_paths_destroy(&paths);
  // The path of a file, whatever is in it.
  IO_OK(fsdp_data_paths_find("data", "d.txt:4,c:3.txt", &paths, &error), &error);
  assert_int_equal(paths.group_count, 0);
  assert_string_equal(paths.files[0], "d.txt:4");
  fsdp_data_paths_destroy(&paths);
  static const char *const wrong[][2] = {{"a.txt:0", "above 0"},
                                         {"a.txt:-1", "weight of a.txt"},
                                         {"a.txt:1e999", "above 0"},
                                         {"a.txt:1,b1.txt", "b1.txt has no weight"},
                                         {"a.txt,b1.txt:2", "b1.txt has a weight"}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    IO_EXPECT(fsdp_data_paths_find("data", wrong[i][0], &paths, &error), FSDP_ERR_OPTION, &error, "--data",
              wrong[i][1]);
    fsdp_data_paths_destroy(&paths);
  }
}

// Every sample has the bytes of one group alone, where without weights one would run over the border.
TEST_IN_FOLDER(samples_stay_in_their_group) {
  enum { SEQ = 4 };
  io_write_text("a.txt", "aaaaaaaaaaaaaaa"); // 15: three samples, and two tokens that none has
  io_write_text("b1.txt", "bbb");
  io_write_text("b2.txt", "bbbbbb"); // 9 together: two samples
  io_write_text("none.txt", "cc");
  fsdp_dataset_config config = {.seq = SEQ, .global_batch = 1, .vocab_size = 256};
  fsdp_dataset *dataset = io_dataset("a.txt:1,b*.txt:3", config);
  assert_int_equal(dataset->sample_count, 5);
  assert_int_equal(dataset->group_count, 2);
  const fsdp_dataset_group last = fsdp_dataset_group_at(dataset, 1);
  assert_true(last.first_sample == 3 && last.sample_count == 2 && last.share == 0.75);
  for (int64_t i = 0; i < 5; i++) {
    int32_t tokens[SEQ], targets[SEQ];
    io_fill(dataset, i, tokens, targets);
    for (int k = 0; k < SEQ; k++) assert_true(tokens[k] == (i < 3 ? 'a' : 'b') && targets[k] == tokens[k]);
  }
  const uint64_t print = fsdp_dataset_fingerprint(dataset);
  fsdp_dataset_close(dataset);
  dataset = io_dataset("a.txt:1,b*.txt:1", config); // other weights are another order of samples
  assert_true(fsdp_dataset_fingerprint(dataset) != print);
  fsdp_dataset_close(dataset);
  fsdp_error error;
  IO_EXPECT(io_dataset_status("a.txt:1,none.txt:1", config, &error), FSDP_ERR_INPUT, &error, "none.txt",
            "2 tokens");
}
