// Which algorithm each product of a program runs: one choice for all ranks that have the same kind of GPU.
//
//   the lowest rank of the kind: remembered? ─► else measured ─► remembered      (runtime/base/cache_file.h)
//   every rank of the kind:      ◄── broadcast
//
// Ranks that choose for themselves may sum in different orders: what they hold in common would drift apart in
// last bits. Algorithms are no part of the program, as a plan that is made without a GPU cannot know them;
// their digest is compared instead.
#pragma once

#include "kernels/products.h"
#include "runtime/base/status.h"
#include "runtime/comm/world.h"
#include "runtime/device/gpu.h"

typedef struct fsdp_product_choice {
  int count;        // of products, of different shapes
  int remembered;   // of which the first rank knew the algorithm from an earlier run
  int kinds;        // of GPUs; each has algorithms of its own
  uint64_t digest;  // of all algorithms; the same on every rank
  char library[64]; // that made them
} fsdp_product_choice;

// For the products noted in `library`, before memory is filled (its measurements leave NaNs in operands).
// `world` may be NULL: this rank is the only one. Otherwise every rank must call it, with the same program,
// and all return the same. FSDP_ERR_PEER if ranks noted different products, or cannot run the algorithm that
// was chosen.
fsdp_status fsdp_product_choice_make(fsdp_world *world, const fsdp_gpu *gpu,
                                     const fsdp_product_library *library, fsdp_product_choice *choice,
                                     fsdp_error *error);

// "21 by cuBLASLt 13.1.0 (21 remembered), algorithms 0123456789abcdef"
const char *fsdp_product_choice_print(const fsdp_product_choice *choice, char *out, size_t bytes);
