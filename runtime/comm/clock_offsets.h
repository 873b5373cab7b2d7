// How far the monotonic clocks of the ranks' machines are apart.
//
// Every rank notes its clock before and after an exchange that no rank leaves before all have come:
//
//   rank 0   enter_0 ──────────────── leave_0
//   rank r          enter_r ───────────────────── leave_r       enter_0 <= leave_r and enter_r <= leave_0
//
// So the offset (r's clock minus rank 0's) is in [enter_r - leave_0, leave_r - enter_0]; the intersection
// over several exchanges is narrow, as ranks come and leave in different orders.
#pragma once

#include "runtime/comm/world.h"

typedef struct fsdp_clock_offset {
  int64_t ns;       // to subtract from the rank's clock for rank 0's
  int64_t error_ns; // at most this far from the truth; 0: it is the same clock
} fsdp_clock_offset;

// An interval that offsets are known to be in.
typedef struct fsdp_clock_bounds {
  int64_t low_ns, high_ns;
} fsdp_clock_bounds;

// Narrows the bounds by one exchange. `rank` and `first`: when rank r and rank 0 entered and left.
typedef struct fsdp_clock_visit {
  int64_t enter_ns, leave_ns;
} fsdp_clock_visit;
void fsdp_clock_bounds_narrow(fsdp_clock_bounds *bounds, fsdp_clock_visit rank, fsdp_clock_visit first);

// The middle of the bounds; none if the machine is the same and the bounds allow it.
fsdp_clock_offset fsdp_clock_offset_within(fsdp_clock_bounds bounds, bool same_machine);

// Measures the offsets of some ranks' clocks from the first one's into offsets[count], with a few exchanges
// among these. Every rank of the world must call it; those that are not among `ranks` get nothing.
void fsdp_clock_offsets_measure(fsdp_world *world, const int *ranks, int count, fsdp_clock_offset *offsets);
