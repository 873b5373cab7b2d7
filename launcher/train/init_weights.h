// New weights, by all the cores of a rank: a model of 8 billion elements takes one core minutes.
#pragma once

#include "models/graph/graph.h"
#include "runtime/device/pool.h"

// Fills out[numel] with elements [first, first + numel) of a parameter's initialisation, the same values
// whatever the number of threads.
void fsdp_init_param(fsdp_pool *pool, const fsdp_param *param, uint64_t seed, int64_t first, int64_t numel,
                     float *out);
