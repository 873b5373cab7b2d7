// For small processes that a rank forks. Peers see a rank's connections close when it ends, and readers of
// its output wait for that end, so a forked process must not hold these descriptors open.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

// Closes every descriptor from `first` on. Safe after a fork in a process with threads.
static inline void fsdp_close_from(int first) {
  if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
  for (int i = first; i < 1024; i++) close(i);
}
