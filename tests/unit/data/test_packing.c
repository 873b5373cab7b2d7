// Rows of documents against best-fit decreasing written out plainly, and how full they become.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/data/packing.h"
#include "tests/support/draws.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static int64_t length_of(const void *context, int64_t document) {
  return ((const int64_t *)context)[document];
}

static fsdp_packing *pack(const int64_t *lengths, int64_t count, int64_t seq, fsdp_long_documents longer,
                          bool alone) {
  fsdp_packing_config config = {.seq = seq,
                                .longer = longer,
                                .alone = alone,
                                .document_count = count,
                                .length = length_of,
                                .context = lengths};
  fsdp_packing *packing;
  fsdp_error error;
  assert_int_equal(fsdp_packing_create(&config, &packing, &error), FSDP_OK);
  return packing;
}

static int descending(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? 1 : x > y ? -1 : 0;
}

// Rows that best-fit decreasing needs: every piece looks through all rows.
static int64_t plain_rows(const int64_t *lengths, int64_t count, int64_t seq, fsdp_long_documents longer) {
  int64_t capacity = 1, pieces = 0, rows = 0;
  for (int64_t d = 0; d < count; d++) capacity += (lengths[d] - 1) / seq + 1;
  int64_t *slots = fsdp_alloc((size_t)capacity * sizeof *slots), *room = fsdp_alloc((size_t)capacity * 8);
  for (int64_t d = 0; d < count; d++) {
    int64_t left = lengths[d] - 1;
    if (left > seq && longer == FSDP_LONG_DROP) continue;
    if (left > seq && longer == FSDP_LONG_CUT) left = seq;
    for (; left > 0; left -= seq) slots[pieces++] = left < seq ? left : seq;
  }
  qsort(slots, (size_t)pieces, sizeof *slots, descending);
  for (int64_t i = 0; i < pieces; i++) {
    int64_t best = -1;
    for (int64_t r = 0; r < rows; r++)
      if (room[r] >= slots[i] && (best < 0 || room[r] < room[best])) best = r;
    if (best < 0) room[best = rows++] = seq;
    room[best] -= slots[i];
  }
  free(slots), free(room);
  return rows;
}

// Every token that is kept is a target once, in pieces of one document each that fit their rows.
static void check_pieces(const fsdp_packing *packing, const int64_t *lengths, int64_t count, int64_t seq,
                         fsdp_long_documents longer, bool alone) {
  int64_t *next = fsdp_alloc_zeroed((size_t)count, sizeof *next), slots = 0, pieces = 0, last = -1;
  const fsdp_packing_counts *counts = fsdp_packing_count(packing);
  for (int64_t row = 0; row < counts->rows; row++) {
    fsdp_packing_piece piece;
    int64_t used = 0, longest = seq;
    for (int64_t i = 0; fsdp_packing_piece_at(packing, row, i, &piece); i++) {
      assert_true(piece.slots > 0 && piece.slots <= longest && piece.document < count);
      assert_true(piece.first % seq == 0 && piece.first + piece.slots < lengths[piece.document]);
      next[piece.document] += piece.slots;
      used += piece.slots;
      longest = piece.slots;
      pieces++;
      if (alone && piece.slots < seq) assert_true(i == 0 && piece.document > last);
      if (piece.slots < seq) last = piece.document;
    }
    assert_true(used > 0 && used <= seq);
    slots += used;
  }
  assert_int_equal(slots, counts->slots);
  assert_int_equal(pieces, counts->pieces);
  int64_t split = 0, cut = 0, dropped = 0, lost = 0;
  for (int64_t d = 0; d < count; d++) {
    int64_t all = lengths[d] - 1, kept = all <= seq || longer == FSDP_LONG_SPLIT ? all
                                         : longer == FSDP_LONG_CUT               ? seq
                                                                                 : 0;
    assert_int_equal(next[d], kept);
    split += all > seq && longer == FSDP_LONG_SPLIT;
    cut += all > seq && longer == FSDP_LONG_CUT;
    dropped += all > seq && longer == FSDP_LONG_DROP;
    lost += kept == all ? 0 : kept == 0 ? all + 1 : all - kept;
  }
  assert_true(split == counts->split && cut == counts->cut && dropped == counts->dropped);
  assert_int_equal(lost, counts->lost_tokens);
  free(next);
}

static uint32_t word(uint64_t seed, int64_t index) {
  uint32_t words[4];
  fsdp_random_words(seed, 5, (uint64_t)index, words);
  return words[0];
}

