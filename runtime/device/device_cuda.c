// The CUDA device. Compute, communication and copies are streams of the GPU; the host stream is a worker
// thread (worker.h). Launching enqueues at once, on the calling thread.
//
//   ticket t of a GPU stream   is complete when its event t is: events are a ring, made once and recorded
//                              for awaited work; tickets between two of them get the next one's
//   GPU waits for GPU          cudaStreamWaitEvent
//   host stream waits for GPU  cudaEventSynchronize on its thread, at its place in the queue
//   GPU waits for host stream  a wait on the worker's counter, which is pinned memory that the GPU reads;
//                              if the driver has none or refuses it, and until the end of the first step
//                              (in which libraries may allocate and load, which may wait for the streams),
//                              the launching thread waits in its place
#include "runtime/base/check.h"
#include "runtime/base/cuda_check.h"
#include "runtime/base/size.h"
#include "runtime/device/device.h"
#include "runtime/device/memory_cuda.h"
#include "runtime/device/worker.h"

#include <cuda.h>
#include <string.h>

typedef CUresult (*wait_value_function)(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                        unsigned int flags);

typedef struct gpu_stream {
  cudaStream_t native; // NULL: no work
  fsdp_stream_context context;
  cudaEvent_t *events; // by ticket modulo capacity; NULL until needed the first time
  uint64_t capacity, recorded;
} gpu_stream;

// Bytes of a half: pieces of this size keep both ends busy.
#define PIECE_BYTES ((int64_t)32 << 20)

// What is written outside of steps (weights and states, when they are loaded) goes over one stream, in order:
//
//   source ─► [ pinned | pinned ] ─► arena     a copy into one half while the other is on its way
typedef struct transfer {
  cudaStream_t stream;
  struct half {
    void *memory; // pinned; NULL: none
    cudaEvent_t over;
  } halves[2];
  int next;
} transfer;

typedef struct cuda_device {
  fsdp_device base;
  int ordinal;
  bool warm;
  void (*release)(void *memory); // of the device arena
  gpu_stream streams[FSDP_STREAM_COUNT];
  fsdp_pinned_memory host_arena;
  fsdp_worker *host;
  transfer transfer;
  cudaEvent_t *timestamps; // by slot
  int timestamp_count;
  _Atomic uint64_t *host_over; // pinned: tickets of the host stream that are over
  wait_value_function wait_value;
} cuda_device;

// ---- Streams

static gpu_stream *stream_of(cuda_device *self, fsdp_stream stream) {
  FSDP_CHECK(self->streams[stream].native, "stream %s was not created", fsdp_stream_name(stream));
  return &self->streams[stream];
}

static cudaEvent_t *event_of(gpu_stream *stream, uint64_t ticket) {
  return &stream->events[ticket % stream->capacity];
}

static uint64_t record(gpu_stream *stream) {
  cudaEvent_t *event = event_of(stream, ++stream->recorded);
  if (!*event) CALL_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
  CALL_CUDA(cudaEventRecord(*event, stream->native));
  return stream->recorded;
}

static uint64_t cuda_launch(fsdp_device *device, fsdp_stream stream, const fsdp_work *work) {
  cuda_device *self = (cuda_device *)device;
  if (stream == FSDP_STREAM_HOST) return fsdp_worker_launch(self->host, work);
  gpu_stream *target = stream_of(self, stream);
  work->run(work, &target->context);
  return work->awaited ? record(target) : target->recorded + 1;
}

// Makes the GPU's stream wait for the counter; false if the driver cannot.
static bool wait_on_gpu(cuda_device *self, gpu_stream *waiting, uint64_t ticket) {
  if (!self->warm || !self->wait_value) return false;
  // The low half of the counter, compared cyclically.
  CUresult result = self->wait_value((CUstream)waiting->native, (CUdeviceptr)(uintptr_t)self->host_over,
                                     (cuuint32_t)ticket, CU_STREAM_WAIT_VALUE_GEQ);
  if (result == CUDA_SUCCESS) return true;
  // An earlier failure that appears here appears again, under its own name, in the next call.
  fsdp_job_note("cuStreamWaitValue32 is refused (driver error %d): the launching thread waits for the host's "
                "stream instead, and overlaps less with it",
                (int)result);
  self->wait_value = NULL;
  return false;
}

static void wait_for_host(cuda_device *self, gpu_stream *waiting, uint64_t ticket) {
  if (fsdp_worker_is_over(self->host, ticket)) return;
  if (!wait_on_gpu(self, waiting, ticket)) fsdp_worker_synchronize(self->host, ticket);
}

