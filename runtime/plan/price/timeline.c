#include "runtime/plan/price/timeline.h"

#include "runtime/base/check.h"

fsdp_timeline *fsdp_timeline_create(const fsdp_program *program, int64_t capacity) {
  fsdp_timeline *timeline = fsdp_alloc_zeroed(1, sizeof *timeline);
  timeline->program = program;
  timeline->capacity = capacity > 0 ? capacity : 1;
  timeline->events = fsdp_alloc((size_t)timeline->capacity * sizeof *timeline->events);
  return timeline;
}

void fsdp_timeline_destroy(fsdp_timeline *timeline) {
  if (!timeline) return;
  free(timeline->events);
  free(timeline);
}

void fsdp_timeline_append(fsdp_timeline *timeline, const fsdp_timeline_event *event) {
  FSDP_CHECK(event->position >= 0 && event->position < timeline->program->instr_count &&
                 event->begin_s <= event->end_s,
             "event of instruction %d from %g to %g s", event->position, event->begin_s, event->end_s);
  if (timeline->count == timeline->capacity) {
    timeline->capacity *= 2;
    timeline->events = fsdp_realloc(timeline->events, (size_t)timeline->capacity * sizeof *timeline->events);
  }
  timeline->events[timeline->count++] = *event;
}
