// What dropout and attention share: the factors of a row's columns (runtime/base/random.h).
#pragma once

#include "kernels/cpu/operand.h"
#include "runtime/base/random_math.h"

typedef struct dropping {
  const int32_t *draws; // two words for each row; NULL: nothing is dropped
  uint64_t op;
  uint32_t limit;
  float scale;
  int64_t first_row;
} dropping;

static inline dropping dropping_of(const fsdp_kernel_call *call) {
  const fsdp_op_attrs *attrs = call->attrs;
  FSDP_CHECK(attrs->dropout >= 0 && attrs->dropout < 1, "%s at a rate of %g", fsdp_op_name(call->kind),
             (double)attrs->dropout);
  return (dropping){.draws = fsdp_kernel_given(call, FSDP_GIVEN_BY_DRAWS),
                    .op = attrs->drop_key,
                    .limit = fsdp_dropout_limit(attrs->dropout),
                    .scale = fsdp_dropout_scale(attrs->dropout),
                    .first_row = attrs->first_row};
}

// Whether a row of the op drops anything; its key.
static inline bool drops_row(const dropping *k, int64_t row) {
  return k->draws && k->draws[FSDP_DROPOUT_WORDS * (k->first_row + row)] != 0;
}
static inline uint64_t key_of_row(const dropping *k, int64_t row) {
  const int32_t *words = k->draws + FSDP_DROPOUT_WORDS * (k->first_row + row);
  return fsdp_dropout_key(k->op, words[0], words[1]);
}

enum { DROPPED_GROUPS = 16, DROPPED_COLUMNS = DROPPED_GROUPS * FSDP_DROPOUT_COLUMNS };

// The factors of columns FSDP_DROPOUT_COLUMNS * group and on, DROPPED_COLUMNS of them, `stride` floats apart.
static inline void drop_factors(const dropping *k, uint64_t key, int64_t head, int64_t group, float *out,
                                int64_t stride) {
  uint32_t words[FSDP_DROPOUT_COLUMNS][DROPPED_GROUPS];
  for (int i = 0; i < DROPPED_GROUPS; i++) {
    uint32_t drawn[FSDP_DROPOUT_COLUMNS];
    fsdp_dropout_words(key, head, group + i, drawn);
    for (int w = 0; w < FSDP_DROPOUT_COLUMNS; w++) words[w][i] = drawn[w];
  }
  for (int i = 0; i < DROPPED_GROUPS; i++)
    for (int w = 0; w < FSDP_DROPOUT_COLUMNS; w++)
      out[(FSDP_DROPOUT_COLUMNS * i + w) * stride] = words[w][i] < k->limit ? 0.0f : k->scale;
}
