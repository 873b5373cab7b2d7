// Packing: address ranges for items that are each live over a range of list positions (dynamic storage
// allocation with everything known in advance, a strip packing whose horizontal positions are fixed).
//
//   address ^      | workspace |
//           |   | gathered 1 | gathered 2 |      long-lived items lie at the bottom, each in the lowest gap
//           |  |     activation 1          |     that is free over its whole lifetime
//           | |         activation 0          |
//           +-------------------------------------> list position
//
// Greedy by an order of the items (lifetime, area, bytes), several orders in turn, then "squeaky wheel"
// search: items that end above the goal go first in the next attempt (Joslin and Clements 1999). The problem
// is NP-hard. The greatest sum of live bytes is a lower bound, and programs of training steps come within a
// percent of it in few attempts. Deterministic: the effort is counted in steps, never in seconds, so every
// rank finds the same addresses.
#pragma once

#include "runtime/plan/memory/pack_item.h"

#define FSDP_PACK_MAX_WINDOWS 8

typedef struct fsdp_pack_config {
  const int *window_begins; // first positions of the windows, ascending; the more items lie in one window,
                            // the faster
  int window_count;
  int64_t base;   // no address below it
  double target;  // stop when the top is within this factor of base plus the lower bound ...
  int64_t limit;  // if the top stays above it, windows are searched thoroughly (pack_search.h); 0: never
  int64_t effort; // ... or after this many comparisons of two items (whole attempts; at least one)
  int64_t useful; // without a limit: once its top is above this the last attempt ends; 0: it is whole
} fsdp_pack_config;

// Sets every item's address so that items live at the same time do not overlap. Returns the end of the
// highest item, or base if there is none; INT64_MAX, and no address is set, if no attempt was whole.
int64_t fsdp_pack(const fsdp_pack_config *config, fsdp_pack_item *items, int count);
