// CUDA's runtime on the CPU, as far as the CUDA device calls it. Settings, from the environment:
//
//   FSDP_SIMT_GPUS       how many GPUs the process is shown (8); 0: none
//   FSDP_SIMT_GPU_BYTES  the memory of each (8 GiB)
//   FSDP_SIMT_CONTEXT_BYTES  of which the driver and libraries hold as many (0)
//   FSDP_SIMT_DRIVER     the CUDA version that the driver serves, 13000 for 13.0; 0: there is no driver
//   FSDP_SIMT_CAPABILITY of the GPUs, 90 for 9.0
//   FSDP_SIMT_SEED       of the order in which streams resume, and of NCCL's results
//   FSDP_SIMT_STUCK_S    seconds without any progress after which a wait is reported as a deadlock (60)
//   FSDP_SIMT_WAITS      off: streams do not wait for each other, to see that this is noticed
//   FSDP_SIMT_REGISTER   off: cudaHostRegister is not supported
//   FSDP_SIMT_WAIT_VALUE off: a stream cannot wait for a value in memory, as the driver says of some GPUs
//   FSDP_SIMT_LOADING    ahead: a kernel that is launched must have been loaded
//   FSDP_SIMT_SLOW_COPY  RANK:MS, added to each blocking copy of a rank
//   FSDP_SIMT_CODE       the cudaError_t of loading a kernel (0): 209 if the executable has none for the GPU
//
// Which calls block, by CUDA's documents (API synchronization behavior; Stream synchronization behavior):
//
//   cudaDeviceSynchronize, cudaFree, cudaFreeHost   wait for all work of the device
//   cudaHostUnregister                              so it does here
//   cudaMalloc, cudaHostAlloc, cudaHostRegister,    may do so, and do here: a program must not need that
//     the first launch of a kernel that was not     they do not
//     loaded before
//   cudaMemcpy                                      of pinned memory, or to pageable memory: until done;
//                                                   from pageable memory: until the source is copied aside,
//                                                   and it arrives later; within the device: does not block
//   cudaMemset                                      of device memory: does not block
//
// Synchronous copies and cudaMemset belong to the default stream, which non-blocking streams do not wait for.
// A function on the host (cudaLaunchHostFunc) must not call CUDA.
#include "tests/simt/emulator/simt.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

