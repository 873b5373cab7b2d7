// Learned positions and their table's gradient against plain loops in double.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/kernel_case.h"
#include "tests/support/unit_test.h"

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16};

typedef struct shape {
  int64_t B, T, C, M, first;
} shape;
// The whole table, its beginning, its middle and its end.
static const shape shapes[] = {
    {1, 1, 1, 1, 0}, {3, 17, 33, 17, 0}, {2, 5, 80, 40, 0}, {4, 9, 19, 40, 7}, {1, 6, 257, 10, 4}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static fsdp_op_attrs attrs_of(const shape *s) {
  return (fsdp_op_attrs){
      .batch = s->B, .seq = s->T, .channels = s->C, .positions = s->M, .first_index = s->first};
}

TEST(test_add_positions) {
  for (int d = 0; d < 4; d++) // table and stream each in both dtypes
    for (int i = 0; i < SHAPES; i++) {
      const shape *s = &shapes[i];
      kernel_case c = kernel_case_of(FSDP_OP_ADD_POSITIONS, attrs_of(s), kernel_tolerance(dtypes[d % 2]));
      double *weight = kernel_case_input(&c, dtypes[d / 2], s->M * s->C, FSDP_READ, NULL);
      double *h = kernel_case_input(&c, dtypes[d % 2], s->B * s->T * s->C, FSDP_UPDATE, NULL);
      for (int64_t b = 0; b < s->B; b++)
        for (int64_t t = 0; t < s->T; t++)
          for (int64_t k = 0; k < s->C; k++)
            h[(b * s->T + t) * s->C + k] += weight[(s->first + t) * s->C + k];
      c.parts[0] = (kernel_range){s->first * s->C, s->T * s->C};
      kernel_case_check(&c);
    }
}

TEST(test_positions_backward) {
  for (int d = 0; d < 4; d++)
    for (int update = 0; update < 2; update++)
      for (int i = 0; i < SHAPES; i++) {
        const shape *s = &shapes[i];
        kernel_case c =
            kernel_case_of(FSDP_OP_POSITIONS_BACKWARD, attrs_of(s), kernel_tolerance(dtypes[d > 0]));
        double *d_h = kernel_case_input(&c, dtypes[d / 2], s->B * s->T * s->C, FSDP_READ, NULL);
        double *d_weight = kernel_case_result(&c, update, dtypes[d % 2], s->M * s->C);
        for (int64_t b = 0; b < s->B; b++)
          for (int64_t t = 0; t < s->T; t++)
            for (int64_t k = 0; k < s->C; k++)
              d_weight[(s->first + t) * s->C + k] += d_h[(b * s->T + t) * s->C + k];
        if (update) c.parts[1] = (kernel_range){s->first * s->C, s->T * s->C};
        kernel_case_check(&c);
      }
}

// Positions count from the start of a document, of which a sequence has several; the rows are those of its
// positions from `first` on.
static double *draw_starts(const shape *s, int64_t positions) {
  double *starts = fsdp_alloc((size_t)(s->B * positions) * sizeof *starts);
  for (int64_t i = 0; i < s->B * positions; i++) {
    uint32_t words[4];
    fsdp_random_words(3, 4, (uint64_t)i, words);
    starts[i] = i % positions == 0 || words[0] % 4 == 0 ? (double)(i % positions) : starts[i - 1];
  }
  return starts;
}

TEST(test_documents) {
  for (int update = 0; update < 2; update++)
    for (int i = 0; i < SHAPES; i++) {
      const shape *s = &shapes[i];
      fsdp_op_attrs attrs = attrs_of(s);
      attrs.documents = s->first + s->T + 3;
      double *starts = draw_starts(s, attrs.documents);
      kernel_case f = kernel_case_of(FSDP_OP_ADD_POSITIONS, attrs, 1e-6);
      kernel_case b = kernel_case_of(FSDP_OP_POSITIONS_BACKWARD, attrs, 1e-5);
      double *weight = kernel_case_input(&f, FSDP_F32, s->M * s->C, FSDP_READ, NULL);
      double *h = kernel_case_input(&f, FSDP_F32, s->B * s->T * s->C, FSDP_UPDATE, NULL);
      double *d_h = kernel_case_input(&b, FSDP_F32, s->B * s->T * s->C, FSDP_READ, NULL);
      double *d_weight = kernel_case_result(&b, update, FSDP_F32, s->M * s->C);
      kernel_case_input(&f, FSDP_I32, s->B * attrs.documents, FSDP_READ, starts);
      kernel_case_input(&b, FSDP_I32, s->B * attrs.documents, FSDP_READ, starts);
      for (int64_t n = 0; n < s->B * s->T; n++) {
        int64_t at = s->first + n % s->T;
        int64_t position = at - (int64_t)starts[n / s->T * attrs.documents + at];
        for (int64_t k = 0; k < s->C; k++) {
          h[n * s->C + k] += weight[position * s->C + k];
          d_weight[position * s->C + k] += d_h[n * s->C + k];
        }
      }
      kernel_case_check(&f);
      kernel_case_check(&b);
      free(starts);
    }
}

// A bf16 table's gradient is summed in fp32 and rounded once: 256 + 1 + 1 is 258, and 256 if each sum is
// rounded.
TEST(test_sum_is_rounded_once) {
  const double terms[] = {256, 1, 1};
  fsdp_op_attrs attrs = {.batch = 3, .seq = 1, .channels = 1, .positions = 1};
  kernel_case c = kernel_case_of(FSDP_OP_POSITIONS_BACKWARD, attrs, 0);
  kernel_case_input(&c, FSDP_BF16, 3, FSDP_READ, terms);
  kernel_case_output(&c, FSDP_BF16, 1)[0] = 258;
  kernel_case_check(&c);
}
