// A stream that is a thread: a ring of entries, run in order; the thread sleeps while there is none. Finished
// work is a counter that others wait for asleep. All streams of the CPU device are workers, and so is the
// host stream of every other device.
#pragma once

#include "runtime/device/device.h"

#include <stdatomic.h>

typedef struct fsdp_worker fsdp_worker;

typedef struct fsdp_worker_config {
  fsdp_stream_context context; // what the work sees; its pool is made by the worker
  int threads;                 // of kernels, the worker's own included
  int queue_capacity;          // entries, work and waits; at least 2 are made
  // Called by the worker at its place in the queue; returns when `ticket` of stream `awaited` is complete.
  void (*wait)(void *owner, fsdp_stream awaited, uint64_t ticket);
  void *owner;
  // A second place for the counter of complete tickets, for a device that polls it; may be NULL.
  _Atomic uint64_t *published;
} fsdp_worker_config;

// Starts the thread. Never NULL.
fsdp_worker *fsdp_worker_create(const fsdp_worker_config *config);
void fsdp_worker_destroy(fsdp_worker *worker); // runs what is queued; NULL is allowed

// The launching thread's: appends work, or a wait; blocks while the ring is full.
uint64_t fsdp_worker_launch(fsdp_worker *worker, const fsdp_work *work);
void fsdp_worker_launch_wait(fsdp_worker *worker, fsdp_stream awaited, uint64_t ticket);

// Any thread's.
bool fsdp_worker_is_over(const fsdp_worker *worker, uint64_t ticket);
void fsdp_worker_synchronize(fsdp_worker *worker, uint64_t ticket);
