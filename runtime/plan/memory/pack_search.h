// Packing by search, for items that the greedy orders of pack.h leave above a limit.
//
// Items are placed from the bottom up, each on the skyline of those below it, so every packing without
// needless gaps is reached by one sequence (M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning", ASPLOS 2023). A branch ends when, at some position, the skyline and
// what is still to be placed there no longer fit below the limit.
#pragma once

#include "runtime/plan/memory/pack_item.h"

#include <stdbool.h>

typedef struct fsdp_pack_search_config {
  int64_t base, limit; // no address below base, no end above limit
  int64_t effort;      // visits of an item, after which the search gives up
} fsdp_pack_search_config;

// Sets every item's address within the limit. False if no packing was found: addresses are then unchanged.
bool fsdp_pack_search(const fsdp_pack_search_config *config, fsdp_pack_item *items, int count);
