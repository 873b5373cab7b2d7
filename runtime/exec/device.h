// A device: two arenas, a few streams, and what runs on them. A table of functions: a device is a row.
//
//   arena   one allocation a space (device, host), made at creation; nothing is allocated afterwards
//   stream  a queue of work, run in order; the CPU's is a worker thread that sleeps while there is none
//   ticket  place of a piece of work in its stream's order, from 1; ticket 0 is over from the start
//
//   launch(stream, work) ─► [ work | wait for (stream, ticket) | work ] ─► run(work, context), in order
//
// One thread launches and waits (the executor's); the work itself runs on the streams. A wait is for work
// that was launched before, so queues always drain.
#pragma once

#include "kernels/kernels.h"
#include "runtime/base/status.h"
#include "runtime/plan/program.h"

typedef struct fsdp_device fsdp_device;

// What work sees of the stream that it runs on.
typedef struct fsdp_stream_context {
  fsdp_stream stream;
  const fsdp_kernel_table *kernels;
  const struct fsdp_device_table *table;
  fsdp_pool *pool; // threads of CPU kernels, this stream's own
  void *native;    // CUDA: the stream to enqueue on; NULL where the calling thread is the stream
} fsdp_stream_context;

// `run` is called once, in the stream's order: by the stream's own thread, or, where the device has queues
// itself, by launch, to enqueue on context->native. The other fields are the owner's.
typedef struct fsdp_work {
  void (*run)(const struct fsdp_work *work, const fsdp_stream_context *context);
  void *owner;
  int item, part;
  int64_t serial, round;
} fsdp_work;

typedef struct fsdp_device_config {
  int64_t arena_bytes[FSDP_SPACE_COUNT];
  bool shared; // CPU: peers on this machine may read the arenas (fsdp_device_arena_file)
  // Threads of each stream's kernels, the stream's own included; 0: the stream gets no work at all (and no
  // thread).
  int stream_threads[FSDP_STREAM_COUNT];
  int queue_capacity; // entries of a stream's queue, work and waits; launch blocks while it is full
} fsdp_device_config;

typedef struct fsdp_device_table {
  const char *name; // "cpu"
  // FSDP_ERR_CAPACITY where the memory is not there. Arenas are zero.
  fsdp_status (*create)(const fsdp_device_config *config, fsdp_device **device, fsdp_error *error);
  void (*destroy)(fsdp_device *device); // the streams must be idle
  // Appends work to a stream; returns its ticket.
  uint64_t (*launch)(fsdp_device *device, fsdp_stream stream, const fsdp_work *work);
  // What is launched on `stream` from now on starts after `ticket` of stream `awaited` is over.
  void (*wait)(fsdp_device *device, fsdp_stream stream, fsdp_stream awaited, uint64_t ticket);
  // Blocks the caller until `ticket` of the stream is over.
  void (*synchronize)(fsdp_device *device, fsdp_stream stream, uint64_t ticket);
  // Copies in the stream's order, between any two places in the arenas.
  void (*copy)(const fsdp_stream_context *context, void *destination, const void *source, int64_t bytes);
  // Copies between an arena and memory of the caller, at once; the streams must be idle.
  void (*read)(fsdp_device *device, void *destination, const void *arena_source, int64_t bytes);
  void (*write)(fsdp_device *device, void *arena_destination, const void *source, int64_t bytes);
} fsdp_device_table;

struct fsdp_device {
  const fsdp_device_table *table;
  unsigned char *arena[FSDP_SPACE_COUNT]; // 64-byte aligned at least; NULL where it has no bytes
  int64_t arena_bytes[FSDP_SPACE_COUNT];
  int arena_file[FSDP_SPACE_COUNT]; // descriptor whose offset x is arena byte x, or -1 (not shared)
};

// The device that every machine has: this one's cores and memory.
const fsdp_device_table *fsdp_device_cpu(void);

// Threads for each stream of `program` when a rank may use `threads` cores: compute and host kernels all of
// them, the kernels of other streams (casts) at most four, a stream without instructions none. Fills `config`
// but for `shared`.
void fsdp_device_configure(const fsdp_program *program, int threads, fsdp_device_config *config);

// True where [address, address + bytes) lies in one arena; its space and offset.
bool fsdp_device_locate(const fsdp_device *device, const void *address, int64_t bytes, fsdp_space *space,
                        int64_t *offset);