static void cuda_wait(fsdp_device *device, fsdp_stream stream, fsdp_stream awaited, uint64_t ticket) {
  cuda_device *self = (cuda_device *)device;
  if (stream == awaited || ticket == 0) return;
  if (awaited == FSDP_STREAM_HOST) {
    wait_for_host(self, stream_of(self, stream), ticket);
    return;
  }
  gpu_stream *source = stream_of(self, awaited);
  if (ticket > source->recorded) record(source);
  if (stream == FSDP_STREAM_HOST) {
    fsdp_worker_launch_wait(self->host, awaited, ticket);
  } else {
    CALL_CUDA(cudaStreamWaitEvent(stream_of(self, stream)->native, *event_of(source, ticket), 0));
  }
}

// The host stream's wait, on its thread, whose current device is the first one until it is set.
static void host_waits(void *owner, fsdp_stream awaited, uint64_t ticket) {
  cuda_device *self = owner;
  CALL_CUDA(cudaSetDevice(self->ordinal));
  CALL_CUDA(cudaEventSynchronize(*event_of(&self->streams[awaited], ticket)));
}

static void cuda_synchronize(fsdp_device *device, fsdp_stream stream, uint64_t ticket) {
  cuda_device *self = (cuda_device *)device;
  if (ticket == 0) return;
  if (stream == FSDP_STREAM_HOST) {
    fsdp_worker_synchronize(self->host, ticket);
    // A step's results are waited for: every library has been called once.
    self->warm = true;
    return;
  }
  gpu_stream *target = stream_of(self, stream);
  if (ticket > target->recorded) record(target);
  CALL_CUDA(cudaEventSynchronize(*event_of(target, ticket)));
}

static void cuda_copy(const fsdp_stream_context *context, void *destination, const void *source,
                      int64_t bytes) {
  if (!context->native) {
    memcpy(destination, source, (size_t)bytes); // on the host stream, between host places
    return;
  }
  CALL_CUDA(
      cudaMemcpyAsync(destination, source, (size_t)bytes, cudaMemcpyDefault, (cudaStream_t)context->native));
}

static void cuda_notify(const fsdp_stream_context *context, void (*function)(void *), void *argument) {
  if (context->native)
    CALL_CUDA(cudaLaunchHostFunc((cudaStream_t)context->native, function, argument));
  else
    function(argument);
}

static void cuda_reserve_timestamps(fsdp_device *device, int count) {
  cuda_device *self = (cuda_device *)device;
  if (count <= self->timestamp_count) return;
  self->timestamps = fsdp_realloc(self->timestamps, (size_t)count * sizeof *self->timestamps);
  for (; self->timestamp_count < count; self->timestamp_count++)
    CALL_CUDA(cudaEventCreateWithFlags(&self->timestamps[self->timestamp_count], 0));
}

static void cuda_timestamp(fsdp_device *device, const fsdp_stream_context *context, int slot) {
  const cuda_device *self = (const cuda_device *)device;
  FSDP_CHECK(slot < self->timestamp_count, "timestamp %d of %d", slot, self->timestamp_count);
  CALL_CUDA(cudaEventRecord(self->timestamps[slot], (cudaStream_t)context->native));
}

static double cuda_timestamp_ms(fsdp_device *device, int from, int to) {
  const cuda_device *self = (const cuda_device *)device;
  float ms = 0;
  CALL_CUDA(cudaEventElapsedTime(&ms, self->timestamps[from], self->timestamps[to]));
  return (double)ms;
}

static void cuda_read(fsdp_device *device, void *destination, const void *source, int64_t bytes) {
  (void)device;
  CALL_CUDA(cudaDeviceSynchronize());
  CALL_CUDA(cudaMemcpy(destination, source, (size_t)bytes, cudaMemcpyDefault));
}

// The half whose turn it is, free again.
static struct half *take_half(transfer *t) {
  struct half *mine = &t->halves[t->next];
  t->next = 1 - t->next;
  if (mine->memory) {
    CALL_CUDA(cudaEventSynchronize(mine->over));
  } else {
    cudaError_t status;
    mine->memory = fsdp_cuda_alloc_pinned(PIECE_BYTES, &status);
    CALL_CUDA(status);
  }
  return mine;
}

static void cuda_write(fsdp_device *device, void *destination, const void *source, int64_t bytes) {
  transfer *t = &((cuda_device *)device)->transfer;
  for (int64_t done = 0; done < bytes; done += PIECE_BYTES) {
    size_t piece = (size_t)fsdp_min_i64(PIECE_BYTES, bytes - done);
    struct half *mine = take_half(t);
    memcpy(mine->memory, (const char *)source + done, piece);
    CALL_CUDA(cudaMemcpyAsync((char *)destination + done, mine->memory, piece, cudaMemcpyDefault, t->stream));
    CALL_CUDA(cudaEventRecord(mine->over, t->stream));
  }
}

