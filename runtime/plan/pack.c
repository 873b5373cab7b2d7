#include "runtime/plan/pack.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdbool.h>
#include <string.h>

#define MAX_PROMOTIONS 100

// A placed item as the scans see it.
typedef struct entry {
  int64_t address, top;
  int begin, end;
} entry;

typedef struct entry_list {
  entry *entries; // by address
  int count, capacity;
} entry_list;

typedef struct sort_key {
  double first, second;
  int item;
} sort_key;

typedef struct packer {
  const fsdp_pack_config *config;
  fsdp_pack_item *items;
  int count;
  entry_list *windows; // the placed items that are live in each window
  entry_list scratch;  // of an item that spans windows
  int *order;
  int64_t *best_addresses;
  int64_t *contention; // by item: the greatest sum of live items over its lifetime
  int64_t best_top, lower_bound, spent;
} packer;

typedef enum order_rule {
  BY_LIFETIME,
  BY_AREA,
  BY_CONTENTION,
  BY_BYTES,
  BY_BEGIN,
  ORDER_RULE_COUNT
} order_rule;
typedef enum fit_rule { LOWEST_GAP, TIGHTEST_GAP, FIT_RULE_COUNT } fit_rule;

static void list_insert(entry_list *list, int index, const entry *item) {
  if (list->count == list->capacity) {
    list->capacity = list->capacity ? list->capacity * 2 : 64;
    list->entries = fsdp_realloc(list->entries, (size_t)list->capacity * sizeof *list->entries);
  }
  memmove(list->entries + index + 1, list->entries + index, (size_t)(list->count - index) * sizeof *item);
  list->entries[index] = *item;
  list->count++;
}

