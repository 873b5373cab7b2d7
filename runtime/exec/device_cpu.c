// The CPU device. Every stream is a worker thread with a ring of entries; finished work is a counter that
// others wait for asleep. The device arena is memory apart from the host arena, so that copies, overlap and
// missing waits are as real as on an accelerator. The only file of this folder that asks the system for arena
// memory.
#include "kernels/cpu/pool.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/exec/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct entry {
  bool is_wait;
  fsdp_work work;      // unless is_wait
  fsdp_stream awaited; // is_wait: whose ticket
  uint64_t ticket;
} entry;

typedef struct cpu_device cpu_device;

typedef struct cpu_stream {
  cpu_device *device;
  fsdp_stream_context context;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t arrived;  // for the worker: an entry, or stop
  pthread_cond_t room;     // for the launching thread: the ring is no longer full
  pthread_cond_t finished; // for whoever waits for a ticket
  // Under the mutex.
  entry *ring;
  uint64_t head, tail; // entries taken, entries put
  uint64_t capacity;
  int waiting; // threads in `finished`
  bool stop;
  bool full_sleeper;     // the launching thread is in `room`
  uint64_t launched;     // the launching thread's own
  _Atomic uint64_t over; // tickets over; written under the mutex, read without
} cpu_stream;

struct cpu_device {
  fsdp_device base;
  cpu_stream streams[FSDP_STREAM_COUNT];
};

static cpu_stream *stream_of(fsdp_device *device, fsdp_stream stream) {
  cpu_stream *found = &((cpu_device *)device)->streams[stream];
  FSDP_CHECK(found->ring, "stream %s was not created", fsdp_stream_name(stream));
  return found;
}

static void wait_for(cpu_stream *stream, uint64_t ticket) {
  if (atomic_load_explicit(&stream->over, memory_order_acquire) >= ticket) return;
  pthread_mutex_lock(&stream->mutex);
  stream->waiting++;
  while (atomic_load_explicit(&stream->over, memory_order_relaxed) < ticket) {
    pthread_cond_wait(&stream->finished, &stream->mutex);
  }
  stream->waiting--;
  pthread_mutex_unlock(&stream->mutex);
}

// Waits for the next entry and copies it; it stays in the ring until it is over. False at the end.
static bool take(cpu_stream *self, entry *next) {
  while (self->head == self->tail && !self->stop) pthread_cond_wait(&self->arrived, &self->mutex);
  if (self->head == self->tail) return false;
  *next = self->ring[self->head % self->capacity];
  return true;
}

