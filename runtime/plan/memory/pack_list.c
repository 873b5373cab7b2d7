#include "runtime/plan/memory/pack_list.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ITEMS 64 // bits of a mask
#define SEGMENTS    64 // of the positions: with more, masks tell more and an insertion takes longer

typedef struct entry {
  int64_t address, top;
  int begin, end;
} entry;

typedef struct fsdp_pack_chunk {
  int count;
  int last_begin, first_end; // of all entries
  // Of all entries, as if they were live together.
  int64_t top; // the end of the highest
  int64_t gap; // the widest between them; -1: not known since an insertion
  // By segment, masks of the entries that begin in it or before, and of those that end before it.
  uint64_t begun[SEGMENTS], ended[SEGMENTS];
  entry entries[CHUNK_ITEMS]; // by address
} chunk;

// ---- Chunks

static bool is_together(const entry *e, const fsdp_pack_item *item) {
  return e->begin <= item->end && e->end >= item->begin;
}

// Whether every entry is live at the same time as `item`.
static bool all_together(const chunk *c, const fsdp_pack_item *item) {
  return c->last_begin <= item->end && c->first_end >= item->begin;
}

static void note_entry(chunk *c, const entry *e) {
  c->last_begin = (int)fsdp_max_i64(c->last_begin, e->begin);
  c->first_end = (int)fsdp_min_i64(c->first_end, e->end);
  c->top = fsdp_max_i64(c->top, e->top);
  c->gap = -1;
}

static void summarize(chunk *c) {
  c->last_begin = 0;
  c->first_end = INT_MAX;
  c->top = 0;
  for (int i = 0; i < c->count; i++) note_entry(c, &c->entries[i]);
}

// Found when it is asked for: most insertions are into chunks whose entries are seldom all live together.
static int64_t widest_gap(chunk *c) {
  if (c->gap >= 0) return c->gap;
  int64_t top = c->entries[0].top;
  c->gap = 0;
  for (int i = 1; i < c->count; i++) {
    c->gap = fsdp_max_i64(c->gap, c->entries[i].address - top);
    top = fsdp_max_i64(top, c->entries[i].top);
  }
  return c->gap;
}

// ---- Segments

typedef struct segments {
  int first, last;
} segments;

static int segment_of(const fsdp_pack_list *list, int position) {
  const int segment = (position - list->first) >> list->shift;
  return position < list->first ? 0 : segment < SEGMENTS ? segment : SEGMENTS - 1;
}

static segments segments_of(const fsdp_pack_list *list, const fsdp_pack_item *item) {
  return (segments){segment_of(list, item->begin), segment_of(list, item->end)};
}

// A mask of the entries that are live in the segments: those that are live together with an item, and a few
// that only share a segment with it.
static uint64_t live_in(const chunk *c, segments s) {
  return c->begun[s.last] & ~c->ended[s.first];
}

// Moves the bits of entry `at` and those above it up, and enters the lifetime of a new one there.
static void enter_lifetime(chunk *c, int at, segments lifetime) {
  const uint64_t bit = UINT64_C(1) << at, moved = ~(bit - 1);
  for (int s = 0; s < SEGMENTS; s++) c->begun[s] += c->begun[s] & moved;
  for (int s = 0; s < SEGMENTS; s++) c->ended[s] += c->ended[s] & moved;
  for (int s = lifetime.first; s < SEGMENTS; s++) c->begun[s] |= bit;
  for (int s = lifetime.last + 1; s < SEGMENTS; s++) c->ended[s] |= bit;
}

// ---- Lists

void fsdp_pack_list_clear(fsdp_pack_list *list, int first, int last) {
  list->chunk_count = list->count = 0;
  list->first = first;
  list->shift = 0;
  while ((last - first) >> list->shift >= SEGMENTS) list->shift++;
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
  memset(added, 0, offsetof(chunk, entries));
  summarize(added);
  return list->chunks[place] = added;
}

// Moves the upper half of a full chunk to a new one behind it.
static void split(fsdp_pack_list *list, int place) {
  chunk *upper = add_chunk(list, place + 1), *lower = list->chunks[place];
  const int half = CHUNK_ITEMS / 2;
  lower->count = upper->count = half;
  memcpy(upper->entries, &lower->entries[half], (size_t)half * sizeof(entry));
  for (int s = 0; s < SEGMENTS; s++) {
    upper->begun[s] = lower->begun[s] >> half;
    upper->ended[s] = lower->ended[s] >> half;
    lower->begun[s] ^= upper->begun[s] << half;
    lower->ended[s] ^= upper->ended[s] << half;
  }
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
  enter_lifetime(c, at, segments_of(list, item));
  c->count++;
  list->count++;
  note_entry(c, &c->entries[at]);
}

fsdp_pack_gap fsdp_pack_list_gap(const fsdp_pack_list *list, const fsdp_pack_item *item, int64_t base,
                                 bool tightest) {
  const segments lifetime = segments_of(list, item);
  int64_t top = base, best = -1, best_gap = INT64_MAX;
  int before = 0; // entries of the chunks before
  for (int k = 0; k < list->chunk_count; before += list->chunks[k++]->count) {
    chunk *c = list->chunks[k];
    uint64_t live = live_in(c, lifetime);
    if (live == 0) continue;
    if (all_together(c, item) && fsdp_max_i64(widest_gap(c), c->entries[0].address - top) < item->bytes) {
      top = fsdp_max_i64(top, c->top);
      continue;
    }
    for (; live; live &= live - 1) {
      const entry *placed = &c->entries[__builtin_ctzll(live)];
      if (!is_together(placed, item)) continue;
      if (placed->address - top >= item->bytes) { // seldom, and rounding up takes a division
        const int64_t start = fsdp_round_up(top, item->align), gap = placed->address - start;
        if (gap >= item->bytes && gap < best_gap) {
          best = start, best_gap = gap;
          if (!tightest || gap == item->bytes)
            return (fsdp_pack_gap){best, placed->address, before + (int)(placed - c->entries)};
        }
      }
      top = fsdp_max_i64(top, placed->top);
    }
  }
  return (fsdp_pack_gap){best >= 0 ? best : fsdp_round_up(top, item->align), INT64_MAX, before};
}

int fsdp_pack_list_together(const fsdp_pack_list *list, const fsdp_pack_item *item, int64_t below) {
  const segments lifetime = segments_of(list, item);
  int together = 0;
  for (int k = 0; k < list->chunk_count; k++) {
    const chunk *c = list->chunks[k];
    if (c->entries[0].address >= below) break;
    for (uint64_t live = live_in(c, lifetime); live; live &= live - 1) {
      const entry *e = &c->entries[__builtin_ctzll(live)];
      together += e->address < below && is_together(e, item);
    }
  }
  return together;
}
