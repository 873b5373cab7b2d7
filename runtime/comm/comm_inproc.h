// The in-process world: ranks are threads of one process. For tests with many ranks, and for race detectors,
// which then see across ranks.
#pragma once

#include "runtime/comm/comm.h"
#include "runtime/plan/layout/mesh.h"

typedef struct fsdp_inproc fsdp_inproc;

// The groups of `mesh`, for all its ranks. Outlives its communicators.
fsdp_inproc *fsdp_inproc_create(const fsdp_mesh *mesh);
void fsdp_inproc_destroy(fsdp_inproc *inproc);

// The communicator of `rank` in its group; the caller owns it. A group of one rank is "self".
fsdp_comm *fsdp_inproc_comm(fsdp_inproc *inproc, fsdp_group group, int rank);
