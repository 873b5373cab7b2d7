// The numbers that a step is fed: its learning rate by the step, corrections and random counter by the
// update, in which a skipped step does not count. The rows of tokens that it is fed on a mesh.
#include "launcher/train/feed.h"
#include "runtime/base/check.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double beta1 = 0.9, beta2 = 0.999999;

static fsdp_feed *create_feed(fsdp_dataset **dataset, float norm_limit) {
  fsdp_error error;
  fsdp_dataset_config data = {.seq = 16, .global_batch = 2, .vocab_size = 256};
  if (fsdp_dataset_open(&data, dataset, &error) != FSDP_OK) fail_msg("%s", error.message);
  fsdp_feed *feed = fsdp_alloc_zeroed(1, sizeof *feed);
  fsdp_feed_config config = {.dataset = *dataset,
                             .sampler = {.sample_count = (*dataset)->sample_count, .global_batch = 2},
                             .ranks = 1,
                             .mesh = fsdp_mesh_of(1, 1),
                             .micro_batches = 1,
                             .hyper = {.beta1 = beta1, .beta2 = beta2},
                             .norm_limit = norm_limit,
                             .rate = {.schedule = FSDP_LR_LINEAR, .lr = 1, .total_steps = 100}};
  config.rows = fsdp_rows_of(&config.mesh, 2, 16, 0, 0);
  fsdp_feed_create(feed, &config);
  return feed;
}

static void expect_fed(fsdp_feed *feed, int64_t step, int64_t update) {
  float scalars[FSDP_SCALAR_COUNT], count;
  fsdp_feed_step(feed, scalars, &count);
  assert_true(scalars[FSDP_SCALAR_STEP] == (float)update);
  assert_true(scalars[FSDP_SCALAR_CORRECTION1] == (float)(1 - pow(beta1, (double)update)));
  assert_true(scalars[FSDP_SCALAR_CORRECTION2] == (float)(1 - pow(beta2, (double)update)));
  assert_true(fabsf(scalars[FSDP_SCALAR_LR] - (1 - (float)(step - 1) / 100)) < 0.02f); // falls with the step
  assert_true(count == 32);
  int32_t tokens[32], targets[32];
  fsdp_feed_batch(feed, (int32_t *[FSDP_INPUT_COUNT]){tokens, targets});
}

TEST(test_skipped_steps_do_not_count) {
  fsdp_dataset *dataset;
  fsdp_feed *feed = create_feed(&dataset, 10);
  static const struct {
    float norm;
    bool skips;
  } steps[] = {{1, false},       {11, true}, {NAN, true}, {10, false},
               {INFINITY, true}, {2, false}, {3, false},  {-INFINITY, false}};
  int64_t update = 1;
  for (int64_t step = 1; step <= 7; step++) {
    expect_fed(feed, step, update);
    fsdp_feed_publish(feed, 1, steps[step - 1].norm);
    assert_int_equal(fsdp_feed_skips(feed, steps[step - 1].norm), steps[step - 1].skips);
    update += !steps[step - 1].skips;
    assert_int_equal(feed->updates, update - 1);
  }
  fsdp_dataset_close(dataset);
  free(feed);
}

// Without a limit (no clipping) nothing is skipped; behind a checkpoint both counts continue.
TEST(test_seek) {
  fsdp_dataset *dataset;
  fsdp_feed *feed = create_feed(&dataset, 0);
  fsdp_feed_seek(feed, 40, 33, 0);
  for (int64_t i = 0; i < 3; i++) {
    expect_fed(feed, 41 + i, 34 + i);
    fsdp_feed_publish(feed, NAN, NAN);
    assert_false(fsdp_feed_skips(feed, NAN));
  }
  fsdp_dataset_close(dataset);
  free(feed);
}