static void *work_loop(void *argument) {
  cpu_stream *self = argument;
  entry next;
  pthread_mutex_lock(&self->mutex);
  while (take(self, &next)) {
    pthread_mutex_unlock(&self->mutex);
    if (next.is_wait) {
      wait_for(&self->device->streams[next.awaited], next.ticket);
    } else {
      next.work.run(&next.work, &self->context);
    }
    pthread_mutex_lock(&self->mutex);
    self->head++;
    if (self->full_sleeper) pthread_cond_signal(&self->room);
    if (next.is_wait) continue;
    atomic_fetch_add_explicit(&self->over, 1, memory_order_release);
    if (self->waiting > 0) pthread_cond_broadcast(&self->finished);
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

static void put(cpu_stream *stream, const entry *item) {
  pthread_mutex_lock(&stream->mutex);
  while (stream->tail - stream->head == stream->capacity) {
    stream->full_sleeper = true;
    pthread_cond_wait(&stream->room, &stream->mutex);
    stream->full_sleeper = false;
  }
  bool was_empty = stream->head == stream->tail;
  stream->ring[stream->tail++ % stream->capacity] = *item;
  if (was_empty) pthread_cond_signal(&stream->arrived);
  pthread_mutex_unlock(&stream->mutex);
}

static uint64_t cpu_launch(fsdp_device *device, fsdp_stream stream, const fsdp_work *work) {
  cpu_stream *target = stream_of(device, stream);
  put(target, &(entry){.work = *work});
  return ++target->launched;
}

static void cpu_wait(fsdp_device *device, fsdp_stream stream, fsdp_stream awaited, uint64_t ticket) {
  // A stream's own order is its queue's, and what is over needs no entry.
  if (stream == awaited || ticket == 0) return;
  if (atomic_load_explicit(&stream_of(device, awaited)->over, memory_order_acquire) >= ticket) return;
  put(stream_of(device, stream), &(entry){.is_wait = true, .awaited = awaited, .ticket = ticket});
}

static void cpu_synchronize(fsdp_device *device, fsdp_stream stream, uint64_t ticket) {
  if (ticket > 0) wait_for(stream_of(device, stream), ticket);
}

static void cpu_copy(const fsdp_stream_context *context, void *destination, const void *source,
                     int64_t bytes) {
  (void)context;
  memcpy(destination, source, (size_t)bytes);
}

static void cpu_read(fsdp_device *device, void *destination, const void *source, int64_t bytes) {
  (void)device;
  memcpy(destination, source, (size_t)bytes);
}

static void cpu_write(fsdp_device *device, void *destination, const void *source, int64_t bytes) {
  (void)device;
  memcpy(destination, source, (size_t)bytes);
}

static fsdp_status create_arena(fsdp_device *device, int space, const fsdp_device_config *config,
                                fsdp_error *error) {
  static const char *const names[FSDP_SPACE_COUNT] = {"fsdp-device", "fsdp-host"};
  int64_t bytes = config->arena_bytes[space];
  if (bytes == 0) return FSDP_OK;
  // A file without a name: peers open it through this process, and it goes when the last one closes it. Where
  // the system has none, the memory is private, and peers must send messages.
  int file = config->shared ? memfd_create(names[space], MFD_CLOEXEC) : -1;
  void *memory = MAP_FAILED;
  device->arena_file[space] = file;
  if (file < 0) {
    memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else if (ftruncate(file, bytes) == 0) {
    memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) {
    return fsdp_fail(error, FSDP_ERR_CAPACITY,
                     "the %s arena of %lld bytes could not be allocated (%s); use a smaller model or "
                     "micro-batch, or more ranks",
                     space == FSDP_SPACE_DEVICE ? "device" : "host", (long long)bytes, strerror(errno));
  }
  // Only a hint: fewer page faults and translations where the system grants it.
  madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
  device->arena[space] = memory;
  device->arena_bytes[space] = bytes;
  return FSDP_OK;
}

static void start_stream(cpu_device *device, fsdp_stream which, const fsdp_device_config *config) {
  cpu_stream *stream = &device->streams[which];
  stream->device = device;
  stream->context = (fsdp_stream_context){.stream = which,
                                          .kernels = fsdp_cpu_kernels(),
                                          .table = fsdp_device_cpu(),
                                          .pool = fsdp_pool_create(config->stream_threads[which])};
  stream->capacity = (uint64_t)fsdp_max_i64(config->queue_capacity, 2);
  stream->ring = fsdp_alloc_zeroed(stream->capacity, sizeof *stream->ring);
  atomic_init(&stream->over, 0);
  int failure = pthread_mutex_init(&stream->mutex, NULL);
  if (!failure) failure = pthread_cond_init(&stream->arrived, NULL);
  if (!failure) failure = pthread_cond_init(&stream->room, NULL);
  if (!failure) failure = pthread_cond_init(&stream->finished, NULL);
  if (!failure) failure = pthread_create(&stream->thread, NULL, work_loop, stream);
  FSDP_CHECK(!failure, "the thread of stream %s could not be started (%s)", fsdp_stream_name(which),
             strerror(failure));
}

static void stop_stream(cpu_stream *stream) {
  if (!stream->ring) return;
  pthread_mutex_lock(&stream->mutex);
  stream->stop = true;
  pthread_cond_signal(&stream->arrived);
  pthread_mutex_unlock(&stream->mutex);
  pthread_join(stream->thread, NULL);
  pthread_cond_destroy(&stream->finished);
  pthread_cond_destroy(&stream->room);
  pthread_cond_destroy(&stream->arrived);
  pthread_mutex_destroy(&stream->mutex);
  fsdp_pool_destroy(stream->context.pool);
  free(stream->ring);
}

static void cpu_destroy(fsdp_device *device) {
  if (!device) return;
  cpu_device *cpu = (cpu_device *)device;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) stop_stream(&cpu->streams[s]);
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    if (device->arena[s]) munmap(device->arena[s], (size_t)device->arena_bytes[s]);
    if (device->arena_file[s] >= 0) close(device->arena_file[s]);
  }
  free(cpu);
}

static fsdp_status cpu_create(const fsdp_device_config *config, fsdp_device **device, fsdp_error *error) {
  cpu_device *cpu = fsdp_alloc_zeroed(1, sizeof *cpu);
  cpu->base.table = fsdp_device_cpu();
  fsdp_status status = FSDP_OK;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) cpu->base.arena_file[s] = -1;
  for (int s = 0; s < FSDP_SPACE_COUNT && status == FSDP_OK; s++) {
    status = create_arena(&cpu->base, s, config, error);
  }
  if (status != FSDP_OK) {
    cpu_destroy(&cpu->base);
    return status;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (config->stream_threads[s] > 0) start_stream(cpu, (fsdp_stream)s, config);
  }
  *device = &cpu->base;
  return FSDP_OK;
}

const fsdp_device_table *fsdp_device_cpu(void) {
  static const fsdp_device_table table = {
      .name = "cpu",
      .create = cpu_create,
      .destroy = cpu_destroy,
      .launch = cpu_launch,
      .wait = cpu_wait,
      .synchronize = cpu_synchronize,
      .copy = cpu_copy,
      .read = cpu_read,
      .write = cpu_write,
  };
  return &table;
}
