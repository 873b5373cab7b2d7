#include "runtime/comm/clock_offsets.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/size.h"

#define EXCHANGES 16

void fsdp_clock_bounds_narrow(fsdp_clock_bounds *bounds, fsdp_clock_visit rank, fsdp_clock_visit first) {
  bounds->low_ns = fsdp_max_i64(bounds->low_ns, rank.enter_ns - first.leave_ns);
  bounds->high_ns = fsdp_min_i64(bounds->high_ns, rank.leave_ns - first.enter_ns);
}

fsdp_clock_offset fsdp_clock_offset_within(fsdp_clock_bounds bounds, bool same_machine) {
  // Ranks of one machine may still have clocks of their own, in time namespaces.
  if (same_machine && bounds.low_ns <= 0 && bounds.high_ns >= 0) return (fsdp_clock_offset){0, 0};
  int64_t half_ns = (bounds.high_ns - bounds.low_ns) / 2;
  return (fsdp_clock_offset){bounds.low_ns + half_ns, half_ns + 1};
}

void fsdp_clock_offsets_measure(fsdp_world *world, const int *ranks, int count, fsdp_clock_offset *offsets) {
  typedef struct note {
    fsdp_clock_visit visit; // leave_ns of the exchange before
    int64_t node;
  } note;
  fsdp_peers peers = fsdp_world_among(world, ranks, count);
  if (peers.place < 0) return;
  size_t size = (size_t)count;
  note *notes = fsdp_alloc(size * sizeof *notes);
  int64_t *entered_ns = fsdp_alloc_zeroed(size, sizeof *entered_ns), left_ns = 0;
  fsdp_clock_bounds *bounds = fsdp_alloc(size * sizeof *bounds);
  for (int i = 0; i < count; i++) bounds[i] = (fsdp_clock_bounds){INT64_MIN, INT64_MAX};
  for (int exchange = 0; exchange <= EXCHANGES; exchange++) {
    note mine = {{fsdp_now_ns(), left_ns}, world->node_index};
    fsdp_exchange_gather(&peers, &mine, (int64_t)sizeof mine, notes);
    left_ns = fsdp_now_ns();
    for (int i = 0; i < count; i++) {
      fsdp_clock_visit first = {entered_ns[0], notes[0].visit.leave_ns};
      fsdp_clock_visit visit = {entered_ns[i], notes[i].visit.leave_ns};
      if (exchange > 0) fsdp_clock_bounds_narrow(&bounds[i], visit, first);
    }
    for (int i = 0; i < count; i++) entered_ns[i] = notes[i].visit.enter_ns;
  }
  for (int i = 0; i < count; i++)
    offsets[i] = fsdp_clock_offset_within(bounds[i], notes[i].node == notes[0].node);
  free(notes);
  free(entered_ns);
  free(bounds);
}