// A run that continues behind step 4 reads what one that never stopped reads, micro-batch by micro-batch.
TEST(test_seek_reads_on) {
  fsdp_dataset *datasets[2];
  fsdp_feed *whole = create_feed(&datasets[0], 0), *rest = create_feed(&datasets[1], 0);
  whole->config.micro_batches = rest->config.micro_batches = 3;
  whole->config.sampler.global_batch = rest->config.sampler.global_batch = 6;
  fsdp_feed_seek(rest, 4, 4, 0);
  for (int step = 0; step < 6; step++) {
    for (int micro_batch = 0; micro_batch < 3; micro_batch++) {
      int32_t tokens[2][32], targets[2][32];
      fsdp_feed_batch(whole, (int32_t *[FSDP_INPUT_COUNT]){tokens[0], targets[0]});
      if (step < 4) continue;
      fsdp_feed_batch(rest, (int32_t *[FSDP_INPUT_COUNT]){tokens[1], targets[1]});
      assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
      assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
    }
  }
  for (int i = 0; i < 2; i++) fsdp_dataset_close(datasets[i]);
  free(whole);
  free(rest);
}

// ---- Several ranks

enum { SEQ = 11, BATCH = 3, MICRO_BATCHES = 2, ROWS_MAX = BATCH * 2 * SEQ };

static const fsdp_mesh_axis axes[] = {{"context", 2}, {"fsdp", 2}, {"tensor", 3}, {"data", 2}};

static fsdp_mesh mesh_of_axes(void) {
  fsdp_mesh mesh = {0};
  for (int a = 0; a < 4; a++) assert_true(fsdp_mesh_add(&mesh, axes[a].name, axes[a].size));
  return mesh;
}

// The batch lies over fsdp and data, the sequence over context, its pieces over tensor.
static void create_of_rank(fsdp_feed *feed, const fsdp_dataset *dataset, int rank) {
  const int64_t ranks = 4, samples = dataset->sample_count;
  fsdp_feed_config config = {
      .dataset = dataset,
      .eval_dataset = dataset,
      .sampler = {.sample_count = samples, .global_batch = BATCH * MICRO_BATCHES * ranks, .seed = 5},
      .eval_sampler = {.sample_count = samples, .global_batch = BATCH * ranks, .held_out = BATCH * ranks + 1},
      .ranks = ranks,
      .mesh = mesh_of_axes(),
      .world_rank = rank,
      .micro_batches = MICRO_BATCHES};
  fsdp_mesh *mesh = &config.mesh;
  config.rank = fsdp_mesh_group_of(mesh, fsdp_mesh_axes(mesh, "fsdp"), rank).rank * 2 +
                fsdp_mesh_group_of(mesh, fsdp_mesh_axes(mesh, "data"), rank).rank;
  config.rows =
      fsdp_rows_of(mesh, BATCH, SEQ, fsdp_mesh_axes(mesh, "context"), fsdp_mesh_axes(mesh, "tensor"));
  fsdp_feed_create(feed, &config);
}

// A rank's rows are those of its sequences at the positions that rows.h says. Returns how many targets count.
static int64_t expect_rows(const fsdp_feed *feed, const fsdp_dataset *dataset, const int64_t *samples,
                           const int32_t *tokens, const int32_t *targets) {
  const fsdp_rows *rows = &feed->config.rows;
  int64_t counted = 0;
  for (int64_t i = 0; i < BATCH; i++) {
    int32_t whole_tokens[SEQ], whole_targets[SEQ];
    io_fill(dataset, samples[i], whole_tokens, whole_targets);
    for (int64_t index = 0; index < rows->local_seq; index++) {
      int64_t row = fsdp_rows_row(rows, i, index);
      int64_t position = fsdp_rows_position(rows, &feed->config.mesh, feed->config.world_rank, index);
      assert_int_equal(tokens[row], position < SEQ ? whole_tokens[position] : 0);
      assert_int_equal(targets[row], position < SEQ ? whole_targets[position] : FSDP_TARGET_IGNORED);
      counted += targets[row] != FSDP_TARGET_IGNORED;
    }
  }
  return counted;
}

