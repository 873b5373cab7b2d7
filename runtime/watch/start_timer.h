// The time limit for joining the job, before there is a watch: the start of MPI waits without a limit for
// ranks that were stopped and nodes that cannot be reached.
#pragma once

// From here on: after `seconds`, a thread prints one error message per node, ends an mpirun that may be
// waiting for another node, and ends the process with FSDP_ERR_PEER.
void fsdp_start_timer_begin(int seconds);

// The job is joined.
void fsdp_start_timer_end(void);
