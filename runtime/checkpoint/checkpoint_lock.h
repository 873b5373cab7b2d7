// One run at a time in an experiment's folder.
//
//   .lock        locked by flock while a run writes here, and says who it is; a killed run leaves the file,
//                but not the lock
//   .lock.held   only where the file system has no flock (Lustre without -o flock, NFS without its lock
//                service): it exists while a run writes here. One that a process of this machine left behind
//                when it was killed is taken over; one of another machine must be removed by hand.
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>

// Called once before waiting for another run that holds the folder; `holder` is "process 123 on host a", or
// "another run" if that is unknown.
typedef void (*fsdp_checkpoint_wait)(const char *folder, const char *holder, int wait_ms);

typedef struct fsdp_checkpoint_lock {
  int descriptor; // of .lock; -1: not locked, or by .lock.held
  bool held;      // by .lock.held
} fsdp_checkpoint_lock;

#define FSDP_CHECKPOINT_UNLOCKED ((fsdp_checkpoint_lock){.descriptor = -1})

// Locks the folder against other runs, waiting up to `wait_ms` for one that is just ending. FSDP_ERR_INPUT if
// another run keeps it, or the folder cannot be written.
fsdp_status fsdp_checkpoint_lock_take(const char *folder, int wait_ms, fsdp_checkpoint_wait waiting,
                                      fsdp_checkpoint_lock *lock, fsdp_error *error);

// Unlocks the folder and removes the files. Unlocked already: nothing.
void fsdp_checkpoint_lock_release(const char *folder, fsdp_checkpoint_lock *lock);

// Takes `call` in place of flock; NULL: flock again. For tests of file systems that have none.
void fsdp_checkpoint_lock_set_flock(int (*call)(int descriptor, int operation));
