// The end of what started this process, where it can no longer do its work: Open MPI's mpirun, which waits
// without a limit for daemons that it cannot reach, and its daemon orted, which waits for mpirun.
#pragma once

#include <stdbool.h>

// Finds the nearest of them among this process's ancestors and ends it, within a second: SIGTERM twice, on
// which mpirun leaves with status 1 without waiting for anyone. Does nothing under another launcher, which
// has its own time limits.
void fsdp_launcher_end(void);

// Whether an mpirun or orted is above this process.
bool fsdp_launcher_is_there(void);