static void *cuda_write_stream(fsdp_device *device) {
  return ((cuda_device *)device)->transfer.stream;
}

static void cuda_clear(fsdp_device *device, void *destination, int64_t bytes) {
  CALL_CUDA(cudaMemsetAsync(destination, 0, (size_t)bytes, cuda_write_stream(device)));
}

// The pinned memory is given back.
static void cuda_flush(fsdp_device *device) {
  transfer *t = &((cuda_device *)device)->transfer;
  CALL_CUDA(cudaStreamSynchronize(t->stream));
  for (int i = 0; i < 2; i++) {
    fsdp_cuda_free_pinned(t->halves[i].memory);
    t->halves[i].memory = NULL;
  }
}

static int64_t cuda_used_bytes(fsdp_device *device) {
  (void)device;
  size_t unused = 0, total = 0;
  CALL_CUDA(cudaMemGetInfo(&unused, &total));
  return (int64_t)(total - unused);
}

// ---- Creation

static fsdp_status fail_memory(cudaError_t status, const char *space, int64_t bytes, fsdp_error *error) {
  size_t unused = 0, total = 0;
  if (cudaMemGetInfo(&unused, &total) != cudaSuccess) unused = total = 0;
  return fsdp_fail(error, FSDP_ERR_CAPACITY,
                   "the %s arena of %lld bytes could not be allocated (%s; %lld of the GPU's %lld bytes are "
                   "free); use a smaller model or micro-batch, more ranks, or a GPU that nothing else uses",
                   space, (long long)bytes, cudaGetErrorString(status), (long long)unused, (long long)total);
}

// Not zeroed: that would take time and hide reads of unwritten memory from compute-sanitizer's initcheck.
static fsdp_status create_device_arena(cuda_device *self, const fsdp_device_config *config,
                                       fsdp_error *error) {
  int64_t bytes = config->arena_bytes[FSDP_SPACE_DEVICE];
  if (bytes == 0) return FSDP_OK;
  cudaError_t status = cudaErrorMemoryAllocation;
  void *memory = config->allocate ? config->allocate(bytes) : fsdp_cuda_alloc(bytes, &status);
  if (!memory) return fail_memory(status, "device", bytes, error);
  self->release = config->allocate ? config->release : fsdp_cuda_free;
  self->base.arenas.memory[FSDP_SPACE_DEVICE] = memory;
  self->base.arenas.bytes[FSDP_SPACE_DEVICE] = bytes;
  if (!config->poisoned) return FSDP_OK;
  status = cudaMemset(memory, 0xff, (size_t)bytes); // NaNs
  // The program's streams do not wait for the one that this runs on.
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  return status == cudaSuccess ? FSDP_OK : fail_memory(status, "device", bytes, error);
}

static fsdp_status create_host_memory(cuda_device *self, const fsdp_device_config *config,
                                      fsdp_error *error) {
  int64_t bytes = config->arena_bytes[FSDP_SPACE_HOST];
  const char *reason;
  cudaError_t status;
  self->host_over = fsdp_cuda_alloc_pinned((int64_t)sizeof *self->host_over, &status);
  if (!self->host_over) return fail_memory(status, "host", bytes, error);
  atomic_init(self->host_over, 0);
  if (bytes == 0) return FSDP_OK;
  if (!fsdp_cuda_map_pinned(bytes, config->poisoned, &self->host_arena, &reason))
    return fsdp_fail(
        error, FSDP_ERR_CAPACITY,
        "the pinned host arena of %lld bytes could not be allocated (%s); use a smaller model or "
        "micro-batch, more ranks, or a larger limit of this process's memory",
        (long long)bytes, reason);
  self->base.arenas.memory[FSDP_SPACE_HOST] = self->host_arena.memory;
  self->base.arenas.bytes[FSDP_SPACE_HOST] = bytes;
  return FSDP_OK;
}

static void create_stream(cuda_device *self, fsdp_stream which, const fsdp_device_config *config) {
  int lowest = 0, highest = 0;
  CALL_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  // Communication that waits for a free multiprocessor delays more than the kernel that has to share it.
  // Work on shards is as wide as a gemm, and has its priority: it neither goes first nor starves what waits
  // for it.
  int priority = fsdp_stream_communicates(which) ? highest : lowest;
  gpu_stream *stream = &self->streams[which];
  CALL_CUDA(cudaStreamCreateWithPriority(&stream->native, cudaStreamNonBlocking, priority));
  stream->context =
      (fsdp_stream_context){.stream = which, .table = fsdp_device_cuda(), .native = stream->native};
  stream->capacity = (uint64_t)(config->event_capacity > 64 ? config->event_capacity : 64);
  stream->events = fsdp_alloc_zeroed(stream->capacity, sizeof *stream->events);
}

