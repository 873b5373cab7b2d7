// The end of what started this process, where it can no longer do its work: Open MPI's mpirun, which waits
// without a limit for daemons that it cannot reach, and its daemon orted, which waits for mpirun.
#pragma once

// Finds the nearest of them among this process's ancestors and ends it, within a second: SIGTERM twice, on
// which mpirun leaves with status 1 without waiting for anyone. Does nothing under another launcher, which
// has its own time limits.
void fsdp_launcher_end(void);
