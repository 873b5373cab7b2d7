// One operator of a network on a rank's parts, in fp32.
//
// Where the op table has a kernel, that of the CPU computes it: matmul (linear), add (add, add_bias), slice
// (take_columns), gather (embedding), rmsnorm, attention (context_attention). mul, relu, transpose and
// reduce_mean are plain loops here, as are sums in which a dimension in the middle is broadcast: no model
// family has them, so kernels for them would be in every program and run in none.
#pragma once

#include "runtime/plan/sharding/dataflow.h"

#define NETWORK_NORM_EPS 1e-6f

typedef struct fsdp_pool fsdp_pool;

// Part of a tensor on a rank: `shape` items from `begin` on.
typedef struct network_part {
  int dims;
  int64_t shape[FSDP_MAX_DIMS], begin[FSDP_MAX_DIMS], numel;
  int64_t slot_numel; // of the largest rank's part: for collectives, whose slots are equal
  float *data;
} network_part;

// Fills out->data from the parts of the inputs. Where a letter is cut that the output lacks, that is this
// rank's summand. Heads of attention must be cut so that a rank has the keys of its queries.
void network_compute(const fsdp_dataflow *flow, int op, const network_part *in, network_part *out,
                     fsdp_pool *pool);
