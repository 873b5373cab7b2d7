// A step's samples over its micro-batches, and each micro-batch's over the ranks, so that each has about as
// much work: the longest first, each to the one that has least and has room (Graham, "Bounds on
// Multiprocessing Timing Anomalies", 1969). Micro-batches have the same samples whatever the ranks, as the
// losses of routers depend on them. A pure function of the work; ties go to the lower index.
#pragma once

#include <stdint.h>

#define FSDP_SPREAD_SCRATCH 6

// sample_at[p] for p < micro_batches * ranks * batch: the sample in place p % batch of rank p / batch % ranks
// in micro-batch p / batch / ranks. Every sample from 0 on has one place. `scratch` has room for
// FSDP_SPREAD_SCRATCH numbers per sample.
void fsdp_spread_work(const double *work, int64_t micro_batches, int64_t ranks, int64_t batch,
                      int64_t *sample_at, int64_t *scratch);