namespace {

struct event_state {
  uint64_t recorded = 0, over = 0; // by count of records
  std::chrono::steady_clock::time_point time;
};

constexpr int multiprocessors = 4; // of each device

thread_local int device_of_thread;
thread_local bool in_host_function;
thread_local cudaError_t last_error;

long long setting(const char *name, long long otherwise) {
  const char *text = std::getenv(name);
  return text ? atoll(text) : otherwise;
}

size_t memory_bytes() {
  return size_t(setting("FSDP_SIMT_GPU_BYTES", 8ll << 30));
}

size_t unused_bytes() {
  const size_t taken =
      size_t(setting("FSDP_SIMT_CONTEXT_BYTES", 0)) + simt::memory_taken(simt::memory_kind::device);
  return memory_bytes() - std::min(taken, memory_bytes());
}

bool is_set(const char *name, const char *value) {
  const char *text = std::getenv(name);
  return text && strcmp(text, value) == 0;
}

void be_slow() {
  int rank, ms;
  const char *text = std::getenv("FSDP_SIMT_SLOW_COPY"), *own = std::getenv("OMPI_COMM_WORLD_RANK");
  if (!text || !own || sscanf(text, "%d:%d", &rank, &ms) != 2 || rank != atoi(own)) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

bool waits_are_kept() {
  return !is_set("FSDP_SIMT_WAITS", "off");
}

simt::stream *queue_of(cudaStream_t stream) {
  return reinterpret_cast<simt::stream *>(stream);
}

// Copies take place when the stream gets there, so both sides must be memory that stays: an arena, pinned.
void copy(void *to, const void *from, size_t bytes) {
  simt::memory_check(to, bytes, 1);
  simt::memory_check(from, bytes, 1);
  memcpy(to, from, bytes);
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  if (is_set("FSDP_SIMT_WAIT_VALUE", "off")) return CUDA_ERROR_NOT_SUPPORTED;
  const auto *counter = reinterpret_cast<const unsigned char *>(uintptr_t(address));
  bool is_known = false;
  simt::between_work([&] {
    const simt::allocation *near = simt::memory_near(counter);
    is_known = near && counter >= near->data && counter + 4 <= near->data + near->bytes && address % 4 == 0;
  });
  if (flags != CU_STREAM_WAIT_VALUE_GEQ || !stream || !is_known) return CUDA_ERROR_INVALID_VALUE;
  simt::enqueue(
      stream,
      [address, value] {
        const auto *at = reinterpret_cast<const uint32_t *>(uintptr_t(address));
        return int32_t(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) >= 0;
      },
      "cuStreamWaitValue32");
  return CUDA_SUCCESS;
}

cudaError_t leave(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

// At the start of each call that takes part in the order of work.
void enter(const char *call) {
  if (in_host_function)
    simt::fail("%s is called by a function of cudaLaunchHostFunc, which must not call CUDA: it deadlocks",
               call);
}

void check_zones(const char *call) {
  std::string damage;
  simt::between_work([&] { damage = simt::memory_damage(); });
  if (!damage.empty()) simt::fail("%s, found by %s", damage.c_str(), call);
}

void synchronize_device(const char *call) {
  enter(call);
  simt::streams_check_free(call);
  simt::work_until(simt::streams_are_idle, call);
  check_zones(call);
}

void synchronize_stream(cudaStream_t stream, const char *call) {
  enter(call);
  simt::stream_check_free(stream, call);
  simt::work_until([stream] { return simt::stream_is_idle(stream); }, call);
  check_zones(call);
}

cudaError_t allocate(simt::memory_kind kind, void **address, size_t bytes) {
  simt::between_work([&] { *address = simt::memory_allocate(bytes, kind); });
  return cudaSuccess;
}

cudaError_t release(void *address, const char *call) {
  if (!address) return cudaSuccess;
  synchronize_device(call);
  simt::between_work([&] { simt::memory_free(address); });
  return cudaSuccess;
}

enum class place { pageable, pinned, device };

// Of one side of a copy, which must then lie within its allocation.
place place_of(const void *address, size_t bytes) {
  place found = place::pageable;
  simt::between_work([&] {
    const simt::allocation *near = simt::memory_near(address);
    if (!near) return;
    simt::memory_check(address, bytes, 1);
    found = near->kind == simt::memory_kind::device ? place::device : place::pinned;
  });
  return found;
}

} // namespace

int simt::kernel_load(const void *kernel) {
  const auto code = int(setting("FSDP_SIMT_CODE", 0));
  if (code == 0) is_first_use(kernel);
  return code;
}

struct CUevent_st {
  bool is_timed = true;
  std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

extern "C" {

const char *cudaGetErrorName(cudaError_t status) {
  switch (status) {
  case cudaSuccess:
    return "cudaSuccess";
  case cudaErrorMemoryAllocation:
    return "cudaErrorMemoryAllocation";
  case cudaErrorInvalidConfiguration:
    return "cudaErrorInvalidConfiguration";
  case cudaErrorInsufficientDriver:
    return "cudaErrorInsufficientDriver";
  case cudaErrorNoDevice:
    return "cudaErrorNoDevice";
  case cudaErrorInvalidDevice:
    return "cudaErrorInvalidDevice";
  case cudaErrorNoKernelImageForDevice:
    return "cudaErrorNoKernelImageForDevice";
  case cudaErrorUnsupportedPtxVersion:
    return "cudaErrorUnsupportedPtxVersion";
  case cudaErrorInvalidResourceHandle:
    return "cudaErrorInvalidResourceHandle";
  case cudaErrorNotReady:
    return "cudaErrorNotReady";
  case cudaErrorNotSupported:
    return "cudaErrorNotSupported";
  default:
    return "cudaErrorInvalidValue";
  }
}

const char *cudaGetErrorString(cudaError_t status) {
  switch (status) {
  case cudaSuccess:
    return "no error";
  case cudaErrorMemoryAllocation:
    return "out of memory";
  case cudaErrorInvalidConfiguration:
    return "invalid configuration argument";
  case cudaErrorInsufficientDriver:
    return "CUDA driver version is insufficient for CUDA runtime version";
  case cudaErrorNoDevice:
    return "no CUDA-capable device is detected";
  case cudaErrorInvalidDevice:
    return "invalid device ordinal";
  case cudaErrorNoKernelImageForDevice:
    return "no kernel image is available for execution on the device";
  case cudaErrorUnsupportedPtxVersion:
    return "the provided PTX was compiled with an unsupported toolchain";
  case cudaErrorInvalidResourceHandle:
    return "invalid resource handle";
  case cudaErrorNotSupported:
    return "operation not supported";
  case cudaErrorNotReady:
    return "device not ready";
  default:
    return "invalid argument";
  }
}

cudaError_t cudaGetLastError(void) {
  const cudaError_t status = last_error;
  last_error = cudaSuccess;
  return status;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = int(setting("FSDP_SIMT_DRIVER", CUDART_VERSION));
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 0;
  if (setting("FSDP_SIMT_DRIVER", CUDART_VERSION) < CUDART_VERSION) return cudaErrorInsufficientDriver;
  *count = int(setting("FSDP_SIMT_GPUS", 8));
  return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= int(setting("FSDP_SIMT_GPUS", 8))) return cudaErrorInvalidDevice;
  device_of_thread = ordinal;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *ordinal) {
  *ordinal = device_of_thread;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return cudaErrorInvalidValue;
  *value = multiprocessors;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "H200 on a CPU"); // a name whose peak is known
  snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "simt %d", ordinal);
  properties->totalGlobalMem = memory_bytes();
  properties->multiProcessorCount = multiprocessors;
  properties->major = simt::capability() / 10;
  properties->minor = simt::capability() % 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *bus, int length, int ordinal) {
  snprintf(bus, size_t(length), "0000:%02x:00.0", ordinal);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
  *lowest = 0;
  *highest = simt::PRIORITY_HIGHEST;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
  synchronize_device("cudaDeviceSynchronize");
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result) {
  const bool known = strcmp(symbol, "cuStreamWaitValue32") == 0;
  *function = known ? reinterpret_cast<void *>(wait_value) : nullptr;
  *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

// ---- Memory

cudaError_t cudaMalloc(void **address, size_t bytes) {
  synchronize_device("cudaMalloc");
  if (bytes > unused_bytes()) return leave(cudaErrorMemoryAllocation);
  return allocate(simt::memory_kind::device, address, bytes);
}
cudaError_t cudaFree(void *address) {
  return release(address, "cudaFree");
}
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned) {
  synchronize_device("cudaHostAlloc");
  return allocate(simt::memory_kind::pinned, address, bytes);
}
cudaError_t cudaFreeHost(void *address) {
  return release(address, "cudaFreeHost");
}
cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned) {
  synchronize_device("cudaHostRegister");
  if (is_set("FSDP_SIMT_REGISTER", "off")) return leave(cudaErrorNotSupported);
  bool is_new = false;
  simt::between_work([&] { is_new = simt::memory_register(address, bytes); });
  return is_new ? cudaSuccess : leave(cudaErrorInvalidValue);
}
cudaError_t cudaHostUnregister(void *address) {
  synchronize_device("cudaHostUnregister");
  bool is_known = false;
  simt::between_work([&] { is_known = simt::memory_unregister(address); });
  return is_known ? cudaSuccess : leave(cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
  *total = memory_bytes();
  simt::between_work([&] { *unused = unused_bytes(); });
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind) {
  const place target = place_of(to, bytes), source = place_of(from, bytes);
  enter("cudaMemcpy");
  be_slow();
  if (target == place::device && source == place::pageable) {
    synchronize_stream(nullptr, "cudaMemcpy");
    const auto *bytes_of = static_cast<const unsigned char *>(from);
    auto aside = std::make_shared<std::vector<unsigned char>>(bytes_of, bytes_of + bytes);
    simt::enqueue(
        nullptr,
        [to, aside] {
          memcpy(to, aside->data(), aside->size());
          return true;
        },
        "cudaMemcpy");
    return cudaSuccess;
  }
  simt::enqueue(
      nullptr,
      [to, from, bytes] {
        memcpy(to, from, bytes);
        return true;
      },
      "cudaMemcpy");
  if (target != place::device || source != place::device) synchronize_stream(nullptr, "cudaMemcpy");
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream) {
  enter("cudaMemcpyAsync");
  simt::enqueue(
      stream,
      [to, from, bytes] {
        copy(to, from, bytes);
        return true;
      },
      "cudaMemcpyAsync");
  return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  cudaMemsetAsync(to, value, bytes, nullptr);
  if (place_of(to, bytes) != place::device) synchronize_stream(nullptr, "cudaMemset");
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  enter("cudaMemsetAsync");
  simt::enqueue(
      stream,
      [to, value, bytes] {
        simt::memory_check(to, bytes, 1);
        memset(to, value, bytes);
        return true;
      },
      "cudaMemsetAsync");
  return cudaSuccess;
}

// ---- Launches

cudaError_t simt_launch(const simt::launch_shape *shape, cudaStream_t stream, std::function<void()> body) {
  enter("a launch");
  const cudaError_t status = simt::check_launch(*shape);
  if (status != cudaSuccess) return leave(status);
  if (simt::is_first_use(shape->kernel)) {
    if (is_set("FSDP_SIMT_LOADING", "ahead"))
      simt::fail("%s is loaded by its first launch, in the middle of the run",
                 simt::kernel_name(shape->kernel).c_str());
    synchronize_device("the first launch of a kernel, which loads it,");
  }
  simt::enqueue(
      stream,
      [shape = *shape, body] {
        simt::launch(shape, body);
        return true;
      },
      "a kernel");
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  enter("cudaLaunchHostFunc");
  simt::enqueue(
      stream,
      [function, data] {
        in_host_function = true;
        try {
          function(data);
        } catch (...) { // an error that is expected
          in_host_function = false;
          throw;
        }
        in_host_function = false;
        return true;
      },
      "cudaLaunchHostFunc");
  return cudaSuccess;
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  *stream = reinterpret_cast<cudaStream_t>(simt::stream_create(flags != cudaStreamNonBlocking, priority));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  enter("cudaStreamDestroy");
  simt::stream_destroy(queue_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  synchronize_stream(stream, "cudaStreamSynchronize");
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->is_timed = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  uint64_t count = 0;
  enter("cudaEventRecord");
  simt::between_work([&] { count = ++event->state->recorded; });
  simt::enqueue(
      stream,
      [state = event->state, count] {
        if (state->over < count) state->over = count;
        state->time = std::chrono::steady_clock::now();
        return true;
      },
      "cudaEventRecord");
  return cudaSuccess;
}
// The record that is the latest one now is waited for.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!waits_are_kept()) return cudaSuccess;
  uint64_t count = 0;
  enter("cudaStreamWaitEvent");
  simt::between_work([&] { count = event->state->recorded; });
  simt::enqueue(
      stream, [state = event->state, count] { return state->over >= count; }, "cudaStreamWaitEvent");
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  bool over = false;
  enter("cudaEventQuery");
  simt::between_work([&] { over = event->state->over >= event->state->recorded; });
  return over ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  uint64_t count = 0;
  enter("cudaEventSynchronize");
  simt::between_work([&] { count = event->state->recorded; });
  simt::work_until([state = event->state, count] { return state->over >= count; }, "cudaEventSynchronize");
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  for (const cudaEvent_t event : {start, end})
    if (!event->is_timed || event->state->recorded == 0) return leave(cudaErrorInvalidResourceHandle);
  if (cudaEventQuery(start) != cudaSuccess || cudaEventQuery(end) != cudaSuccess) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->state->time - start->state->time).count();
  return cudaSuccess;
}

} // extern "C"
