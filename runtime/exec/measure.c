#include "runtime/exec/measure.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

// A rectangle: bytes [begin, end) of a buffer needed over issues [first, last].
typedef struct stretch {
  int64_t begin, end, first, last;
  int buffer, space;
} stretch;

// Bytes between two neighbouring borders of the buffer's events: they share their whole history.
typedef struct segment {
  int64_t begin, end;
  int64_t first, last; // of the lifetime that is open; last < 0: none yet
  bool carried;
  int64_t counted_in; // the first stretch of the component that has counted it
} segment;

// A buffer over one connected stretch of time: the hull of some of its stretches.
typedef struct component {
  stretch hull;
  int64_t from, to; // its stretches
} component;

typedef struct measurer {
  const fsdp_measure_event **events; // grouped by buffer, in order within it
  int64_t issue_count;
  int64_t *change[FSDP_MEASURE_SPACES]; // of live bytes at each issue
  int64_t valley[FSDP_MEASURE_SPACES];
  stretch *stretches;
  int stretch_count, stretch_capacity;
  int64_t *borders;  // room for two of every event
  segment *segments; // the same
  component *components;
  int component_count, component_capacity;
} measurer;

static int compare_i64(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static int compare_first(const void *a, const void *b) {
  const stretch *x = a, *y = b;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  if (x->last != y->last) return x->last < y->last ? -1 : 1;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

// The segments of a buffer's events; returns their number.
static int64_t cut_segments(measurer *self, const fsdp_measure_event *const *events, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    self->borders[2 * i] = events[i]->begin;
    self->borders[2 * i + 1] = events[i]->end;
  }
  qsort(self->borders, (size_t)(2 * count), sizeof *self->borders, compare_i64);
  int64_t segments = 0;
  for (int64_t i = 1; i < 2 * count; i++) {
    if (self->borders[i] == self->borders[i - 1]) continue;
    self->segments[segments++] =
        (segment){.begin = self->borders[i - 1], .end = self->borders[i], .last = -1, .counted_in = -1};
  }
  return segments;
}

static int64_t first_segment(const measurer *self, int64_t count, int64_t address) {
  int64_t low = 0, high = count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (self->segments[middle].begin < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void close_lifetime(measurer *self, const segment *bytes, const fsdp_measure_event *event,
                           int64_t last) {
  self->stretches =
      fsdp_grow(self->stretches, self->stretch_count + 1, &self->stretch_capacity, sizeof *self->stretches);
  self->stretches[self->stretch_count++] =
      (stretch){bytes->begin, bytes->end, bytes->first, last, event->buffer, event->space};
}

static void access_segment(measurer *self, segment *bytes, const fsdp_measure_event *event) {
  bool open = bytes->last >= 0;
  if (open && bytes->last == event->issue) return; // only an instruction's first access begins a lifetime
  if (event->access == FSDP_WRITE) {
    if (open) close_lifetime(self, bytes, event, bytes->last);
    bytes->first = event->issue;
  } else if (!open) {
    bytes->carried = true;
    bytes->first = 0;
  }
  bytes->last = event->issue;
}

// Counts a component of the buffer whose stretches these are.
static void add_component(measurer *self, int64_t from, int64_t to, int64_t bytes, bool carries) {
  stretch hull = self->stretches[from];
  for (int64_t i = from + 1; i < to; i++) {
    const stretch *part = &self->stretches[i];
    if (part->begin < hull.begin) hull.begin = part->begin;
    if (part->end > hull.end) hull.end = part->end;
    if (part->last > hull.last) hull.last = part->last;
  }
  if (carries) hull.first = 0, hull.last = self->issue_count - 1;
  self->change[hull.space][hull.first] += bytes;
  self->change[hull.space][hull.last + 1] -= bytes;
  self->components = fsdp_grow(self->components, self->component_count + 1, &self->component_capacity,
                               sizeof *self->components);
  self->components[self->component_count++] = (component){hull, from, to};
}

// Joins neighbouring bytes with the same lifetime: fewer stretches to compare. Sorts them by time too.
static void join_stretches(measurer *self, int64_t from) {
  stretch *all = self->stretches;
  qsort(all + from, (size_t)(self->stretch_count - from), sizeof *all, compare_first);
  int kept = (int)from;
  for (int64_t i = from; i < self->stretch_count; i++) {
    stretch *before = kept > from ? &all[kept - 1] : NULL;
    if (before && before->first == all[i].first && before->last == all[i].last &&
        before->end == all[i].begin) {
      before->end = all[i].end;
    } else {
      all[kept++] = all[i];
    }
  }
  self->stretch_count = kept;
}

// Counts each connected stretch of time once, with the distinct bytes that it holds. Stretches are sorted by
// time.
static void count_components(measurer *self, int64_t from, int64_t segment_count) {
  for (int64_t i = from; i < self->stretch_count;) {
    int64_t begin = i, last = self->stretches[i].last, bytes = 0;
    for (; i < self->stretch_count && self->stretches[i].first <= last; i++) {
      const stretch *part = &self->stretches[i];
      if (part->last > last) last = part->last;
      for (int64_t s = first_segment(self, segment_count, part->begin);
           s < segment_count && self->segments[s].begin < part->end; s++) {
        if (self->segments[s].counted_in == begin) continue;
        self->segments[s].counted_in = begin;
        bytes += self->segments[s].end - self->segments[s].begin;
      }
    }
    add_component(self, begin, i, bytes, false);
  }
}

static void measure_buffer(measurer *self, const fsdp_measure_event *const *events, int64_t count) {
  int64_t from = self->stretch_count, segments = cut_segments(self, events, count);
  for (int64_t i = 0; i < count; i++) {
    for (int64_t s = first_segment(self, segments, events[i]->begin);
         s < segments && self->segments[s].begin < events[i]->end; s++) {
      access_segment(self, &self->segments[s], events[i]);
    }
  }
  int64_t touched = 0;
  bool carries = false;
  for (int64_t s = 0; s < segments; s++) {
    const segment *bytes = &self->segments[s];
    if (bytes->last < 0) continue; // a gap between accessed ranges
    close_lifetime(self, bytes, events[0], bytes->carried ? self->issue_count - 1 : bytes->last);
    touched += bytes->end - bytes->begin;
    carries = carries || bytes->carried;
  }
  join_stretches(self, from);
  if (carries) {
    self->valley[events[0]->space] += touched;
    add_component(self, from, self->stretch_count, touched, true);
  } else {
    count_components(self, from, segments);
  }
}

static bool apart(const stretch *a, const stretch *b) {
  return a->buffer == b->buffer || a->space != b->space || a->end <= b->begin || b->end <= a->begin ||
         a->last < b->first || b->last < a->first;
}

// Whether two components need one byte at one time, once their hulls have met.
static bool components_collide(const measurer *self, const component *a, const component *b, char *message,
                               int message_bytes) {
  for (int64_t i = a->from; i < a->to; i++) {
    for (int64_t j = b->from; j < b->to; j++) {
      const stretch *old = &self->stretches[i], *new = &self->stretches[j];
      if (apart(old, new)) continue;
      snprintf(message, (size_t)message_bytes,
               "buffers %d and %d both need byte %lld of space %d: the first over issues %lld to %lld, the "
               "second over %lld to %lld",
               old->buffer, new->buffer, (long long)(old->begin > new->begin ? old->begin : new->begin),
               new->space, (long long)old->first, (long long)old->last, (long long)new->first,
               (long long)new->last);
      return true;
    }
  }
  return false;
}

static int compare_components(const void *a, const void *b) {
  return compare_first(&((const component *)a)->hull, &((const component *)b)->hull);
}

// Components are swept by their first issue.
static bool find_collision(measurer *self, char *message, int message_bytes) {
  if (self->component_count == 0) return false; // qsort requires an array
  qsort(self->components, (size_t)self->component_count, sizeof *self->components, compare_components);
  const component **active = fsdp_alloc((size_t)self->component_count * sizeof(component *));
  int64_t active_count = 0;
  bool found = false;
  for (int64_t i = 0; i < self->component_count && !found; i++) {
    const component *new = &self->components[i];
    int64_t kept = 0;
    for (int64_t a = 0; a < active_count; a++) {
      if (active[a]->hull.last < new->hull.first) continue;
      active[kept++] = active[a];
      if (!found && !apart(&active[a]->hull, &new->hull)) {
        found = components_collide(self, active[a], new, message, message_bytes);
      }
    }
    active_count = kept;
    active[active_count++] = new;
  }
  free(active);
  return found;
}

// Events by buffer, in order within each; returns the number of buffers, and where each begins in starts[].
static int group_events(measurer *self, const fsdp_measure_event *events, int64_t count, int64_t **starts) {
  int buffers = 0;
  for (int64_t i = 0; i < count; i++) {
    if (events[i].buffer >= buffers) buffers = events[i].buffer + 1;
  }
  int64_t *start = fsdp_alloc_zeroed((size_t)buffers + 1, sizeof *start);
  for (int64_t i = 0; i < count; i++) start[events[i].buffer + 1]++;
  for (int b = 0; b < buffers; b++) start[b + 1] += start[b];
  int64_t *next = fsdp_alloc((size_t)(buffers + 1) * sizeof *next);
  memcpy(next, start, (size_t)(buffers + 1) * sizeof *next);
  self->events = fsdp_alloc((size_t)count * sizeof(fsdp_measure_event *));
  for (int64_t i = 0; i < count; i++) self->events[next[events[i].buffer]++] = &events[i];
  free(next);
  *starts = start;
  return buffers;
}

static void find_peaks(const measurer *self, fsdp_measurement *measurement) {
  memset(measurement, 0, sizeof *measurement);
  for (int s = 0; s < FSDP_MEASURE_SPACES; s++) {
    measurement->valley_bytes[s] = self->valley[s];
    int64_t live = 0;
    for (int64_t i = 0; i < self->issue_count; i++) {
      live += self->change[s][i];
      if (live <= measurement->peak_bytes[s]) continue;
      measurement->peak_bytes[s] = live;
      measurement->peak_issue[s] = i;
    }
  }
}

bool fsdp_measure(const fsdp_measure_event *events, int64_t event_count, int64_t issue_count,
                  fsdp_measurement *measurement, char *message, int message_bytes) {
  measurer self = {.issue_count = issue_count};
  for (int s = 0; s < FSDP_MEASURE_SPACES; s++) {
    self.change[s] = fsdp_alloc_zeroed((size_t)issue_count + 1, sizeof(int64_t));
  }
  for (int64_t i = 0; i < event_count; i++) {
    FSDP_CHECK(events[i].issue >= 0 && events[i].issue < issue_count &&
                   (i == 0 || events[i - 1].issue <= events[i].issue),
               "event %lld of issue %lld is out of order", (long long)i, (long long)events[i].issue);
  }
  self.borders = fsdp_alloc((size_t)(2 * event_count) * sizeof *self.borders);
  self.segments = fsdp_alloc((size_t)(2 * event_count) * sizeof *self.segments);
  int64_t *starts;
  int buffers = group_events(&self, events, event_count, &starts);
  for (int b = 0; b < buffers; b++) {
    if (starts[b + 1] > starts[b]) measure_buffer(&self, self.events + starts[b], starts[b + 1] - starts[b]);
  }
  find_peaks(&self, measurement);
  bool collides = find_collision(&self, message, message_bytes);
  for (int s = 0; s < FSDP_MEASURE_SPACES; s++) free(self.change[s]);
  free(starts);
  free(self.events);
  free(self.borders);
  free(self.segments);
  free(self.stretches);
  free(self.components);
  return !collides;
}
