// The end of what started this process, if it can no longer do its work: Open MPI's mpirun, which waits
// without a limit for daemons that it cannot reach, and its daemon orted, which waits for mpirun.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// The nearest mpirun or orted above this process; a handle of it, so that it stays the same process.
typedef struct fsdp_launcher {
  int process, handle; // handle: a pidfd; -1: there is none
  bool is_parent;      // of this process itself
  bool is_daemon;      // orted
} fsdp_launcher;

// fsdp_launcher_close when done.
fsdp_launcher fsdp_launcher_find(void);
void fsdp_launcher_close(fsdp_launcher *launcher);

// Ends it within two seconds: SIGTERM twice, on which mpirun leaves with status 1 without waiting for anyone.
// Does nothing under another launcher, which has its own time limits.
void fsdp_launcher_end(const fsdp_launcher *launcher);

// Its own standard output or error; -1 if it cannot be opened, for example a socket.
int fsdp_launcher_output(const fsdp_launcher *launcher, int number);

// What it may take to end a job of which a rank has failed.
int64_t fsdp_launcher_patience_ms(const fsdp_launcher *launcher);

// The right to report a failure of its job on this node, where ranks share no memory yet. One socket has it
// until all its processes have closed it. fsdp_launcher_claim may be called again.
int fsdp_launcher_claim_open(void); // the socket, or -1
bool fsdp_launcher_claim(const fsdp_launcher *launcher, int socket);

// Waits up to `ms` for its end; 0 only checks. True if there is none.
bool fsdp_launcher_has_ended(const fsdp_launcher *launcher, int ms);
