// The watchdog: knows which collectives are under way on the GPU's streams, and shows them on the board.
//
//   post ─► [oldest | ... | newest]   polled four times a second: complete ones leave, and are progress of
//                                     their stream's lane; if the oldest stays, the lane waits at it
//
// Whether the job is stuck is for the watch to say (watch.h).
#pragma once

#include "runtime/watch/board.h"

typedef struct fsdp_watchdog fsdp_watchdog;

typedef struct fsdp_watchdog_config {
  int timeout_s; // for a driver call that does not return
  int ordinal;   // of the GPU
  // Looks at the communicators, on the watchdog's thread; ends the job itself if one has failed.
  void (*look)(void *owner);
  void *owner;
} fsdp_watchdog_config;

// Starts the thread.
fsdp_watchdog *fsdp_watchdog_create(const fsdp_watchdog_config *config);
void fsdp_watchdog_destroy(fsdp_watchdog *watchdog); // NULL is allowed

// After a collective was enqueued on `stream`; `lane` is NULL if it belongs to no program.
void fsdp_watchdog_post(fsdp_watchdog *watchdog, void *stream, fsdp_board_lane *lane, fsdp_place place);
