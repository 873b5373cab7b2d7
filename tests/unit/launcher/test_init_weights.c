// New weights: the normals of a parameter's name by element index, but for elements that are zero, whichever
// range is drawn.
#include "launcher/train/trainer.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>

// More than a thread draws at a time, with the zeros over the border of two threads' parts.
enum { NUMEL = 40000, PART = 1 << 14, ZERO_FIRST = PART - 5, ZERO_NUMEL = 11 };

TEST(test_zeros) {
  const fsdp_param param = {.name = "model.embed_tokens.weight",
                            .init_mean = 0.5f,
                            .init_deviation = 0.02f,
                            .zero_first = ZERO_FIRST,
                            .zero_numel = ZERO_NUMEL};
  static const int64_t firsts[] = {
      0, 1, ZERO_FIRST - 1, ZERO_FIRST, ZERO_FIRST + 4, ZERO_FIRST + ZERO_NUMEL - 1, ZERO_FIRST + ZERO_NUMEL};
  static const int64_t numels[] = {0, 1, 7, ZERO_NUMEL, NUMEL - ZERO_FIRST - ZERO_NUMEL};
  float *expected = fsdp_alloc(NUMEL * sizeof *expected), *found = fsdp_alloc(NUMEL * sizeof *found);
  fsdp_random_normal(3, fsdp_random_stream(param.name), 0, NUMEL, param.init_mean, param.init_deviation,
                     expected);
  for (int64_t i = ZERO_FIRST; i < ZERO_FIRST + ZERO_NUMEL; i++) expected[i] = 0;
  fsdp_pool *pool = fsdp_pool_create(2);
  for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++)
    for (size_t n = 0; n < sizeof numels / sizeof *numels; n++) {
      fsdp_init_param(pool, &param, 3, firsts[f], numels[n], found);
      assert_memory_equal(found, expected + firsts[f], (size_t)numels[n] * sizeof *found);
    }
  fsdp_init_param(pool, &param, 3, 0, NUMEL, found);
  assert_memory_equal(found, expected, NUMEL * sizeof *found);
  fsdp_pool_destroy(pool);
  free(expected);
  free(found);
}
