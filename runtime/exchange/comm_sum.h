// Sums of several ranks' values: a tile of fp32 sums. Tiles of fp32 or bf16 are added one after another; the
// sums are rounded once, at the end.
#pragma once

#include "runtime/base/dtype.h"

#include <stdbool.h>

// Elements of a tile: the sums and one rank's values stay in the second-level cache.
#define FSDP_COMM_SUM_TILE_ELEMS 16384

// One tile; the caller's thread adds.
typedef struct fsdp_comm_sum {
  float sums[FSDP_COMM_SUM_TILE_ELEMS];
} fsdp_comm_sum;

// sums[0 .. numel) = values if `first`, else += values; numel is at most a tile.
void fsdp_comm_sum_add(fsdp_comm_sum *sum, bool first, const void *values, int64_t numel, fsdp_dtype dtype);

// output[0 .. numel) = sums, rounded to `dtype`.
void fsdp_comm_sum_store(fsdp_comm_sum *sum, void *output, int64_t numel, fsdp_dtype dtype);
