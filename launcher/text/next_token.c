#include "launcher/text/next_token.h"

#include "runtime/base/check.h"
#include "runtime/base/random.h"

#include <math.h>
#include <stdlib.h>

static int64_t greatest(const float *logits, int64_t vocabulary) {
  int64_t best = 0;
  for (int64_t v = 0; v < vocabulary; v++) {
    if (!isfinite(logits[v])) return -1;
    if (logits[v] > logits[best]) best = v;
  }
  return best;
}

typedef struct candidate {
  double weight;
  int64_t token;
} candidate;

// Heavier ones first, of equal ones the lower token.
static int by_weight(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
  return x->token < y->token ? -1 : x->token > y->token;
}

// In [0, 1).
static double uniform(uint64_t seed, int64_t position) {
  uint32_t words[4];
  fsdp_random_words(seed, fsdp_random_stream("next token"), (uint64_t)position, words);
  return (double)((uint64_t)words[0] << 21 | words[1] >> 11) * 0x1p-53;
}

int64_t fsdp_next_token(const fsdp_next_token_config *config, const float *logits, int64_t vocabulary,
                        int64_t position) {
  const int64_t best = greatest(logits, vocabulary);
  if (best < 0 || config->temperature == 0) return best;
  candidate *list = fsdp_alloc((size_t)vocabulary * sizeof *list);
  double sum = 0, kept = 0, before = 0;
  for (int64_t v = 0; v < vocabulary; v++) {
    list[v] = (candidate){exp(((double)logits[v] - (double)logits[best]) / config->temperature), v};
    sum += list[v].weight;
  }
  qsort(list, (size_t)vocabulary, sizeof *list, by_weight);
  int64_t count = 0;
  while (count < vocabulary && (count == 0 || kept < config->top_p * sum)) kept += list[count++].weight;
  const double drawn = uniform(config->seed, position) * kept;
  int64_t chosen = 0;
  while (chosen < count - 1 && (before += list[chosen].weight) <= drawn) chosen++;
  const int64_t token = list[chosen].token;
  free(list);
  return token;
}
