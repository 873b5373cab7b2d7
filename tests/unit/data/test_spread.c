// A step's samples over micro-batches and ranks: each once, and about as much work for each.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/data/packing.h"
#include "runtime/data/spread.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

enum { SAMPLES_MAX = 512 };

static void spread_step(const double *work, int64_t micro_batches, int64_t ranks, int64_t each,
                        int64_t *sample_at) {
  const int64_t count = micro_batches * ranks * each;
  int64_t scratch[FSDP_SPREAD_SCRATCH * SAMPLES_MAX];
  fsdp_spread_work(work, micro_batches, ranks, each, sample_at, scratch);
  bool seen[SAMPLES_MAX] = {false};
  for (int64_t p = 0; p < count; p++) {
    assert_true(sample_at[p] >= 0 && sample_at[p] < count && !seen[sample_at[p]]);
    seen[sample_at[p]] = true;
  }
}

static void spread(const double *work, int64_t groups, int64_t each, int64_t *sample_at) {
  spread_step(work, 1, groups, each, sample_at);
}

// The most work that a group has, over the mean.
static double imbalance(const double *work, int64_t groups, int64_t each, const int64_t *sample_at) {
  double most = 0, all = 0;
  for (int64_t g = 0; g < groups; g++) {
    double load = 0;
    for (int64_t i = 0; i < each; i++) load += work[sample_at ? sample_at[g * each + i] : g * each + i];
    most = fmax(most, load);
    all += load;
  }
  return most * (double)groups / all;
}

TEST(test_by_hand) {
  int64_t sample_at[6];
  // 9 and 8 first; 5 to the second, which has less, then 4 to the first, and of 3 and 1 the first has no
  // room.
  spread((const double[]){1, 9, 3, 8, 4, 5}, 2, 3, sample_at);
  assert_memory_equal(sample_at, ((const int64_t[]){1, 4, 2, 3, 5, 0}), sizeof sample_at);
  // Equal work stays in order.
  spread((const double[]){2, 2, 2, 2, 2, 2}, 3, 2, sample_at);
  assert_memory_equal(sample_at, ((const int64_t[]){0, 3, 1, 4, 2, 5}), sizeof sample_at);
}

// A micro-batch has the same samples on any number of ranks, and each rank about as much of its work.
TEST(test_micro_batches) {
  enum { EACH = 24, MICRO_BATCHES = 5, COUNT = EACH * MICRO_BATCHES };
  double work[COUNT];
  int64_t alone[COUNT], sample_at[COUNT];
  for (int i = 0; i < COUNT; i++) work[i] = (double)(i * 7919 % 101);
  spread_step(work, MICRO_BATCHES, 1, EACH, alone);
  assert_true(imbalance(work, MICRO_BATCHES, EACH, alone) < 1.01);
  for (int64_t ranks = 2; ranks <= EACH; ranks++) {
    if (EACH % ranks) continue;
    spread_step(work, MICRO_BATCHES, ranks, EACH / ranks, sample_at);
    for (int m = 0; m < MICRO_BATCHES; m++) {
      bool in[COUNT] = {false};
      for (int i = 0; i < EACH; i++) in[alone[m * EACH + i]] = true;
      for (int i = 0; i < EACH; i++) assert_true(in[sample_at[m * EACH + i]]);
      if (ranks > EACH / 2) continue;
      double part[COUNT];
      for (int i = 0; i < EACH; i++) part[i] = work[sample_at[m * EACH + i]];
      assert_true(imbalance(part, ranks, EACH / ranks, NULL) < 1.1);
    }
  }
}

static int64_t length_of(const void *context, int64_t document) {
  return ((const int64_t *)context)[document];
}

// The work of rows that are packed from log-normal lengths (mean 300), a thousand steps of 8 ranks.
TEST(test_balance) {
  enum { DOCUMENTS = 200000, SEQ = 2048, STEPS = 1000 };
  float *normal = fsdp_alloc(DOCUMENTS * sizeof *normal);
  int64_t *lengths = fsdp_alloc(DOCUMENTS * sizeof *lengths), sample_at[SAMPLES_MAX];
  fsdp_random_normal(3, 8, 0, DOCUMENTS, 0, 1, normal);
  for (int d = 0; d < DOCUMENTS; d++)
    lengths[d] = (int64_t)fmax(2, round(exp(log(300) - 0.5 + (double)normal[d])));
  fsdp_packing_config config = {
      .seq = SEQ, .document_count = DOCUMENTS, .length = length_of, .context = lengths};
  fsdp_packing *packing;
  fsdp_error error;
  assert_int_equal(fsdp_packing_create(&config, &packing, &error), FSDP_OK);
  int64_t rows = fsdp_packing_count(packing)->rows;
  for (int64_t each = 1; each <= 8; each *= 2) {
    double spread_mean = 0, plain_mean = 0;
    for (int64_t step = 0; step < STEPS; step++) {
      double work[SAMPLES_MAX] = {0};
      for (int64_t p = 0; p < 8 * each; p++) {
        int64_t row = fsdp_random_permute(1, 2, rows, (step * 8 * each + p) % rows);
        fsdp_packing_piece piece;
        for (int64_t i = 0; fsdp_packing_piece_at(packing, row, i, &piece); i++)
          work[p] += (double)piece.slots * (double)(piece.slots + 1) / 2;
      }
      spread(work, 8, each, sample_at);
      spread_mean += imbalance(work, 8, each, sample_at) / STEPS;
      plain_mean += imbalance(work, 8, each, NULL) / STEPS;
    }
    print_message("%lld samples of each of 8 ranks: the most over the mean is %.3f, as drawn %.3f\n",
                  (long long)each, spread_mean, plain_mean);
    assert_true(spread_mean <= plain_mean + 1e-9);
    if (each == 8) assert_true(spread_mean <= 1.05);
  }
  fsdp_packing_destroy(packing);
  free(normal), free(lengths);
}
