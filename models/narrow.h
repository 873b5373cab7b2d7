// A narrow model of the same family: few layers and small sizes, with the features of the given one, and cut
// alike by a mesh: what ranks divide stays divided, and what they do not divide stays so.
//
//   llama2-7b on tensor=8   heads 32, vocabulary 32000   8 divides both
//   narrow on tensor=2      heads  2, vocabulary    38   2 divides both
//   vocabulary 32001                                37   and neither of these
#pragma once

#include "models/model_config.h"

// Ranks over which a dimension is cut: of the model, and in its place of the narrow one.
typedef struct fsdp_narrow_cut {
  int64_t from, to;
} fsdp_narrow_cut;

typedef struct fsdp_narrow_cuts {
  const fsdp_narrow_cut *items;
  int count;
} fsdp_narrow_cuts;

// The size from `least` on, or `size` itself where that is smaller, that cuts divide most nearly as they
// divide `size`: evenly or not, with an item for every rank or not. Returns how many of these facts differ.
int fsdp_narrow_size(int64_t size, int64_t least, const fsdp_narrow_cuts *cuts, int64_t *out);

typedef struct fsdp_narrowing {
  fsdp_narrow_cuts cuts;
  const int *layers; // of the model that are kept, ascending
  int layer_count;
  int64_t seq, narrow_seq; // tokens of a sequence, for windows and learned positions
} fsdp_narrowing;

// Fills *out; returns how many facts differ.
int fsdp_model_narrow(const fsdp_model_config *config, const fsdp_narrowing *narrowing,
                      fsdp_model_config *out);
