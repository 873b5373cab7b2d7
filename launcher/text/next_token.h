// The next token of a sample, from the logits of the last one.
#pragma once

#include <stdint.h>

typedef struct fsdp_next_token_config {
  double temperature; // 0: the most probable token
  double top_p;       // of the fewest tokens that have this probability together; 1: of all
  uint64_t seed;
} fsdp_next_token_config;

// The token at `position` of a text: the most probable one (of equal ones the lowest), or one drawn by
// probability, which depends on the seed, the position and the logits alone. -1 if a logit is not finite.
int64_t fsdp_next_token(const fsdp_next_token_config *config, const float *logits, int64_t vocabulary,
                        int64_t position);
