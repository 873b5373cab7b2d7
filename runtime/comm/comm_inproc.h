// The in-process world: ranks are threads of one process. For tests with many ranks, and for race detectors,
// which then see across ranks.
#pragma once

#include "runtime/comm/comm.h"

typedef struct fsdp_inproc fsdp_inproc;

// The groups of all ranks: rank r joins groups[r * group_count + c] in communicator c. Outlives its
// communicators.
fsdp_inproc *fsdp_inproc_create(const fsdp_comm_group *groups, int group_count, int ranks);
void fsdp_inproc_destroy(fsdp_inproc *inproc);

// Communicator `index` of `rank`; the caller owns it. A group of one rank is "self".
fsdp_comm *fsdp_inproc_comm(fsdp_inproc *inproc, int index, int rank);
