#include "runtime/plan/memory/pack_search.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <string.h>

// Orders in which items that could come next are tried.
typedef enum preference {
  CONTENTION_LIFETIME,
  CONTENTION_AREA,
  LIFETIME_AREA,
  CONTENTION_BYTES,
  PREFERENCE_COUNT
} preference;

typedef struct block {
  int first, last; // segments of positions
  int64_t bytes, align, contention;
  int item;
  double key[2];
} block;

typedef struct raised_floor {
  int block;
  int64_t before;
} raised_floor;

typedef struct search {
  const fsdp_pack_search_config *config;
  int count, segment_count;
  block *blocks; // in order of preference
  bool *placed;
  int64_t *addresses; // by block
  int64_t *floors;    // by block: the lowest address that it can have now
  int64_t *skyline;   // by segment
  int64_t *saved;     // skylines under the placed blocks, a stack
  int64_t saved_count;
  int64_t *remaining;   // by segment: bytes not placed yet
  raised_floor *raised; // what the floors were before, a stack
  int64_t raised_count, raised_capacity;
  int64_t effort_left;
} search;

static int compare_blocks(const void *a, const void *b) {
  const block *x = a, *y = b;
  for (int k = 0; k < 2; k++)
    if (x->key[k] != y->key[k]) return x->key[k] > y->key[k] ? -1 : 1;
  return x->item - y->item;
}

// How long a search takes varies so much with the order that a short attempt with each finds what one long
// attempt does not.
static void sort_blocks(search *s, preference order) {
  for (int i = 0; i < s->count; i++) {
    block *b = &s->blocks[i];
    double lifetime = b->last - b->first + 1, bytes = (double)b->bytes, contention = (double)b->contention;
    b->key[0] = order == LIFETIME_AREA ? lifetime : contention;
    b->key[1] = order == CONTENTION_LIFETIME ? lifetime
                : order == CONTENTION_BYTES  ? bytes
                                             : lifetime * bytes;
  }
  qsort(s->blocks, (size_t)s->count, sizeof *s->blocks, compare_blocks);
}

// Whether the remaining items can still fit over every segment, if nothing may lie below `lowest` any more.
static bool can_fit(search *s, int64_t lowest) {
  s->effort_left -= s->segment_count / 4;
  for (int x = 0; x < s->segment_count; x++) {
    int64_t from = s->remaining[x] > 0 ? fsdp_max_i64(s->skyline[x], lowest) : s->skyline[x];
    if (from + s->remaining[x] > s->config->limit) return false;
  }
  return true;
}

static void place(search *s, int index, int64_t address) {
  const block *b = &s->blocks[index];
  s->placed[index] = true;
  s->addresses[index] = address;
  for (int x = b->first; x <= b->last; x++) {
    s->saved[s->saved_count++] = s->skyline[x];
    s->skyline[x] = address + b->bytes;
    s->remaining[x] -= b->bytes;
  }
}

static void take_back(search *s, int index) {
  const block *b = &s->blocks[index];
  s->placed[index] = false;
  for (int x = b->last; x >= b->first; x--) {
    s->skyline[x] = s->saved[--s->saved_count];
    s->remaining[x] += b->bytes;
  }
}

// Raises the floors of unplaced blocks that overlap the one just placed in time: they must lie above it.
static void raise_floors(search *s, int index) {
  int64_t top = s->addresses[index] + s->blocks[index].bytes;
  if (s->raised_count + s->count > s->raised_capacity) {
    s->raised_capacity = 2 * s->raised_capacity + s->count;
    s->raised = fsdp_realloc(s->raised, (size_t)s->raised_capacity * sizeof *s->raised);
  }
  for (int i = 0; i < s->count; i++) {
    const block *b = &s->blocks[i];
    if (s->placed[i] || top <= s->floors[i] || b->first > s->blocks[index].last ||
        s->blocks[index].first > b->last)
      continue;
    s->raised[s->raised_count++] = (raised_floor){i, s->floors[i]};
    s->floors[i] = fsdp_round_up(top, b->align);
  }
}

static void lower_floors(search *s, int64_t raised_count) {
  while (s->raised_count > raised_count) {
    const raised_floor *last = &s->raised[--s->raised_count];
    s->floors[last->block] = last->before;
  }
}

