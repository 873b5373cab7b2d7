#include "runtime/plan/memory/pack_list.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_ITEMS 32

typedef struct entry {
  int64_t address, top;
  int begin, end;
} entry;

typedef struct fsdp_pack_chunk {
  entry entries[CHUNK_ITEMS]; // by address
  int count;
  // Of all entries, as if they were live together.
  int64_t top, gap;                                 // the end of the highest, the widest gap between them
  int first_begin, last_begin, first_end, last_end; // their lifetimes
} chunk;

// ---- Chunks

static bool is_together(const entry *e, const fsdp_pack_item *item) {
  return e->begin <= item->end && e->end >= item->begin;
}

// Whether no entry, or every one, is live at the same time as `item`.
static bool none_together(const chunk *c, const fsdp_pack_item *item) {
  return c->first_begin > item->end || c->last_end < item->begin;
}

static bool all_together(const chunk *c, const fsdp_pack_item *item) {
  return c->last_begin <= item->end && c->first_end >= item->begin;
}

static int min_int(int a, int b) {
  return a < b ? a : b;
}

static int max_int(int a, int b) {
  return a > b ? a : b;
}

static void summarize(chunk *c) {
  const entry *e = c->entries;
  c->top = e->top;
  c->gap = 0;
  c->first_begin = c->last_begin = e->begin;
  c->first_end = c->last_end = e->end;
  for (int i = 1; i < c->count; i++) {
    e = &c->entries[i];
    c->gap = fsdp_max_i64(c->gap, e->address - c->top);
    c->top = fsdp_max_i64(c->top, e->top);
    c->first_begin = min_int(c->first_begin, e->begin);
    c->last_begin = max_int(c->last_begin, e->begin);
    c->first_end = min_int(c->first_end, e->end);
    c->last_end = max_int(c->last_end, e->end);
  }
}

// ---- Lists

void fsdp_pack_list_clear(fsdp_pack_list *list) {
  list->chunk_count = list->count = 0;
}

void fsdp_pack_list_release(fsdp_pack_list *list) {
  for (int c = 0; c < list->chunks_made; c++) free(list->chunks[c]);
  free(list->chunks);
}

// An empty chunk at `place` of the list.
static chunk *add_chunk(fsdp_pack_list *list, int place) {
  if (list->chunk_count == list->chunks_made) {
    list->chunks = fsdp_grow(list->chunks, list->chunks_made + 1, &list->capacity, sizeof(chunk *));
    list->chunks[list->chunks_made++] = fsdp_alloc(sizeof(chunk));
  }
  chunk *added = list->chunks[list->chunk_count];
  memmove(&list->chunks[place + 1], &list->chunks[place],
          (size_t)(list->chunk_count++ - place) * sizeof(chunk *));
  added->count = 0;
  return list->chunks[place] = added;
}

// Moves the upper half of a full chunk to a new one behind it.
static void split(fsdp_pack_list *list, int place) {
  chunk *upper = add_chunk(list, place + 1), *lower = list->chunks[place];
  lower->count = CHUNK_ITEMS / 2;
  upper->count = CHUNK_ITEMS - lower->count;
  memcpy(upper->entries, &lower->entries[lower->count], (size_t)upper->count * sizeof(entry));
  summarize(lower);
  summarize(upper);
}

// The first chunk with an entry at or above `address`, else the last.
static int chunk_of(const fsdp_pack_list *list, int64_t address) {
  int low = 0, high = list->chunk_count - 1;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const chunk *c = list->chunks[middle];
    if (c->entries[c->count - 1].address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void fsdp_pack_list_insert(fsdp_pack_list *list, const fsdp_pack_item *item) {
  if (list->chunk_count == 0) add_chunk(list, 0);
  int place = chunk_of(list, item->address), at = 0;
  if (list->chunks[place]->count == CHUNK_ITEMS) {
    split(list, place);
    place = chunk_of(list, item->address);
  }
  chunk *c = list->chunks[place];
  while (at < c->count && c->entries[at].address < item->address) at++;
  memmove(&c->entries[at + 1], &c->entries[at], (size_t)(c->count - at) * sizeof(entry));
  c->entries[at] = (entry){item->address, item->address + item->bytes, item->begin, item->end};
  c->count++;
  list->count++;
  summarize(c);
}

fsdp_pack_gap fsdp_pack_list_gap(const fsdp_pack_list *list, const fsdp_pack_item *item, int64_t base,
                                 bool tightest) {
  int64_t top = base, best = -1, best_gap = INT64_MAX;
  int before = 0; // entries of the chunks before
  for (int k = 0; k < list->chunk_count; before += list->chunks[k++]->count) {
    const chunk *c = list->chunks[k];
    if (none_together(c, item)) continue;
    if (all_together(c, item) && fsdp_max_i64(c->gap, c->entries[0].address - top) < item->bytes) {
      top = fsdp_max_i64(top, c->top);
      continue;
    }
    for (int i = 0; i < c->count; i++) {
      const entry *placed = &c->entries[i];
      if (!is_together(placed, item)) continue;
      if (placed->address > top) {
        const int64_t start = fsdp_round_up(top, item->align), gap = placed->address - start;
        if (gap >= item->bytes && gap < best_gap) {
          best = start, best_gap = gap;
          if (!tightest || gap == item->bytes) return (fsdp_pack_gap){best, placed->address, before + i};
        }
      }
      top = fsdp_max_i64(top, placed->top);
    }
  }
  return (fsdp_pack_gap){best >= 0 ? best : fsdp_round_up(top, item->align), INT64_MAX, before};
}

int fsdp_pack_list_together(const fsdp_pack_list *list, const fsdp_pack_item *item, int64_t below) {
  int together = 0;
  for (int k = 0; k < list->chunk_count; k++) {
    const chunk *c = list->chunks[k];
    if (c->entries[0].address >= below) break;
    if (none_together(c, item)) continue;
    const bool whole = all_together(c, item) && c->entries[c->count - 1].address < below;
    for (int i = 0; i < c->count && !whole; i++)
      together += c->entries[i].address < below && is_together(&c->entries[i], item);
    if (whole) together += c->count;
  }
  return together;
}
