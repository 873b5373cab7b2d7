#include "runtime/plan/memory/pack.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/memory/pack_list.h"
#include "runtime/plan/memory/pack_search.h"

#include <stdbool.h>
#include <string.h>

#define MAX_PROMOTIONS 100
#define LEAST_LIMIT    1.005 // of the lower bound

typedef struct sort_key {
  double first, second;
  int item;
} sort_key;

typedef struct packer {
  const fsdp_pack_config *config;
  fsdp_pack_item *items;
  int count;
  fsdp_pack_list *windows; // the placed items that are live in each window
  fsdp_pack_list all;      // the first items of the order, as many as items across windows needed
  int *order;
  int64_t *best_addresses;
  int *best_rank;      // by item: its place in the order that gave them
  int64_t *load;       // by position: the sum of live items, with their alignment
  int64_t *contention; // by item: the greatest load over its lifetime
  int64_t *solved;     // by item: its address in the search of a window, or -1
  int positions;
  int64_t best_top, lower_bound, spent;
  int64_t limit; // config's, or a little above the lower bound if that is greater (alignment in a tiny arena)
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

static int window_of(const fsdp_pack_config *config, int position) {
  int window = 0;
  while (window + 1 < config->window_count && config->window_begins[window + 1] <= position) window++;
  return window;
}

// Lists what was placed before the order's item `rank` in p->all.
static void complete_all(packer *p, int rank) {
  while (p->all.count < rank) fsdp_pack_list_insert(&p->all, &p->items[p->order[p->all.count]]);
}

// The address of the lowest, or of the tightest, gap that holds the order's item `rank` over its whole
// lifetime. What is spent counts the items that a scan in order of addresses looks at, until the effort is.
static int64_t find_gap(packer *p, int rank, fit_rule fit) {
  const fsdp_pack_item *item = &p->items[p->order[rank]];
  const int first = window_of(p->config, item->begin), last = window_of(p->config, item->end);
  if (first < last) complete_all(p, rank);
  const fsdp_pack_list *list = first == last ? &p->windows[first] : &p->all;
  const fsdp_pack_gap found = fsdp_pack_list_gap(list, item, p->config->base, fit == TIGHTEST_GAP);
  if (p->spent > p->config->effort) return found.address;
  if (first == last) p->spent += found.before;
  for (int w = first; w <= last && first < last; w++)
    p->spent += p->windows[w].count + fsdp_pack_list_together(&p->windows[w], item, found.below);
  return found.address;
}

// Gives the order's item `rank` an address among those placed before it. Returns its end.
static int64_t place_item(packer *p, int rank, fit_rule fit) {
  fsdp_pack_item *item = &p->items[p->order[rank]];
  item->address = find_gap(p, rank, fit);
  const int first = window_of(p->config, item->begin), last = window_of(p->config, item->end);
  for (int w = first; w <= last; w++) fsdp_pack_list_insert(&p->windows[w], item);
  return item->address + item->bytes;
}

static void note_top(packer *p, int64_t top) {
  if (top >= p->best_top) return;
  p->best_top = top;
  for (int i = 0; i < p->count; i++) {
    p->best_addresses[i] = p->items[i].address;
    p->best_rank[p->order[i]] = i;
  }
}

// Whether an attempt may end before all items are placed: what it finds is of no use, and none follows.
static bool is_useless(const packer *p, int64_t top) {
  return p->config->useful > 0 && top > p->config->useful && p->spent > p->config->effort;
}

// Places all items in p->order, unless that is useless. Returns the end of the highest.
static int64_t attempt(packer *p, fit_rule fit) {
  int64_t top = p->config->base;
  const int *begins = p->config->window_begins, windows = p->config->window_count;
  for (int w = 0; w < windows; w++)
    fsdp_pack_list_clear(&p->windows[w], begins[w], (w + 1 < windows ? begins[w + 1] : p->positions) - 1);
  fsdp_pack_list_clear(&p->all, 0, p->positions - 1);
  for (int i = 0; i < p->count; i++) {
    top = fsdp_max_i64(top, place_item(p, i, fit));
    if (is_useless(p, top)) return top;
  }
  note_top(p, top);
  return top;
}

// ---- Orders

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

// Moves the items that end above `goal` to the front of the order. False if there is none.
static bool promote(packer *p, int64_t goal) {
  int *others = fsdp_alloc((size_t)p->count * sizeof *others), other_count = 0, moved = 0;
  for (int i = 0; i < p->count; i++) {
    const fsdp_pack_item *item = &p->items[p->order[i]];
    *(item->address + item->bytes > goal ? &p->order[moved++] : &others[other_count++]) = p->order[i];
  }
  memcpy(p->order + moved, others, (size_t)other_count * sizeof *others);
  free(others);
  return moved > 0;
}

// Finds the load, its greatest value, and each item's share of it.
static void measure_load(packer *p) {
  int levels = 1;
  for (int i = 0; i < p->count; i++)
    if (p->items[i].end >= p->positions) p->positions = p->items[i].end + 1;
  while (1 << levels <= p->positions) levels++;
  // table[level * positions + x]: the greatest load over positions [x, x + 2^level).
  int64_t *table = fsdp_alloc_zeroed((size_t)levels * (size_t)p->positions + 1, sizeof *table);
  for (int i = 0; i < p->count; i++) {
    int64_t bytes = fsdp_round_up(p->items[i].bytes, p->items[i].align);
    table[p->items[i].begin] += bytes;
    table[p->items[i].end + 1] -= bytes;
  }
  table[p->positions] = 0;
  for (int x = 1; x < p->positions; x++) table[x] += table[x - 1];
  for (int level = 1; level < levels; level++) {
    const int64_t *half = table + (int64_t)(level - 1) * p->positions;
    int64_t *whole = table + (int64_t)level * p->positions;
    for (int x = 0; x + (1 << level) <= p->positions; x++)
      whole[x] = fsdp_max_i64(half[x], half[x + (1 << (level - 1))]);
  }
  for (int i = 0; i < p->count; i++) {
    int length = p->items[i].end - p->items[i].begin + 1, level = 31 - __builtin_clz((unsigned)length);
    const int64_t *row = table + (int64_t)level * p->positions;
    p->contention[i] = fsdp_max_i64(row[p->items[i].begin], row[p->items[i].end + 1 - (1 << level)]);
    p->lower_bound = fsdp_max_i64(p->lower_bound, p->contention[i]);
  }
  p->load = table; // its first row
}

// ---- Windows

#define WINDOW_ITEMS  64 // that begin or end in a window at first
#define WINDOW_ROUNDS 24

// The item above the limit with the greatest contention, or -1.
static int worst_item(const packer *p) {
  int worst = -1;
  for (int i = 0; i < p->count; i++) {
    if (p->items[i].address + p->items[i].bytes <= p->limit) continue;
    if (worst < 0 || p->contention[i] > p->contention[worst]) worst = i;
  }
  return worst;
}

// Where in the item's lifetime the load is greatest.
static int busiest_position(const packer *p, int item) {
  int x = p->items[item].begin;
  while (p->load[x] < p->contention[item]) x++;
  return x;
}

typedef struct window {
  int first, last;
} window;

// Widens the window until `wanted` more items begin or end inside.
static void widen(const packer *p, int wanted, window *w) {
  int *changes = fsdp_alloc_zeroed((size_t)p->positions + 1, sizeof *changes), added = 0;
  for (int i = 0; i < p->count; i++) {
    changes[p->items[i].begin]++;
    changes[p->items[i].end]++;
  }
  while (added < wanted && (w->first > 0 || w->last + 1 < p->positions)) {
    if (w->first > 0) added += changes[--w->first];
    if (w->last + 1 < p->positions) added += changes[++w->last];
  }
  free(changes);
}

// The window around `center`, joined with those of `windows` that it meets or comes close to: neighbours that
// are solved separately disturb one another. Removes those from the list.
static window join_windows(const packer *p, int center, window *windows, int *window_count) {
  window w = {center, center};
  widen(p, WINDOW_ITEMS, &w);
  for (int i = 0; i < *window_count;) {
    int reach = windows[i].last - windows[i].first;
    if (windows[i].last + reach < w.first || windows[i].first - reach > w.last) {
      i++;
      continue;
    }
    bool inside = windows[i].first <= center && center <= windows[i].last;
    if (windows[i].first < w.first) w.first = windows[i].first;
    if (windows[i].last > w.last) w.last = windows[i].last;
    if (inside) widen(p, WINDOW_ITEMS, &w);
    windows[i] = windows[--*window_count];
    i = 0;
  }
  return w;
}

// Stacks the items that live through all of [first, last] on the base, the longest-lived at the bottom.
// Returns the stack's end.
static int64_t stack_spanning(packer *p, int first, int last) {
  int64_t top = p->config->base;
  sort_items(p, BY_LIFETIME);
  for (int i = 0; i < p->count; i++) {
    const fsdp_pack_item *item = &p->items[p->order[i]];
    if (item->begin > first || item->end < last) continue;
    p->solved[p->order[i]] = fsdp_round_up(top, item->align);
    top = p->solved[p->order[i]] + item->bytes;
  }
  return top;
}

// Searches for addresses of the items that live in [first, last], ignoring everything outside.
static bool solve_window(packer *p, int first, int last) {
  fsdp_pack_item *inside = fsdp_alloc((size_t)p->count * sizeof *inside);
  int *indices = fsdp_alloc((size_t)p->count * sizeof *indices), count = 0;
  for (int i = 0; i < p->count; i++) {
    const fsdp_pack_item *item = &p->items[i];
    if (item->begin > last || item->end < first || (item->begin <= first && item->end >= last)) continue;
    indices[count] = i;
    inside[count] = *item;
    inside[count].begin = (item->begin > first ? item->begin : first) - first;
    inside[count].end = (item->end < last ? item->end : last) - first;
    count++;
  }
  fsdp_pack_search_config config = {
      .base = stack_spanning(p, first, last), .limit = p->limit, .effort = 4 * p->config->effort};
  bool found = fsdp_pack_search(&config, inside, count);
  for (int i = 0; i < count && found; i++) p->solved[indices[i]] = inside[i].address;
  free(inside);
  free(indices);
  return found;
}

// Puts the solved items first, by their addresses: each then finds a gap no higher than in its window's
// solution, as long as windows do not disturb one another. The others follow as in the best order so far.
static void order_solved_first(packer *p) {
  sort_key *keys = fsdp_alloc((size_t)p->count * sizeof *keys);
  for (int i = 0; i < p->count; i++) {
    keys[i].first = p->solved[i] >= 0 ? 1 : 0;
    keys[i].second = p->solved[i] >= 0 ? -(double)p->solved[i] : -(double)p->best_rank[i];
    keys[i].item = i;
  }
  qsort(keys, (size_t)p->count, sizeof *keys, compare_keys);
  for (int i = 0; i < p->count; i++) p->order[i] = keys[i].item;
  free(keys);
}

// Solves the windows in which items end above the limit, and places everything around their solutions.
static void search_windows(packer *p) {
  window windows[WINDOW_ROUNDS];
  int window_count = 0;
  for (int i = 0; i < p->count; i++) p->solved[i] = -1;
  for (int round = 0; round < WINDOW_ROUNDS; round++) {
    order_solved_first(p);
    if (attempt(p, LOWEST_GAP) <= p->limit) return;
    window w = join_windows(p, busiest_position(p, worst_item(p)), windows, &window_count);
    if (!solve_window(p, w.first, w.last) && !solve_window(p, 0, p->positions - 1)) return;
    windows[window_count++] = w;
  }
}

// ---- Search

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

// Gives the items the addresses of the best attempt: between the base and the top, aligned. That none overlap
// is the verifier's to prove.
static void set_addresses(packer *p) {
  for (int i = 0; i < p->count; i++) {
    fsdp_pack_item *item = &p->items[i];
    item->address = p->best_addresses[i];
    FSDP_CHECK(item->address >= p->config->base && item->address % item->align == 0 &&
                   item->address + item->bytes <= p->best_top,
               "item %d of %lld bytes is packed at %lld", i, (long long)item->bytes,
               (long long)item->address);
  }
}

int64_t fsdp_pack(const fsdp_pack_config *config, fsdp_pack_item *items, int count) {
  if (count == 0) return config->base;
  FSDP_CHECK(config->window_count > 0 && config->window_count <= FSDP_PACK_MAX_WINDOWS, "%d windows",
             config->window_count);
  FSDP_CHECK(config->limit == 0 || config->useful == 0, "a search of windows for what may be of no use");
  packer p = {.config = config, .items = items, .count = count, .best_top = INT64_MAX};
  p.windows = fsdp_alloc_zeroed((size_t)config->window_count, sizeof *p.windows);
  p.order = fsdp_alloc((size_t)count * sizeof *p.order);
  p.best_addresses = fsdp_alloc((size_t)count * sizeof *p.best_addresses);
  p.best_rank = fsdp_alloc((size_t)count * sizeof *p.best_rank);
  p.contention = fsdp_alloc((size_t)count * sizeof *p.contention);
  p.solved = fsdp_alloc((size_t)count * sizeof *p.solved);
  measure_load(&p);
  int64_t least = (int64_t)((double)(config->base + p.lower_bound) * LEAST_LIMIT);
  p.limit = fsdp_max_i64(config->limit, least);
  search(&p);
  if (p.best_top > p.limit && config->limit > 0) search_windows(&p);
  if (p.best_top < INT64_MAX) set_addresses(&p);
  for (int w = 0; w < config->window_count; w++) fsdp_pack_list_release(&p.windows[w]);
  fsdp_pack_list_release(&p.all);
  free(p.windows);
  free(p.load);
  free(p.contention);
  free(p.solved);
  free(p.order);
  free(p.best_addresses);
  free(p.best_rank);
  return p.best_top;
}