// The unplaced block that comes next after (address, index) by floor and index, or -1. Blocks whose floor is
// not below `limit` do not count.
static int next_candidate(search *s, int64_t address, int index, int64_t limit) {
  const int64_t *floors = s->floors;
  int best = -1;
  s->effort_left -= s->count;
  for (int i = 0; i < s->count; i++) {
    if (s->placed[i] || floors[i] >= limit || floors[i] < address || (floors[i] == address && i <= index))
      continue;
    if (best < 0 || floors[i] < floors[best]) best = i;
  }
  return best;
}

// Places everything from `depth` on, in ascending order of (address, index). False where that cannot be done.
static bool descend(search *s, int depth, int64_t last_address, int last_index) {
  if (depth == s->count) return true;
  // A block that would begin where another could end below it comes after that one.
  int64_t lowest_top = INT64_MAX;
  for (int i = 0; i < s->count; i++)
    if (!s->placed[i]) lowest_top = fsdp_min_i64(lowest_top, s->floors[i] + s->blocks[i].bytes);
  int i = next_candidate(s, last_address, last_index, lowest_top);
  while (i >= 0 && s->effort_left >= 0) {
    int64_t address = s->floors[i], raised_count = s->raised_count;
    place(s, i, address);
    if (can_fit(s, address)) {
      raise_floors(s, i);
      if (descend(s, depth + 1, address, i)) return true;
      lower_floors(s, raised_count);
    }
    take_back(s, i);
    i = next_candidate(s, address, i, lowest_top);
  }
  return false;
}

// Positions between which no item begins or ends are one segment.
static int *map_segments(const fsdp_pack_item *items, int count, int *segment_count) {
  int positions = 0;
  for (int i = 0; i < count; i++)
    if (items[i].end + 2 > positions) positions = items[i].end + 2;
  int *segment_of = fsdp_alloc_zeroed((size_t)positions, sizeof *segment_of);
  for (int i = 0; i < count; i++) segment_of[items[i].begin] = segment_of[items[i].end + 1] = 1;
  int segments = 0;
  for (int x = 0; x < positions; x++) {
    segments += x > 0 && segment_of[x];
    segment_of[x] = segments;
  }
  *segment_count = segments + 1;
  return segment_of;
}

static search search_create(const fsdp_pack_search_config *config, const fsdp_pack_item *items, int count) {
  search s = {.config = config, .count = count};
  int *segment_of = map_segments(items, count, &s.segment_count);
  s.blocks = fsdp_alloc((size_t)count * sizeof *s.blocks);
  s.remaining = fsdp_alloc_zeroed((size_t)s.segment_count, sizeof *s.remaining);
  int64_t covered = 0;
  for (int i = 0; i < count; i++) {
    block *b = &s.blocks[i];
    *b = (block){
        segment_of[items[i].begin], segment_of[items[i].end], items[i].bytes, items[i].align, 0, i, {0}};
    covered += b->last - b->first + 1;
    for (int x = b->first; x <= b->last; x++) s.remaining[x] += b->bytes;
  }
  for (int i = 0; i < count; i++)
    for (int x = s.blocks[i].first; x <= s.blocks[i].last; x++)
      s.blocks[i].contention = fsdp_max_i64(s.blocks[i].contention, s.remaining[x]);
  free(segment_of);
  s.placed = fsdp_alloc_zeroed((size_t)count, sizeof *s.placed);
  s.addresses = fsdp_alloc((size_t)count * sizeof *s.addresses);
  s.floors = fsdp_alloc((size_t)count * sizeof *s.floors);
  s.skyline = fsdp_alloc((size_t)s.segment_count * sizeof *s.skyline);
  s.saved = fsdp_alloc((size_t)covered * sizeof *s.saved);
  return s;
}

bool fsdp_pack_search(const fsdp_pack_search_config *config, fsdp_pack_item *items, int count) {
  if (count == 0) return true;
  search s = search_create(config, items, count);
  bool found = false;
  for (int order = 0; order < PREFERENCE_COUNT && !found; order++) {
    sort_blocks(&s, (preference)order);
    for (int i = 0; i < count; i++) s.floors[i] = fsdp_round_up(config->base, s.blocks[i].align);
    for (int x = 0; x < s.segment_count; x++) s.skyline[x] = config->base;
    s.effort_left = config->effort / PREFERENCE_COUNT;
    found = descend(&s, 0, config->base, -1);
  }
  if (found)
    for (int i = 0; i < count; i++) items[s.blocks[i].item].address = s.addresses[i];
  free(s.blocks);
  free(s.remaining);
  free(s.placed);
  free(s.addresses);
  free(s.floors);
  free(s.raised);
  free(s.skyline);
  free(s.saved);
  return found;
}
