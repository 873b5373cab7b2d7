// Stopping between two steps: SIGINT, SIGTERM, SIGHUP and SIGUSR1 are remembered and looked at when a step is
// done.
#pragma once

// Remembers the signals from now on; a second one, but of SIGUSR1, ends the process at once.
void fsdp_stop_install(void);

// The signal that came first, or 0.
int fsdp_stop_signal(void);

// What the program exits with after `signal`: 130 for SIGINT, 143 for the others.
int fsdp_stop_status(int signal);

// "SIGTERM", ...
const char *fsdp_stop_name(int signal);
