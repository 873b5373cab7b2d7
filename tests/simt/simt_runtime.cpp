// CUDA's runtime on the CPU, as far as the CUDA device calls it. Settings, from the environment:
//
//   FSDP_SIMT_GPUS       how many GPUs the process is shown (8); 0: none
//   FSDP_SIMT_GPU_BYTES  the memory of each (8 GiB)
//   FSDP_SIMT_DRIVER     the CUDA version that the driver serves, 13000 for 13.0; 0: there is no driver
//   FSDP_SIMT_SEED       of the order in which streams go on
//   FSDP_SIMT_WAITS      off: streams do not wait for each other, to see that this is noticed
//   FSDP_SIMT_WAIT_VALUE off: a stream cannot wait for a value in memory, as the driver says of some GPUs
//   FSDP_SIMT_LOADING    ahead: a kernel that is launched must have been loaded
//   FSDP_SIMT_CODE       the cudaError_t of loading a kernel (0): 209 where the program has none for the GPU
//   FSDP_SIMT_CAPABILITY of the GPUs, 90 for 9.0
#include "tests/simt/simt.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>

namespace {

struct event_state {
  uint64_t recorded = 0, over = 0; // by count of records
  std::chrono::steady_clock::time_point time;
};

std::map<void *, size_t> on_device, on_host; // bytes by address
thread_local int device_of_thread;

long long setting(const char *name, long long otherwise) {
  const char *text = std::getenv(name);
  return text ? atoll(text) : otherwise;
}

size_t memory_bytes() {
  return size_t(setting("FSDP_SIMT_GPU_BYTES", 8ll << 30));
}

size_t taken_bytes() {
  size_t sum = 0;
  for (const auto &one : on_device) sum += one.second;
  return sum;
}

bool is_set(const char *name, const char *value) {
  const char *text = std::getenv(name);
  return text && strcmp(text, value) == 0;
}

bool waits_are_kept() {
  return !is_set("FSDP_SIMT_WAITS", "off");
}

std::set<const void *> loaded; // kernels

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
  if (flags != CU_STREAM_WAIT_VALUE_GEQ || !stream) return CUDA_ERROR_INVALID_VALUE;
  simt::enqueue(stream, [address, value] {
    const auto *at = reinterpret_cast<const uint32_t *>(uintptr_t(address));
    return int32_t(__atomic_load_n(at, __ATOMIC_ACQUIRE) - value) >= 0;
  });
  return CUDA_SUCCESS;
}

cudaError_t allocate(std::map<void *, size_t> *where, void **address, size_t bytes) {
  simt::between_work([&] {
    *address = simt::memory_allocate(bytes);
    (*where)[*address] = bytes;
  });
  return cudaSuccess;
}

cudaError_t release(std::map<void *, size_t> *where, void *address) {
  simt::between_work([&] {
    simt::memory_free(address);
    where->erase(address);
  });
  return cudaSuccess;
}

} // namespace

int simt::kernel_load(const void *kernel) {
  const auto code = int(setting("FSDP_SIMT_CODE", 0));
  if (code == 0) between_work([kernel] { loaded.insert(kernel); });
  return code;
}

bool simt::kernel_is_late(const void *kernel) {
  bool late = is_set("FSDP_SIMT_LOADING", "ahead");
  if (late) between_work([&] { late = loaded.count(kernel) == 0; });
  return late;
}

struct CUevent_st {
  std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

extern "C" {

const char *cudaGetErrorName(cudaError_t status) {
  switch (status) {
  case cudaSuccess:
    return "cudaSuccess";
  case cudaErrorMemoryAllocation:
    return "cudaErrorMemoryAllocation";
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
  case cudaErrorNotReady:
    return "cudaErrorNotReady";
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
  case cudaErrorNotReady:
    return "device not ready";
  default:
    return "invalid argument";
  }
}

cudaError_t cudaGetLastError(void) {
  return cudaSuccess;
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

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "H200 on a CPU"); // a name whose peak is known
  snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "simt %d", ordinal);
  properties->totalGlobalMem = memory_bytes();
  const auto capability = int(setting("FSDP_SIMT_CAPABILITY", 90));
  properties->major = capability / 10;
  properties->minor = capability % 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *bus, int length, int ordinal) {
  snprintf(bus, size_t(length), "0000:%02x:00.0", ordinal);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
  simt::work_until(simt::streams_are_idle);
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
  if (bytes > memory_bytes() - taken_bytes()) return cudaErrorMemoryAllocation;
  return allocate(&on_device, address, bytes);
}
cudaError_t cudaFree(void *address) {
  return release(&on_device, address);
}
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned) {
  return allocate(&on_host, address, bytes);
}
cudaError_t cudaFreeHost(void *address) {
  return release(&on_host, address);
}
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
  *total = memory_bytes();
  *unused = *total - taken_bytes();
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind) {
  simt::between_work([&] { memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t stream) {
  simt::enqueue(stream, [to, from, bytes] {
    copy(to, from, bytes);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  simt::enqueue(stream, [to, value, bytes] {
    simt::memory_check(to, bytes, 1);
    memset(to, value, bytes);
    return true;
  });
  return cudaSuccess;
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  *stream = reinterpret_cast<cudaStream_t>(simt::stream_create());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  simt::stream_destroy(queue_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream) simt::work_until([stream] { return simt::stream_is_idle(queue_of(stream)); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  uint64_t count = 0;
  simt::between_work([&] { count = ++event->state->recorded; });
  simt::enqueue(stream, [state = event->state, count] {
    if (state->over < count) state->over = count;
    state->time = std::chrono::steady_clock::now();
    return true;
  });
  return cudaSuccess;
}
// The record that is the latest one now is waited for.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!waits_are_kept()) return cudaSuccess;
  uint64_t count = 0;
  simt::between_work([&] { count = event->state->recorded; });
  simt::enqueue(stream, [state = event->state, count] { return state->over >= count; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  bool over = false;
  simt::between_work([&] { over = event->state->over >= event->state->recorded; });
  return over ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  uint64_t count = 0;
  simt::between_work([&] { count = event->state->recorded; });
  simt::work_until([event, count] { return event->state->over >= count; });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  if (cudaEventQuery(start) != cudaSuccess || cudaEventQuery(end) != cudaSuccess) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->state->time - start->state->time).count();
  return cudaSuccess;
}

} // extern "C"
