// Every collective with inputs whose sums are exact, for the tests of all communicators.
#pragma once

#include "runtime/comm/comm.h"

// Bytes of buffer that one rank needs for slots of `elems`.
int64_t comm_cases_bytes(int size, int64_t numel);

// Runs every collective once with slots of `elems`, in every placement of input and output, in fp32 and bf16,
// within `buffer` (64-byte aligned). Every rank of the group calls it. Returns the number of wrong elements,
// with the first wrong place in `message`.
int64_t comm_cases_run(fsdp_comm *comm, int64_t numel, void *buffer, char *message, int message_bytes);
