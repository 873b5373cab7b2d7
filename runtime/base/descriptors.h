// Files by their descriptors: whole reads and writes, through signals and calls that do a part, and what a
// small process that a rank forks must not keep open.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

// Writes all bytes; false with the reason in errno. Safe after a fork in a process with threads.
bool fsdp_write_all(int descriptor, const void *data, int64_t bytes);

// Reads `bytes` at `offset`, marking progress (progress.h); false with the reason in errno (0: the file ends
// before).
bool fsdp_read_at(int descriptor, int64_t offset, void *out, int64_t bytes);

// The rest of a file, which may be a pipe: *bytes bytes, and a zero behind them. It stops reading once it has
// more than `most`. NULL with the reason in errno. The caller frees it.
char *fsdp_read_rest(int descriptor, int64_t most, int64_t *bytes);

// Makes the names in a folder durable; false with the reason in errno.
bool fsdp_sync_folder(const char *folder);

// FSDP_ERR_INPUT: "PATH: WHAT failed (the reason in errno);" and what helps against the reason, such
// as "make room there", "or give another folder".
fsdp_status fsdp_fail_write(const char *path, const char *what, fsdp_error *error);

// What helps where a file cannot be opened for `reason`: rights to read it, else `other`.
const char *fsdp_read_remedy(int reason, const char *other);

// Closes every descriptor from `first` on: peers see a rank's connections close when it ends, and readers of
// its output wait for that end. Safe after a fork in a process with threads.
static inline void fsdp_close_from(int first) {
  if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
  for (int i = first; i < 1024; i++) close(i);
}