// Over the ranks that have different tokens the counts add up to all targets of the step.
TEST(test_rows_of_ranks) {
  fsdp_error error;
  fsdp_dataset *dataset;
  const fsdp_dataset_config data = {.seq = SEQ, .global_batch = 1, .vocab_size = 256};
  if (fsdp_dataset_open(&data, &dataset, &error) != FSDP_OK) fail_msg("%s", error.message);
  const fsdp_mesh mesh = mesh_of_axes();
  int32_t tokens[ROWS_MAX], targets[ROWS_MAX];
  double step_count = 0;
  int64_t eval_counts[2] = {0};
  for (int rank = 0; rank < 24; rank++) {
    fsdp_feed *feed = fsdp_alloc_zeroed(1, sizeof *feed);
    create_of_rank(feed, dataset, rank);
    assert_true(feed->config.rows.local_seq * 2 >= SEQ && feed->config.rows.local_seq * BATCH <= ROWS_MAX);
    float scalars[FSDP_SCALAR_COUNT], count;
    fsdp_feed_step(feed, scalars, &count);
    int64_t counted = 0, samples[BATCH];
    for (int64_t m = 0; m < MICRO_BATCHES; m++) {
      for (int64_t i = 0; i < BATCH; i++)
        samples[i] =
            fsdp_sampler_sample(&feed->config.sampler, 0, 0, (m * 4 + feed->config.rank) * BATCH + i);
      fsdp_feed_batch(feed, (int32_t *[FSDP_INPUT_COUNT]){tokens, targets});
      counted += expect_rows(feed, dataset, samples, tokens, targets);
    }
    assert_true(count == (float)counted);
    if (fsdp_mesh_group_of(&mesh, fsdp_mesh_axes(&mesh, "tensor"), rank).rank == 0) step_count += count;
    // The second batch of an evaluation has one sample.
    for (feed->eval_step = 0; feed->eval_step < 2; feed->eval_step++) {
      eval_counts[feed->eval_step] += fsdp_feed_eval_targets(feed, feed->eval_step);
      feed->eval_target_count = 17; // of all ranks, which fsdp_feed_evaluate asks
      fsdp_feed_step(feed, scalars, &count);
      assert_true(count == 17);
      for (int64_t i = 0; i < BATCH; i++)
        samples[i] = fsdp_sampler_validation_sample(&feed->config.eval_sampler, feed->eval_step,
                                                    feed->config.rank * BATCH + i);
      fsdp_feed_batch(feed, (int32_t *[FSDP_INPUT_COUNT]){tokens, targets});
      expect_rows(feed, dataset, samples, tokens, targets);
    }
    free(feed);
  }
  // Six ranks each have the same sequences.
  assert_int_equal(eval_counts[0], 6 * BATCH * 4 * SEQ);
  assert_int_equal(eval_counts[1], 6 * SEQ);
  assert_true(step_count == BATCH * MICRO_BATCHES * 4 * SEQ); // every target of the built-in text counts
  fsdp_dataset_close(dataset);
}

// ---- Packed rows, spread over ranks by the work of attention

enum { PACKED_SEQ = 32, STEP_SAMPLES = 24, STEPS = 3, PACKED_ROWS = STEP_SAMPLES * STEPS };

typedef struct packed_row {
  int32_t step, tokens[PACKED_SEQ], targets[PACKED_SEQ];
} packed_row;

static int compare_rows(const void *a, const void *b) {
  return memcmp(a, b, sizeof(packed_row));
}

// Texts of 2 to 60 bytes, some of which are longer than a row.
static void write_documents(const char *path) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  for (int d = 0; d < 400; d++) {
    fputs("{\"text\": \"", file);
    for (int i = 0; i < 2 + d * 37 % 59; i++) fputc('a' + (d * 7 + d / 26 * i + i * i) % 26, file);
    fputs("\"}\n", file);
  }
  fclose(file);
}

