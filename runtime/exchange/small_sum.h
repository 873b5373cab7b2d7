// An all-reduce of few values, in which latency counts.
//
//   blocks of 64 ranks    gather all values, and add them in the order of ranks
//   first ranks of these  add the blocks' sums pairwise, doubling how many blocks a sum is of
//   blocks                get the sum from their first rank
//
// A rank sends about log W messages, of at most 32 ranks' values. Sums are fp32 and rounded once; their order
// depends on the number of ranks alone, and up to 64 ranks it is that of the ranks.
#pragma once

#include "runtime/base/dtype.h"
#include "runtime/exchange/comm_sum.h"
#include "runtime/exchange/exchange.h"

#define FSDP_SMALL_SUM_BLOCK 64
// Of a rank's values at most.
#define FSDP_SMALL_SUM_BYTES ((int64_t)4096)

typedef struct fsdp_small_sum fsdp_small_sum;

// For rank `rank` of all `size` of the link; link and sum outlive it.
fsdp_small_sum *fsdp_small_sum_create(const fsdp_link *link, int rank, int size, fsdp_comm_sum *sum);
void fsdp_small_sum_destroy(fsdp_small_sum *self); // NULL is allowed

// values = the sum of all ranks' values, the same bits on all; fp32 or bf16. Allocates nothing.
void fsdp_small_sum_run(fsdp_small_sum *self, void *values, int64_t numel, fsdp_dtype dtype);
