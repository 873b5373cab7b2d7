// Placed items of a packing, by address, in chunks that know which of their items are live when.
#pragma once

#include "runtime/plan/memory/pack_item.h"

#include <stdbool.h>

struct fsdp_pack_chunk;

// All zero: an empty list.
typedef struct fsdp_pack_list {
  struct fsdp_pack_chunk **chunks;
  int chunk_count, chunks_made, capacity; // chunks that a cleared list had are used again
  int count;                              // of items
  int first, shift;                       // a position's segment: (position - first) >> shift
} fsdp_pack_list;

// Empties the list and keeps its chunks. Queries are fast where lifetimes lie in [first, last].
void fsdp_pack_list_clear(fsdp_pack_list *list, int first, int last);
// Frees what the list holds.
void fsdp_pack_list_release(fsdp_pack_list *list);

// Lists the item at its address, before others of that address.
void fsdp_pack_list_insert(fsdp_pack_list *list, const fsdp_pack_item *item);

typedef struct fsdp_pack_gap {
  int64_t address; // where the item fits
  int64_t below;   // of the listed item that ended the scan; INT64_MAX: none did
  int before;      // listed items before that one
} fsdp_pack_gap;

// The lowest gap at or above `base` that holds `item` over its whole lifetime, or with `tightest` the one
// that leaves the least; without one, the place above all that is live with it.
fsdp_pack_gap fsdp_pack_list_gap(const fsdp_pack_list *list, const fsdp_pack_item *item, int64_t base,
                                 bool tightest);

// Listed items below an address that are live at the same time as `item`.
int fsdp_pack_list_together(const fsdp_pack_list *list, const fsdp_pack_item *item, int64_t below);