static void find_wait_value(cuda_device *self) {
  void *found = NULL;
  enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result);
#else
  cudaError_t status = cudaGetDriverEntryPoint("cuStreamWaitValue32", &found, cudaEnableDefault, &result);
#endif
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) return;
  memcpy(&self->wait_value, &found, sizeof found);
}

static void create_transfer(transfer *t) {
  CALL_CUDA(cudaStreamCreateWithPriority(&t->stream, cudaStreamNonBlocking, 0));
  for (int i = 0; i < 2; i++) CALL_CUDA(cudaEventCreateWithFlags(&t->halves[i].over, cudaEventDisableTiming));
}

static void destroy_transfer(cuda_device *self) {
  transfer *t = &self->transfer;
  if (!t->stream) return;
  cuda_flush(&self->base);
  for (int i = 0; i < 2; i++) CALL_CUDA(cudaEventDestroy(t->halves[i].over));
  CALL_CUDA(cudaStreamDestroy(t->stream));
}

static void cuda_destroy(fsdp_device *device) {
  if (!device) return;
  cuda_device *self = (cuda_device *)device;
  fsdp_worker_destroy(self->host);
  destroy_transfer(self);
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    gpu_stream *stream = &self->streams[s];
    for (uint64_t i = 0; stream->events && i < stream->capacity; i++) {
      if (stream->events[i]) CALL_CUDA(cudaEventDestroy(stream->events[i]));
    }
    if (stream->native) CALL_CUDA(cudaStreamDestroy(stream->native));
    free(stream->events);
  }
  for (int i = 0; i < self->timestamp_count; i++) CALL_CUDA(cudaEventDestroy(self->timestamps[i]));
  free(self->timestamps);
  void *arena = device->arenas.memory[FSDP_SPACE_DEVICE];
  if (arena) self->release(arena);
  fsdp_cuda_unmap_pinned(&self->host_arena);
  fsdp_cuda_free_pinned((void *)self->host_over);
  free(self);
}

static fsdp_status cuda_create(const fsdp_device_config *config, fsdp_device **device, fsdp_error *error) {
  cudaError_t chosen = cudaSetDevice(config->ordinal);
  if (chosen != cudaSuccess) {
    return fsdp_fail(error, FSDP_ERR_PEER, "GPU %d cannot be used: %s", config->ordinal,
                     cudaGetErrorString(chosen));
  }
  cuda_device *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->base.table = fsdp_device_cuda();
  self->ordinal = config->ordinal;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) self->base.arenas.file[s] = -1;
  fsdp_status status = create_device_arena(self, config, error);
  if (status == FSDP_OK) status = create_host_memory(self, config, error);
  if (status != FSDP_OK) {
    cuda_destroy(&self->base);
    return status;
  }
  for (int s = 0; s < FSDP_STREAM_COUNT; s++) {
    if (s == FSDP_STREAM_HOST || config->stream_threads[s] == 0) continue;
    create_stream(self, (fsdp_stream)s, config);
  }
  create_transfer(&self->transfer);
  find_wait_value(self);
  if (config->stream_threads[FSDP_STREAM_HOST] > 0) {
    self->host = fsdp_worker_create(
        &(fsdp_worker_config){.context = {.stream = FSDP_STREAM_HOST, .table = fsdp_device_cuda()},
                              .threads = config->stream_threads[FSDP_STREAM_HOST],
                              .queue_capacity = config->queue_capacity,
                              .wait = host_waits,
                              .owner = self,
                              .published = self->host_over});
  }
  *device = &self->base;
  return FSDP_OK;
}

const fsdp_device_table *fsdp_device_cuda(void) {
  static const fsdp_device_table table = {
      .enqueues = true,
      .create = cuda_create,
      .destroy = cuda_destroy,
      .launch = cuda_launch,
      .wait = cuda_wait,
      .synchronize = cuda_synchronize,
      .copy = cuda_copy,
      .notify = cuda_notify,
      .reserve_timestamps = cuda_reserve_timestamps,
      .timestamp = cuda_timestamp,
      .timestamp_ms = cuda_timestamp_ms,
      .read = cuda_read,
      .write = cuda_write,
      .clear = cuda_clear,
      .write_stream = cuda_write_stream,
      .flush = cuda_flush,
      .piece_bytes = PIECE_BYTES,
      .used_bytes = cuda_used_bytes,
  };
  return &table;
}
