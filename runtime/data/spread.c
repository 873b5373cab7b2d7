#include "runtime/data/spread.h"

#include "runtime/base/check.h"

#include <stdbool.h>

// Groups with room as a heap: the one with least work, of several the first, is its root.
typedef struct heap {
  double *load; // by group
  int64_t *groups, count;
} heap;

static bool before(const heap *h, int64_t a, int64_t b) {
  return h->load[a] < h->load[b] || (h->load[a] == h->load[b] && a < b);
}

static void sink(heap *h) {
  int64_t at = 0;
  for (;;) {
    int64_t least = at;
    for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < h->count; child++)
      if (before(h, h->groups[child], h->groups[least])) least = child;
    if (least == at) return;
    int64_t group = h->groups[at];
    h->groups[at] = h->groups[least];
    h->groups[least] = group;
    at = least;
  }
}

// Merges sorted runs: samples by work, the most first, and by index.
static void sort_by_work(const double *work, int64_t count, int64_t *samples, int64_t *other) {
  for (int64_t i = 0; i < count; i++) samples[i] = i;
  for (int64_t width = 1; width < count; width *= 2) {
    for (int64_t begin = 0; begin < count; begin += 2 * width) {
      int64_t middle = begin + width < count ? begin + width : count;
      int64_t end = middle + width < count ? middle + width : count;
      for (int64_t i = begin, j = middle, to = begin; to < end; to++) {
        bool first = j == end || (i < middle && work[samples[i]] >= work[samples[j]]);
        other[to] = samples[first ? i++ : j++];
      }
    }
    for (int64_t i = 0; i < count; i++) samples[i] = other[i];
  }
}

// Samples over groups of as many. `scratch` has room for three numbers per sample.
static void spread(const double *work, int64_t groups, int64_t per_group, int64_t *sample_at,
                   int64_t *scratch) {
  _Static_assert(sizeof(double) == sizeof(int64_t), "loads lie in the scratch");
  const int64_t count = groups * per_group;
  int64_t *samples = scratch, *filled = scratch + count;
  sort_by_work(work, count, samples, filled);
  heap h = {.load = (double *)(void *)(scratch + 2 * count), .groups = sample_at, .count = groups};
  for (int64_t g = 0; g < groups; g++) h.load[g] = 0, h.groups[g] = g, filled[g] = 0;
  // The heap lies in sample_at, so places are noted in the sorted list's stead first: sample i has place
  // place[i].
  int64_t *place = samples;
  for (int64_t i = 0; i < count; i++) {
    int64_t group = h.groups[0], sample = samples[i];
    h.load[group] += work[sample];
    place[i] = sample * count + group * per_group + filled[group]++;
    if (filled[group] == per_group) h.groups[0] = h.groups[--h.count];
    sink(&h);
  }
  for (int64_t i = 0; i < count; i++) sample_at[place[i] % count] = place[i] / count;
}

void fsdp_spread_work(const double *work, int64_t micro_batches, int64_t ranks, int64_t batch,
                      int64_t *sample_at, int64_t *scratch) {
  FSDP_CHECK(micro_batches >= 1 && ranks >= 1 && batch >= 1, "%lld micro-batches of %lld ranks with %lld",
             (long long)micro_batches, (long long)ranks, (long long)batch);
  const int64_t each = ranks * batch, count = micro_batches * each;
  int64_t *samples = scratch, *at = samples + count, *more = at + each;
  double *part = (double *)(void *)(more + 3 * each);
  spread(work, micro_batches, each, samples, samples + count);
  for (int64_t m = 0; m < micro_batches; m++) {
    const int64_t *of_part = samples + m * each;
    for (int64_t i = 0; i < each; i++) part[i] = work[of_part[i]];
    spread(part, ranks, batch, at, more);
    for (int64_t i = 0; i < each; i++) sample_at[m * each + i] = of_part[at[i]];
  }
}