TEST(test_best_fit_decreasing) {
  for (int n = 0; n < test_draws(200, 40); n++) {
    uint64_t seed = 100 + (uint64_t)n;
    int64_t count = 1 + word(seed, 0) % 400, seq = 1 + word(seed, 1) % (n % 2 ? 40 : 300);
    int64_t most = 1 + word(seed, 2) % (uint32_t)(2 * seq), *lengths = fsdp_alloc((size_t)count * 8);
    for (int64_t d = 0; d < count; d++) lengths[d] = 1 + word(seed, 3 + d) % (uint32_t)most;
    for (int longer = FSDP_LONG_SPLIT; longer <= FSDP_LONG_DROP; longer++)
      for (int alone = 0; alone < 2; alone++) {
        fsdp_long_documents how = (fsdp_long_documents)longer;
        fsdp_packing *packing = pack(lengths, count, seq, how, alone);
        check_pieces(packing, lengths, count, seq, how, alone);
        if (!alone) assert_int_equal(fsdp_packing_count(packing)->rows, plain_rows(lengths, count, seq, how));
        fsdp_packing_destroy(packing);
      }
    free(lengths);
  }
}

// Of rows with equal room the first one is taken, and of documents of one length the first.
TEST(test_ties) {
  const int64_t lengths[] = {5, 5, 3, 3, 3, 1, 2};
  const int64_t expected[3][3] = {{0, 2, -1}, {1, 3, -1}, {4, 6, -1}};
  fsdp_packing *packing = pack(lengths, 7, 6, FSDP_LONG_SPLIT, false);
  assert_int_equal(fsdp_packing_count(packing)->rows, 3);
  for (int64_t row = 0; row < 3; row++)
    for (int64_t i = 0; i < 3; i++) {
      fsdp_packing_piece piece;
      bool found = fsdp_packing_piece_at(packing, row, i, &piece);
      assert_int_equal(found ? piece.document : -1, expected[row][i]);
    }
  fsdp_packing_destroy(packing);
}

// Lengths as conversations have them: log-normal, of a mean and a deviation of their logarithms.
TEST(test_fill) {
  static const double means[] = {120, 300, 700}, deviations[] = {0.9, 1.0, 0.9};
  const int64_t count = 200000;
  float *normal = fsdp_alloc((size_t)count * sizeof *normal);
  int64_t *lengths = fsdp_alloc((size_t)count * sizeof *lengths);
  for (int i = 0; i < 3; i++) {
    double sd = deviations[i], centre = log(means[i]) - sd * sd / 2;
    fsdp_random_normal(3, 8, 0, count, 0, 1, normal);
    for (int64_t d = 0; d < count; d++)
      lengths[d] = (int64_t)fmax(2, round(exp(centre + sd * (double)normal[d])));
    for (int64_t seq = 2048; seq <= 4096; seq *= 2) {
      fsdp_packing *packing = pack(lengths, count, seq, FSDP_LONG_SPLIT, false);
      const fsdp_packing_counts *counts = fsdp_packing_count(packing);
      double fill = (double)counts->slots / (double)(counts->rows * seq);
      print_message("mean %g, rows of %lld: %.4f%% filled\n", means[i], (long long)seq, 100 * fill);
      if (fill < 0.999) fail_msg("mean %g, rows of %lld: fill %.5f", means[i], (long long)seq, fill);
      fsdp_packing_destroy(packing);
    }
  }
  free(normal), free(lengths);
}

static int64_t short_length_of(const void *context, int64_t document) {
  return ((const uint16_t *)context)[document];
}

static int64_t resident_peak_bytes(void) {
  struct rusage usage;
  assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
  return (int64_t)usage.ru_maxrss * 1024;
}

// Ten million documents take less than 10 s of a core and 200 MB. Runs first: the peak is the process's.
TEST(test_many_documents) {
  if (test_sanitized()) return;
  enum { DOCUMENTS = 10000000, DRAWN = 1 << 16, SEQ = 2048 };
  float *normal = fsdp_alloc(DRAWN * sizeof *normal);
  uint16_t *lengths = fsdp_alloc(DOCUMENTS * sizeof *lengths);
  fsdp_random_normal(3, 8, 0, DRAWN, 0, 1, normal);
  for (int64_t d = 0; d < DOCUMENTS; d++) {
    double length = exp(log(300) - 0.5 + (double)normal[(uint64_t)d * 40503 % DRAWN]);
    lengths[d] = (uint16_t)fmin(fmax(2, round(length)), 60000);
  }
  int64_t before = resident_peak_bytes();
  clock_t began = clock();
  fsdp_packing_config config = {
      .seq = SEQ, .document_count = DOCUMENTS, .length = short_length_of, .context = lengths};
  fsdp_packing *packing;
  fsdp_error error;
  assert_int_equal(fsdp_packing_create(&config, &packing, &error), FSDP_OK);
  double seconds = (double)(clock() - began) / CLOCKS_PER_SEC;
  int64_t added = resident_peak_bytes() - before;
  const fsdp_packing_counts *counts = fsdp_packing_count(packing);
  print_message("10 million documents: %lld rows, %.4f%% filled, %.1f s, %lld MB\n", (long long)counts->rows,
                100 * (double)counts->slots / (double)(counts->rows * SEQ), seconds,
                (long long)(added / 1000000));
  assert_true((double)counts->slots >= 0.999 * (double)(counts->rows * SEQ));
  assert_true(seconds < 10 && added < 200000000);
  fsdp_packing_destroy(packing);
  free(normal), free(lengths);
}
