// A step's samples over its groups (the micro-batches of each rank) so that each has about as much work: the
// longest first, each to the group that has least and has room (Graham, "Bounds on Multiprocessing Timing
// Anomalies", 1969). A pure function of the work; ties go to the lower index.
#pragma once

#include <stdint.h>

// sample_at[p] for p < groups * per_group: the sample in place p % per_group of group p / per_group. Every
// sample from 0 on has one place. `scratch` has room for 3 * groups * per_group numbers.
void fsdp_spread_work(const double *work, int64_t groups, int64_t per_group, int64_t *sample_at,
                      int64_t *scratch);