static int list_lower_bound(const entry_list *list, int64_t address) {
  int low = 0, high = list->count;
  while (low < high) {
    int middle = low + (high - low) / 2;
    if (list->entries[middle].address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static int window_of(const fsdp_pack_config *config, int position) {
  int window = 0;
  while (window + 1 < config->window_count && config->window_begins[window + 1] <= position) window++;
  return window;
}

static int compare_entries(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return x->address != y->address ? (x->address < y->address ? -1 : 1)
                                  : (x->top > y->top) - (x->top < y->top);
}

// The placed items that could stand in the way of `item`, by address.
static const entry_list *candidates(packer *p, const fsdp_pack_item *item) {
  int first = window_of(p->config, item->begin), last = window_of(p->config, item->end);
  if (first == last) return &p->windows[first];
  p->scratch.count = 0;
  for (int w = first; w <= last; w++) {
    for (int i = 0; i < p->windows[w].count; i++) {
      const entry *placed = &p->windows[w].entries[i];
      if (placed->begin <= item->end && placed->end >= item->begin)
        list_insert(&p->scratch, p->scratch.count, placed);
    }
    p->spent += p->windows[w].count;
  }
  if (p->scratch.count > 1)
    qsort(p->scratch.entries, (size_t)p->scratch.count, sizeof *p->scratch.entries, compare_entries);
  return &p->scratch;
}

// The address of the lowest, or of the tightest, gap that holds `item` over its whole lifetime.
static int64_t find_gap(packer *p, const fsdp_pack_item *item, fit_rule fit) {
  const entry_list *list = candidates(p, item);
  int64_t top = p->config->base, best = -1, best_gap = INT64_MAX;
  int i = 0;
  for (; i < list->count; i++) {
    const entry *placed = &list->entries[i];
    if (placed->begin > item->end || placed->end < item->begin) continue;
    if (placed->address > top) {
      int64_t start = fsdp_round_up(top, item->align), gap = placed->address - start;
      if (gap >= item->bytes && gap < best_gap) {
        best = start, best_gap = gap;
        if (fit == LOWEST_GAP || gap == item->bytes) break;
      }
    }
    if (placed->top > top) top = placed->top;
  }
  p->spent += i;
  return best >= 0 ? best : fsdp_round_up(top, item->align);
}

// Places all items in p->order. Returns the end of the highest.
static int64_t attempt(packer *p, fit_rule fit) {
  int64_t top = p->config->base;
  for (int w = 0; w < p->config->window_count; w++) p->windows[w].count = 0;
  for (int i = 0; i < p->count; i++) {
    fsdp_pack_item *item = &p->items[p->order[i]];
    item->address = find_gap(p, item, fit);
    entry placed = {item->address, item->address + item->bytes, item->begin, item->end};
    int first = window_of(p->config, item->begin), last = window_of(p->config, item->end);
    for (int w = first; w <= last; w++)
      list_insert(&p->windows[w], list_lower_bound(&p->windows[w], placed.address), &placed);
    top = fsdp_max_i64(top, placed.top);
  }
  if (top < p->best_top) {
    p->best_top = top;
    for (int i = 0; i < p->count; i++) p->best_addresses[i] = p->items[i].address;
  }
  return top;
}

// ---- Orders -------------------------------------------------------------------------------------

static int compare_keys(const void *a, const void *b) {
  const sort_key *x = a, *y = b;
  if (x->first != y->first) return x->first > y->first ? -1 : 1;
  if (x->second != y->second) return x->second > y->second ? -1 : 1;
  return x->item - y->item;
}

static void sort_items(packer *p, order_rule rule) {
  sort_key *keys = fsdp_alloc((size_t)p->count * sizeof *keys);
  for (int i = 0; i < p->count; i++) {
    const fsdp_pack_item *item = &p->items[i];
    double length = item->end - item->begin + 1, bytes = (double)item->bytes;
    keys[i].first = rule == BY_LIFETIME     ? length
                    : rule == BY_AREA       ? length * bytes
                    : rule == BY_BYTES      ? bytes
                    : rule == BY_CONTENTION ? (double)p->contention[i]
                                            : -(double)item->begin;
    keys[i].second = rule == BY_LIFETIME ? bytes : length;
    keys[i].item = i;
  }
  qsort(keys, (size_t)p->count, sizeof *keys, compare_keys);
  for (int i = 0; i < p->count; i++) p->order[i] = keys[i].item;
  free(keys);
}

// Moves the items that stick out above `goal` to the front of the order. False where there is none.
static bool promote(packer *p, int64_t goal) {
  int *moved = fsdp_alloc((size_t)p->count * sizeof *moved);
  int moved_count = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < p->count; i++) {
      const fsdp_pack_item *item = &p->items[p->order[i]];
      if ((item->address + item->bytes > goal) == (pass == 0)) moved[moved_count++] = p->order[i];
    }
    if (pass == 0 && moved_count == 0) break;
  }
  bool any = moved_count > 0;
  if (any) memcpy(p->order, moved, (size_t)p->count * sizeof *moved);
  free(moved);
  return any;
}

// Finds the greatest sum of live items, with their alignment, and each item's share of it.
static void measure_load(packer *p) {
  int positions = 0, levels = 1;
  for (int i = 0; i < p->count; i++)
    if (p->items[i].end >= positions) positions = p->items[i].end + 1;
  while (1 << levels <= positions) levels++;
  // load[level * positions + x]: the greatest over positions [x, x + 2^level).
  int64_t *load = fsdp_alloc_zeroed((size_t)levels * (size_t)positions + 1, sizeof *load);
  for (int i = 0; i < p->count; i++) {
    int64_t bytes = fsdp_round_up(p->items[i].bytes, p->items[i].align);
    load[p->items[i].begin] += bytes;
    load[p->items[i].end + 1] -= bytes;
  }
  load[positions] = 0;
  for (int x = 1; x < positions; x++) load[x] += load[x - 1];
  for (int level = 1; level < levels; level++) {
    const int64_t *half = load + (int64_t)(level - 1) * positions;
    int64_t *whole = load + (int64_t)level * positions;
    for (int x = 0; x + (1 << level) <= positions; x++)
      whole[x] = fsdp_max_i64(half[x], half[x + (1 << (level - 1))]);
  }
  p->lower_bound = 0;
  for (int i = 0; i < p->count; i++) {
    int length = p->items[i].end - p->items[i].begin + 1, level = 31 - __builtin_clz((unsigned)length);
    const int64_t *row = load + (int64_t)level * positions;
    p->contention[i] = fsdp_max_i64(row[p->items[i].begin], row[p->items[i].end + 1 - (1 << level)]);
    p->lower_bound = fsdp_max_i64(p->lower_bound, p->contention[i]);
  }
  free(load);
}

// ---- Search -------------------------------------------------------------------------------------

static void search(packer *p) {
  int64_t goal = (int64_t)((double)(p->config->base + p->lower_bound) * p->config->target);
  order_rule best_order = BY_LIFETIME;
  fit_rule best_fit = LOWEST_GAP;
  for (int fit = 0; fit < FIT_RULE_COUNT; fit++) {
    for (int order = 0; order < ORDER_RULE_COUNT; order++) {
      int64_t before = p->best_top;
      sort_items(p, (order_rule)order);
      attempt(p, (fit_rule)fit);
      if (p->best_top < before) best_order = (order_rule)order, best_fit = (fit_rule)fit;
      if (p->best_top <= goal || p->spent > p->config->effort) return;
    }
  }
  sort_items(p, best_order);
  attempt(p, best_fit);
  for (int i = 0; i < MAX_PROMOTIONS && p->spent <= p->config->effort && promote(p, goal); i++) {
    attempt(p, best_fit);
    if (p->best_top <= goal) return;
  }
}

int64_t fsdp_pack(const fsdp_pack_config *config, fsdp_pack_item *items, int count) {
  if (count == 0) return config->base;
  FSDP_CHECK(config->window_count > 0, "no window");
  packer p = {.config = config, .items = items, .count = count, .best_top = INT64_MAX};
  p.windows = fsdp_alloc_zeroed((size_t)config->window_count, sizeof *p.windows);
  p.order = fsdp_alloc((size_t)count * sizeof *p.order);
  p.best_addresses = fsdp_alloc((size_t)count * sizeof *p.best_addresses);
  p.contention = fsdp_alloc((size_t)count * sizeof *p.contention);
  measure_load(&p);
  search(&p);
  for (int i = 0; i < count; i++) items[i].address = p.best_addresses[i];
  for (int w = 0; w < config->window_count; w++) free(p.windows[w].entries);
  free(p.windows);
  free(p.scratch.entries);
  free(p.contention);
  free(p.order);
  free(p.best_addresses);
  return p.best_top;
}
