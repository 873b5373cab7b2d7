// The watchdog: knows what is under way on the GPU's streams, and ends the job when nothing of it moves.
//
//   post ─► [oldest | ... | newest]   looked at four times a second: what is over leaves; where the oldest
//                                     is the same for the time limit, the job ends with its name
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_watchdog fsdp_watchdog;

typedef struct fsdp_watchdog_config {
  int timeout_s;
  int ordinal; // of the GPU
  // Looks at the communicators, on the watchdog's thread; ends the job itself where one has failed.
  void (*look)(void *owner);
  void *owner;
} fsdp_watchdog_config;

// Starts the thread.
fsdp_watchdog *fsdp_watchdog_create(const fsdp_watchdog_config *config);
void fsdp_watchdog_destroy(fsdp_watchdog *watchdog); // NULL is allowed

// After a collective was enqueued on `stream`. `what` and `unit` (NULL: none) outlive the watchdog.
void fsdp_watchdog_post(fsdp_watchdog *watchdog, void *stream, const char *what, const char *unit,
                        int64_t step);
