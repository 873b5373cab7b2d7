// How two configurations of a model differ, key by key of their config.json.
#pragma once

#include "models/llama.h"

typedef enum fsdp_config_scope {
  FSDP_CONFIG_ALL,    // every key that is read
  FSDP_CONFIG_NUMBERS // those that change a number in a run that continues from trained weights
} fsdp_config_scope;

// "rope_theta 10000.0 → 500000.0, rope_scaling.factor 8.0 → 4.0" (from `a` to `b`) into `out`, cut
// off where it is too short. False where they do not differ.
bool fsdp_config_differs(const fsdp_llama_config *a, const fsdp_llama_config *b, fsdp_config_scope scope,
                         char *out, size_t out_bytes);
