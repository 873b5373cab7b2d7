// A device: two arenas, a few streams, and what runs on them. A table of functions: a device is a row.
//
//   arena   one allocation per space (device, host), made at creation; nothing is allocated afterwards
//   stream  a queue of work, run in order; the CPU's is a worker thread that sleeps while there is none
//   ticket  place of a piece of work in its stream's order, from 1; ticket 0 is complete from the start
//
//   launch(stream, work) ─► [ work | wait for (stream, ticket) | work ] ─► run(work, context), in order
//
// One thread launches and waits (the executor's); the work itself runs on the streams. A wait is for work
// that was launched before, so queues always drain.
#pragma once

#include "runtime/base/arenas.h"
#include "runtime/base/status.h"
#include "runtime/base/stream.h"
#include "runtime/device/pool.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct fsdp_device fsdp_device;

// What work sees of the stream that it runs on.
typedef struct fsdp_stream_context {
  fsdp_stream stream;
  const struct fsdp_device_table *table;
  fsdp_pool *pool; // threads of CPU kernels, this stream's own
  void *native;    // CUDA: the stream to enqueue on; NULL if the calling thread is the stream
} fsdp_stream_context;

// `run` is called once, in the stream's order: by the stream's own thread, or, if the device has queues
// itself, by launch, to enqueue on context->native. The other fields are the owner's.
typedef struct fsdp_work {
  void (*run)(const struct fsdp_work *work, const fsdp_stream_context *context);
  void *owner;
  int item, part;
  int64_t serial, round;
  bool awaited; // another stream waits for it: a device that marks places in its queues marks this one
} fsdp_work;

typedef struct fsdp_device_config {
  int64_t arena_bytes[FSDP_SPACE_COUNT];
  bool shared; // CPU: peers on this machine may read the arenas (fsdp_arenas.file)
  // Threads of each stream's kernels, the stream's own included; 0: the stream gets no work at all (and no
  // thread).
  int stream_threads[FSDP_STREAM_COUNT];
  int queue_capacity; // entries of a stream's queue, work and waits; launch blocks while it is full
  int event_capacity; // CUDA: marks of a stream that are known at one time, those of three steps
  int ordinal;        // CUDA: which of the process's devices
  // CUDA: who allocates the device arena, so that communicators can register it (NULL if out of memory), and
  // frees it; NULL: the device itself.
  void *(*allocate)(int64_t bytes);
  void (*release)(void *memory);
  bool poisoned; // tests: the arenas are full of NaNs at first, so that a read of unwritten memory shows
} fsdp_device_config;

typedef struct fsdp_device_table {
  // The device has queues of its own: work only enqueues, so that its time is between two timestamps in them.
  bool enqueues;
  // FSDP_ERR_CAPACITY if the memory does not fit. The arenas' initial bytes are unspecified: code that needs
  // zeros writes them (state.h, the program's pads), so that tools can detect reads of unwritten memory.
  fsdp_status (*create)(const fsdp_device_config *config, fsdp_device **device, fsdp_error *error);
  void (*destroy)(fsdp_device *device); // the streams must be idle
  // Appends work to a stream; returns its ticket.
  uint64_t (*launch)(fsdp_device *device, fsdp_stream stream, const fsdp_work *work);
  // What is launched on `stream` from now on starts after `ticket` of stream `awaited` is complete.
  void (*wait)(fsdp_device *device, fsdp_stream stream, fsdp_stream awaited, uint64_t ticket);
  // Blocks the caller until `ticket` of the stream is complete.
  void (*synchronize)(fsdp_device *device, fsdp_stream stream, uint64_t ticket);
  // Copies in the stream's order, between any two places in the arenas.
  void (*copy)(const fsdp_stream_context *context, void *destination, const void *source, int64_t bytes);
  // Calls `function` when what is before it in the stream's order is complete, possibly on a driver thread;
  // it must return soon and not call the device.
  void (*notify)(const fsdp_stream_context *context, void (*function)(void *), void *argument);
  // If the device enqueues: makes room for `count` marks of time, of which there may be some already; marks a
  // time in the stream's order under the number `slot`, replacing its earlier mark; the milliseconds between
  // two complete marks.
  void (*reserve_timestamps)(fsdp_device *device, int count);
  void (*timestamp)(fsdp_device *device, const fsdp_stream_context *context, int slot);
  double (*timestamp_ms)(fsdp_device *device, int from, int to);
  // Copies between an arena and memory of the caller; the streams must be idle. What is written (copied,
  // set to zero) is in place after `flush` (NULL: at once); the caller's memory may be reused on return.
  // `piece_bytes` at a time move best (0: any number).
  void (*read)(fsdp_device *device, void *destination, const void *arena_source, int64_t bytes);
  void (*write)(fsdp_device *device, void *arena_destination, const void *source, int64_t bytes);
  void (*clear)(fsdp_device *device, void *arena_destination, int64_t bytes);
  // The native queue of what is written, for kernels that fill arenas in the same order; NULL if writes are
  // in place at once.
  void *(*write_stream)(fsdp_device *device);
  void (*flush)(fsdp_device *device);
  int64_t piece_bytes;
  // Bytes of the device that are in use as its driver counts them: the arena, what the driver and the
  // libraries keep for this process, and what other processes have there. NULL if no driver counts.
  int64_t (*used_bytes)(fsdp_device *device);
} fsdp_device_table;

struct fsdp_device {
  const fsdp_device_table *table;
  fsdp_arenas arenas;
};

// The device that every machine has: this one's cores and memory.
const fsdp_device_table *fsdp_device_cpu(void);

// An NVIDIA GPU; NULL in a build without CUDA. One per process. The host stream is a thread here too.
const fsdp_device_table *fsdp_device_cuda(void);
