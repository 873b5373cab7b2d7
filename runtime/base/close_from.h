// For small processes that a rank forks: peers see a rank's connections close when it ends, and whoever reads
// its output waits for its end, so that nobody else may hold them open.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

// Closes every descriptor from `first` on. Safe after a fork among threads.
static inline void fsdp_close_from(int first) {
  if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
  for (int i = first; i < 1024; i++) close(i);
}
