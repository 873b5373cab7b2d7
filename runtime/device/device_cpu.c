// The CPU device. Every stream is a worker thread (worker.h). The device arena is memory apart from the host
// arena, so that copies, overlap and missing waits are as real as on an accelerator. The only file of this
// folder that asks the system for arena memory.
#include "runtime/base/check.h"
#include "runtime/device/worker.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct cpu_device {
  fsdp_device base;
  fsdp_worker *streams[FSDP_STREAM_COUNT]; // NULL: no work
} cpu_device;

static fsdp_worker *stream_of(fsdp_device *device, fsdp_stream stream) {
  fsdp_worker *found = ((cpu_device *)device)->streams[stream];
  FSDP_CHECK(found, "stream %s was not created", fsdp_stream_name(stream));
  return found;
}

static void wait_for(void *owner, fsdp_stream awaited, uint64_t ticket) {
  fsdp_worker_synchronize(((cpu_device *)owner)->streams[awaited], ticket);
}

static uint64_t cpu_launch(fsdp_device *device, fsdp_stream stream, const fsdp_work *work) {
  return fsdp_worker_launch(stream_of(device, stream), work);
}

static void cpu_wait(fsdp_device *device, fsdp_stream stream, fsdp_stream awaited, uint64_t ticket) {
  // A stream's own order is its queue's, and complete work needs no entry.
  if (stream == awaited || ticket == 0) return;
  if (fsdp_worker_is_over(stream_of(device, awaited), ticket)) return;
  fsdp_worker_launch_wait(stream_of(device, stream), awaited, ticket);
}

static void cpu_synchronize(fsdp_device *device, fsdp_stream stream, uint64_t ticket) {
  if (ticket > 0) fsdp_worker_synchronize(stream_of(device, stream), ticket);
}

static void cpu_copy(const fsdp_stream_context *context, void *destination, const void *source,
                     int64_t bytes) {
  (void)context;
  memcpy(destination, source, (size_t)bytes);
}

static void cpu_notify(const fsdp_stream_context *context, void (*function)(void *), void *argument) {
  (void)context;
  function(argument);
}

// From an arena, or to one.
static void cpu_move(fsdp_device *device, void *destination, const void *source, int64_t bytes) {
  (void)device;
  memcpy(destination, source, (size_t)bytes);
}

static void cpu_clear(fsdp_device *device, void *destination, int64_t bytes) {
  (void)device;
  memset(destination, 0, (size_t)bytes);
}

static fsdp_status create_arena(fsdp_device *device, int space, const fsdp_device_config *config,
                                fsdp_error *error) {
  static const char *const names[FSDP_SPACE_COUNT] = {"fsdp-device", "fsdp-host"};
  int64_t bytes = config->arena_bytes[space];
  if (bytes == 0) return FSDP_OK;
  // A file without a name: peers open it through this process, and it is freed when the last one closes it.
  // If the system has no such files, the memory is private, and peers must send messages.
  int file = config->shared ? memfd_create(names[space], MFD_CLOEXEC) : -1;
  void *memory = MAP_FAILED;
  device->arenas.file[space] = file;
  if (file < 0) {
    memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  } else if (ftruncate(file, bytes) == 0) {
    memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) {
    const char *remedy = errno == EFBIG ? "ranks of a node share it as a file: raise the limit (ulimit -f)"
                                        : "use a smaller model or micro-batch, or more ranks";
    return fsdp_fail(error, FSDP_ERR_CAPACITY, "the %s arena of %lld bytes could not be allocated (%s); %s",
                     space == FSDP_SPACE_DEVICE ? "device" : "host", (long long)bytes, strerror(errno),
                     remedy);
  }
  if (config->poisoned) memset(memory, 0xff, (size_t)bytes); // NaNs
  // Only a hint: fewer page faults and translations if the system grants it.
  madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
  device->arenas.memory[space] = memory;
  device->arenas.bytes[space] = bytes;
  return FSDP_OK;
}

static fsdp_worker *start_stream(cpu_device *device, fsdp_stream which, const fsdp_device_config *config) {
  return fsdp_worker_create(&(fsdp_worker_config){.context = {.stream = which, .table = fsdp_device_cpu()},
                                                  .threads = config->stream_threads[which],
                                                  .queue_capacity = config->queue_capacity,
                                                  .wait = wait_for,
                                                  .owner = device});
}

static void cpu_destroy(fsdp_device *device) {
  if (!device) return;
  cpu_device *cpu = (cpu_device *)device;
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) fsdp_worker_destroy(cpu->streams[s]);
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    if (device->arenas.memory[s]) munmap(device->arenas.memory[s], (size_t)device->arenas.bytes[s]);
    if (device->arenas.file[s] >= 0) close(device->arenas.file[s]);
  }
  free(cpu);
}

static fsdp_status cpu_create(const fsdp_device_config *config, fsdp_device **device, fsdp_error *error) {
  cpu_device *cpu = fsdp_alloc_zeroed(1, sizeof *cpu);
  cpu->base.table = fsdp_device_cpu();
  fsdp_status status = FSDP_OK;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) cpu->base.arenas.file[s] = -1;
  for (int s = 0; s < FSDP_SPACE_COUNT && status == FSDP_OK; s++) {
    status = create_arena(&cpu->base, s, config, error);
  }
  if (status != FSDP_OK) {
    cpu_destroy(&cpu->base);
    return status;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (config->stream_threads[s] > 0) cpu->streams[s] = start_stream(cpu, (fsdp_stream)s, config);
  }
  *device = &cpu->base;
  return FSDP_OK;
}

const fsdp_device_table *fsdp_device_cpu(void) {
  static const fsdp_device_table table = {
      .create = cpu_create,
      .destroy = cpu_destroy,
      .launch = cpu_launch,
      .wait = cpu_wait,
      .synchronize = cpu_synchronize,
      .copy = cpu_copy,
      .notify = cpu_notify,
      .read = cpu_move,
      .write = cpu_move,
      .clear = cpu_clear,
  };
  return &table;
}