// All rows that `ranks` ranks are fed in a few steps, in an order of their own.
static void feed_ranks(const fsdp_dataset *dataset, int ranks, int batch, packed_row rows[PACKED_ROWS]) {
  int count = 0;
  for (int rank = 0; rank < ranks; rank++) {
    fsdp_feed *feed = fsdp_alloc_zeroed(1, sizeof *feed);
    fsdp_feed_config config = {
        .dataset = dataset,
        .sampler = {.seed = 3, .sample_count = dataset->sample_count, .global_batch = STEP_SAMPLES},
        .ranks = ranks,
        .rank = rank,
        .mesh = fsdp_mesh_of(1, ranks),
        .world_rank = rank,
        .micro_batches = STEP_SAMPLES / (ranks * batch),
        .spreads = true};
    config.rows = fsdp_rows_of(&config.mesh, batch, PACKED_SEQ, 0, 0);
    fsdp_feed_create(feed, &config);
    for (int m = 0; m < STEPS * config.micro_batches; m++) {
      int32_t tokens[STEP_SAMPLES * PACKED_SEQ], targets[STEP_SAMPLES * PACKED_SEQ];
      fsdp_feed_batch(feed, (int32_t *[FSDP_INPUT_COUNT]){tokens, targets});
      for (int i = 0; i < batch; i++, count++) {
        rows[count].step = m / (int)config.micro_batches;
        memcpy(rows[count].tokens, tokens + i * PACKED_SEQ, sizeof rows[count].tokens);
        memcpy(rows[count].targets, targets + i * PACKED_SEQ, sizeof rows[count].targets);
      }
    }
    fsdp_feed_destroy(feed);
    free(feed);
  }
  assert_int_equal(count, PACKED_ROWS);
  qsort(rows, PACKED_ROWS, sizeof *rows, compare_rows);
}

// The samples of each step are the same ones on 1 to 8 ranks, in micro-batches of 1 and of more.
TEST(test_same_samples) {
  char path[] = "/tmp/fsdp_feed_XXXXXX.jsonl";
  const int file = mkstemps(path, 6);
  assert_true(file >= 0);
  close(file);
  write_documents(path);
  fsdp_error error;
  fsdp_data_paths paths;
  fsdp_dataset *dataset;
  assert_int_equal(fsdp_data_paths_find("data", path, &paths, &error), FSDP_OK);
  const fsdp_dataset_config data = {.files = &paths,
                                    .seq = PACKED_SEQ,
                                    .global_batch = STEP_SAMPLES,
                                    .vocab_size = 256,
                                    .packing = FSDP_PACKING_BEST_FIT};
  if (fsdp_dataset_open(&data, &dataset, &error) != FSDP_OK) fail_msg("%s", error.message);
  packed_row *expected = fsdp_alloc_zeroed(PACKED_ROWS, sizeof *expected);
  packed_row *found = fsdp_alloc_zeroed(PACKED_ROWS, sizeof *found);
  feed_ranks(dataset, 1, STEP_SAMPLES, expected);
  for (int i = 1; i < PACKED_ROWS; i++) // no two are alike, so that each is missed
    assert_true(compare_rows(&expected[i - 1], &expected[i]) < 0);
  for (int ranks = 1; ranks <= 8; ranks++)
    for (int batch = 1; batch <= STEP_SAMPLES / ranks; batch++) {
      if (STEP_SAMPLES % (ranks * batch) != 0) continue;
      feed_ranks(dataset, ranks, batch, found);
      assert_memory_equal(found, expected, PACKED_ROWS * sizeof *found);
    }
  free(expected), free(found);
  fsdp_dataset_close(dataset);
  fsdp_data_paths_destroy(&paths);
  unlink(path);
}
