// Calls of the runtime that fail, hang or come in the wrong order on a GPU: each is done wrongly, and the
// emulation must say so, and rightly, which must pass.
#include "kernels/cuda/vector.cuh"

#include <cuda.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int KIB = 1024;
int failures;
bool is_wrong; // which of the two the rule is to do

void expect(bool held, const char *rule, const char *what, const std::string &message) {
  failures += !held;
  if (!held) printf("FAILED %s: %s (%s)\n", rule, what, message.c_str());
}

// ---- Launches

struct request {
  void (*kernel)(float *);
  dim3 grid, block;
  size_t shared_bytes;
};

cudaError_t launch(const request &r) {
  float *out;
  cudaMalloc(reinterpret_cast<void **>(&out), 4);
  cudaLaunchConfig_t config = {};
  config.gridDim = r.grid;
  config.blockDim = r.block;
  config.dynamicSmemBytes = r.shared_bytes;
  const cudaError_t status = cudaLaunchKernelEx(&config, r.kernel, out);
  if (status == cudaSuccess) cudaDeviceSynchronize();
  cudaFree(out);
  return status;
}

template <int N> __global__ void store_one(float *out) {
  if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z == 0)
    global_store(out, float(N));
}
__global__ void __launch_bounds__(64) bounded(float *out) {
  if (threadIdx.x == 0) global_store(out, 1.0f);
}
__global__ void forty_kib(float *) {
  FSDP_SHARED(unsigned char, bytes, 40 * KIB);
  bytes.address(0);
}

const struct {
  const char *name;
  request wrong, right;
  int status;
} launches[] = {
    {"no blocks", {store_one<0>, {0}, {1}, 0}, {store_one<0>, {1}, {1}, 0}, cudaErrorInvalidConfiguration},
    {"no threads", {store_one<0>, {1}, {0}, 0}, {store_one<0>, {1}, {1}, 0}, cudaErrorInvalidConfiguration},
    {"1025 threads",
     {store_one<0>, {1}, {1025}, 0},
     {store_one<0>, {1}, {1024}, 0},
     cudaErrorInvalidConfiguration},
    {"65 threads along z",
     {store_one<0>, {1}, {1, 1, 65}, 0},
     {store_one<0>, {1}, {1, 1, 64}, 0},
     cudaErrorInvalidConfiguration},
    {"2^31 blocks along x",
     {store_one<0>, {1u << 31}, {1}, 0},
     {store_one<0>, {1u << 16}, {1}, 0},
     cudaErrorInvalidConfiguration},
    {"65536 blocks along y",
     {store_one<0>, {1, 65536}, {1}, 0},
     {store_one<0>, {1, 65535}, {1}, 0},
     cudaErrorInvalidConfiguration},
    {"65536 blocks along z",
     {store_one<0>, {1, 1, 65536}, {1}, 0},
     {store_one<0>, {1, 1, 65535}, {1}, 0},
     cudaErrorInvalidConfiguration},
    {"65 threads with __launch_bounds__(64)",
     {bounded, {1}, {65}, 0},
     {bounded, {1}, {64}, 0},
     cudaErrorInvalidValue},
    {"more than 48 KiB without opt-in",
     {store_one<0>, {1}, {1}, 48 * KIB + 1},
     {store_one<0>, {1}, {1}, 48 * KIB},
     cudaErrorInvalidValue},
};

void check_launches() {
  for (const auto &rule : launches) {
    cudaError_t wrong = cudaSuccess, right = cudaErrorInvalidValue;
    const std::string message = simt::expect_error([&] { wrong = launch(rule.wrong); });
    const std::string refusal = simt::last_refusal();
    expect(wrong == rule.status && !refusal.empty(), rule.name, "is not refused", message + refusal);
    expect(cudaGetLastError() == rule.status && cudaGetLastError() == cudaSuccess, rule.name,
           "is not the last error", refusal);
    printf("%-50s %s: %s\n", rule.name, cudaGetErrorName(wrong), refusal.c_str());
    const std::string nothing = simt::expect_error([&] { right = launch(rule.right); });
    expect(right == cudaSuccess && nothing.empty(), rule.name, "is refused in a correct program", nothing);
  }
}

// Opt-in, by architecture: the attribute up to its limit and no further, and launches up to the attribute.
void check_opt_in() {
  const struct {
    const char *sm;
    int kib;
  } limits[] = {{"80", 163}, {"90", 227}, {"100", 227}, {"120", 99}};
  for (const auto &limit : limits) {
    setenv("FSDP_SIMT_CAPABILITY", limit.sm, 1);
    const int most = limit.kib * KIB, attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    expect(cudaFuncSetAttribute(store_one<1>, attribute, most + 1) == cudaErrorInvalidValue, limit.sm,
           "more than the architecture has is allowed", simt::last_refusal());
    expect(cudaFuncSetAttribute(store_one<1>, attribute, most) == cudaSuccess, limit.sm,
           "what the architecture has is refused", simt::last_refusal());
    expect(launch({store_one<1>, {1}, {1}, size_t(most)}) == cudaSuccess, limit.sm, "is refused after opt-in",
           simt::last_refusal());
    expect(launch({store_one<1>, {1}, {1}, size_t(most) + 1}) == cudaErrorInvalidValue, limit.sm,
           "more than the opt-in passes", simt::last_refusal());
    expect(launch({store_one<2>, {1}, {1}, 49 * KIB}) == cudaErrorInvalidValue, limit.sm,
           "the opt-in of a different kernel counts", simt::last_refusal());
    printf("sm_%-47s at most %d KiB, with opt-in\n", limit.sm, limit.kib);
  }
  unsetenv("FSDP_SIMT_CAPABILITY");
}

// ---- Rules of streams and memory. Each is called twice, with is_wrong and without.

cudaStream_t make_stream(unsigned flags) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, flags);
  return stream;
}

template <class T> T *pinned(T value) {
  void *memory;
  cudaHostAlloc(&memory, sizeof(T), cudaHostAllocMapped);
  *static_cast<T *>(memory) = value;
  return static_cast<T *>(memory);
}

unsigned char *on_device(size_t bytes) {
  void *memory;
  cudaMalloc(&memory, bytes);
  return static_cast<unsigned char *>(memory);
}

// Makes the stream wait until *value is 1 or more.
CUresult wait_for(const uint32_t *value, cudaStream_t stream) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result);
  return reinterpret_cast<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>(found)(
      stream, CUdeviceptr(reinterpret_cast<uintptr_t>(value)), 1, CU_STREAM_WAIT_VALUE_GEQ);
}

// A stream that waits for a value which this thread has yet to write.
uint32_t *flag;
cudaStream_t let_wait(unsigned flags) {
  flag = pinned(0u);
  const cudaStream_t stream = make_stream(flags);
  wait_for(flag, stream);
  return stream;
}
void wait_or_not(unsigned flags) {
  let_wait(flags);
  if (!is_wrong) *flag = 1;
}

void free_while_a_stream_waits() {
  void *memory = on_device(16);
  wait_or_not(cudaStreamNonBlocking);
  cudaFree(memory);
}
void free_pinned_while_a_stream_waits() {
  void *memory = pinned(0);
  wait_or_not(cudaStreamNonBlocking);
  cudaFreeHost(memory);
}
void allocate_while_a_stream_waits() {
  wait_or_not(cudaStreamNonBlocking);
  on_device(16);
}
void allocate_pinned_while_a_stream_waits() {
  wait_or_not(cudaStreamNonBlocking);
  pinned(0);
}
void synchronize_while_a_stream_waits() {
  wait_or_not(cudaStreamNonBlocking);
  cudaDeviceSynchronize();
}
void event_behind_a_wait() {
  static cudaEvent_t event; // kept: what ends in an error cannot destroy it
  if (!event) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  const cudaStream_t stream = let_wait(cudaStreamNonBlocking);
  cudaEventRecord(event, stream);
  if (!is_wrong) *flag = 1;
  cudaEventSynchronize(event);
}
// The default stream waits for blocking streams, and for no others.
void copy_while_a_stream_waits() {
  unsigned char here = 7, *memory = on_device(1);
  let_wait(is_wrong ? cudaStreamDefault : cudaStreamNonBlocking);
  cudaMemcpy(memory, &here, 1, cudaMemcpyHostToDevice);
  here = 0;
  cudaMemcpy(&here, memory, 1, cudaMemcpyDeviceToHost);
  if (here != 7) simt::fail("the copies do not follow each other");
  *flag = 1;
}
// Loading a module may wait for the device, so every kernel is loaded before a stream waits for the host.
void first_launch_while_a_stream_waits() {
  void (*const kernel)(float *) = is_wrong ? store_one<3> : store_one<4>;
  float *out = reinterpret_cast<float *>(on_device(4));
  cudaFuncAttributes attributes;
  if (!is_wrong) cudaFuncGetAttributes(&attributes, kernel);
  let_wait(cudaStreamNonBlocking);
  cudaLaunchConfig_t config = {};
  cudaLaunchKernelEx(&config, kernel, out);
  *flag = 1;
}

// Where kernels must be loaded ahead.
void first_launch_in_the_middle() {
  void (*const kernel)(float *) = is_wrong ? store_one<5> : store_one<6>;
  float *out = reinterpret_cast<float *>(on_device(4));
  cudaFuncAttributes attributes;
  setenv("FSDP_SIMT_LOADING", "ahead", 1);
  if (!is_wrong) cudaFuncGetAttributes(&attributes, kernel);
  cudaLaunchConfig_t config = {};
  cudaLaunchKernelEx(&config, kernel, out);
}

void call_from_a_host_function() {
  static unsigned char *memory;
  memory = on_device(16);
  const cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  cudaLaunchHostFunc(
      stream,
      [](void *) {
        if (is_wrong) cudaFree(memory);
      },
      nullptr);
  cudaStreamSynchronize(stream);
}

void store_beside_device_memory() {
  unsigned char *memory = on_device(16);
  simt::launch({{1}, {1}}, [&] { memory[is_wrong ? 16 : 15] = 1; });
}
void store_before_device_memory() {
  unsigned char *memory = on_device(16);
  simt::launch({{1}, {1}}, [&] { memory[is_wrong ? -1 : 0] = 1; });
}
void store_beside_pinned_memory() {
  uint32_t *memory = pinned(1u);
  memory[is_wrong ? 1 : 0] = 1;
  cudaDeviceSynchronize();
}
void store_beside_what_is_freed() {
  unsigned char *memory = on_device(16);
  memory[is_wrong ? 16 : 15] = 1;
  simt::memory_free(memory);
}
void copy_beyond_the_end() {
  unsigned char here[32] = {}, *memory = on_device(16);
  cudaMemcpy(memory, here, is_wrong ? 17 : 16, cudaMemcpyHostToDevice);
}
void free_twice() {
  unsigned char *memory = on_device(16);
  cudaFree(memory);
  if (is_wrong) cudaFree(memory);
}
void static_and_dynamic_memory() {
  launch({forty_kib, {1}, {1}, is_wrong ? size_t(9) * KIB : size_t(8) * KIB});
}

const struct {
  const char *name, *finding;
  void (*run)();
} rules[] = {
    {"cudaFree while a stream waits for this thread", "deadlock: cudaFree", free_while_a_stream_waits},
    {"cudaFreeHost while a stream waits", "deadlock: cudaFreeHost", free_pinned_while_a_stream_waits},
    {"cudaMalloc while a stream waits", "deadlock: cudaMalloc", allocate_while_a_stream_waits},
    {"cudaHostAlloc while a stream waits", "deadlock: cudaHostAlloc", allocate_pinned_while_a_stream_waits},
    {"cudaDeviceSynchronize while a stream waits", "deadlock: cudaDeviceSynchronize",
     synchronize_while_a_stream_waits},
    {"cudaEventSynchronize behind a wait", "deadlock: cudaEventSynchronize", event_behind_a_wait},
    {"cudaMemcpy while a blocking stream waits", "deadlock: cudaMemcpy", copy_while_a_stream_waits},
    {"a first launch while a stream waits", "deadlock: the first launch", first_launch_while_a_stream_waits},
    {"a kernel loaded by its first launch", "in the middle of the run", first_launch_in_the_middle},
    {"CUDA from a host function", "must not call CUDA", call_from_a_host_function},
    {"a kernel that stores beside an allocation", "byte 0 after the end", store_beside_device_memory},
    {"a kernel that stores before an allocation", "byte 1 before the start", store_before_device_memory},
    {"a store beside pinned memory", "found by cudaDeviceSynchronize", store_beside_pinned_memory},
    {"a store beside what is freed", "found when it is freed", store_beside_what_is_freed},
    {"a copy beyond the end", "out of bounds", copy_beyond_the_end},
    {"memory freed twice", "nothing is allocated there", free_twice},
    {"40 KiB static and 9 KiB dynamic", "but 49152 are allowed", static_and_dynamic_memory},
};

void check_rules() {
  for (const auto &rule : rules) {
    is_wrong = true;
    const std::string message = simt::expect_error(rule.run);
    expect(message.find(rule.finding) != std::string::npos, rule.name, "is not found", message);
    printf("%-50s %s\n", rule.name, message.c_str());
    is_wrong = false;
    const std::string nothing = simt::expect_error(rule.run);
    expect(nothing.empty(), rule.name, "is reported in a correct program", nothing);
    unsetenv("FSDP_SIMT_LOADING");
    cudaDeviceSynchronize();
    simt::memory_free_beyond(0);
  }
}

// ---- Orders that a program must not rely on: over many draws, the wrong one comes.

constexpr int draws = 64;

// How many times of `draws` the last of three stores, of which the second is the default stream's, is seen.
int ordered_by_the_default_stream(unsigned flags) {
  int right = 0;
  unsigned char *memory = on_device(1), seen;
  for (int i = 0; i < draws; i++) {
    const cudaStream_t stream = make_stream(flags);
    cudaMemsetAsync(memory, 1, 1, stream);
    cudaMemset(memory, 2, 1);
    cudaMemsetAsync(memory, 3, 1, stream);
    cudaDeviceSynchronize();
    cudaMemcpy(&seen, memory, 1, cudaMemcpyDeviceToHost);
    right += seen == 3;
    cudaStreamDestroy(stream);
  }
  cudaFree(memory);
  return right;
}

// How many times a non-blocking stream sees what a synchronous copy from pageable memory has brought.
int seen_after_a_copy(bool synchronizes) {
  int right = 0;
  unsigned char *memory = on_device(1), *seen = pinned<unsigned char>(0);
  const cudaStream_t stream = make_stream(cudaStreamNonBlocking);
  for (int i = 0; i < draws; i++) {
    const unsigned char value = (unsigned char)(i + 1);
    cudaMemcpy(memory, &value, 1, cudaMemcpyHostToDevice);
    if (synchronizes) cudaDeviceSynchronize();
    cudaMemcpyAsync(seen, memory, 1, cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    right += *seen == value;
  }
  cudaStreamDestroy(stream);
  cudaFree(memory);
  cudaFreeHost(seen);
  return right;
}

void check_orders() {
  const int blocking = ordered_by_the_default_stream(cudaStreamDefault);
  const int apart = ordered_by_the_default_stream(cudaStreamNonBlocking);
  printf("%-50s %d of %d right; non-blocking %d\n", "streams that the default stream orders", blocking, draws,
         apart);
  expect(blocking == draws && apart < draws, "the default stream", "does not order as CUDA's", "");
  const int synchronized = seen_after_a_copy(true), hoped = seen_after_a_copy(false);
  printf("%-50s %d of %d right; without %d\n", "a copy with a synchronisation after it", synchronized, draws,
         hoped);
  expect(synchronized == draws && hoped < draws, "a copy from pageable memory", "has arrived too early", "");
}

// Times lie between events that are made for it and have been recorded; a stream waits for a value in memory
// that the device knows.
void check_refusals() {
  cudaEvent_t begin, end, untimed, unrecorded;
  float ms;
  for (cudaEvent_t *event : {&begin, &end, &unrecorded}) cudaEventCreateWithFlags(event, cudaEventDefault);
  cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming);
  for (const cudaEvent_t event : {begin, end, untimed}) cudaEventRecord(event, nullptr);
  cudaDeviceSynchronize();
  expect(cudaEventElapsedTime(&ms, begin, end) == cudaSuccess, "a time", "is refused", "");
  expect(cudaEventElapsedTime(&ms, begin, untimed) == cudaErrorInvalidResourceHandle, "a time",
         "of an event without timing is not refused", "");
  expect(cudaEventElapsedTime(&ms, unrecorded, end) == cudaErrorInvalidResourceHandle, "a time",
         "of an event that was never recorded is not refused", "");
  expect(cudaGetLastError() == cudaErrorInvalidResourceHandle, "a time", "is not the last error", "");
  for (const cudaEvent_t event : {begin, end, untimed, unrecorded}) cudaEventDestroy(event);
  uint32_t here = 1;
  expect(wait_for(&here, make_stream(cudaStreamNonBlocking)) == CUDA_ERROR_INVALID_VALUE, "a value",
         "in pageable memory is not refused", "");
}

// 256 + 1 + 1 + 1 in bf16, where the neighbours of 256 are 2 apart and ties go to the even one: a 1 that is
// added to the 256 alone is lost. Chunk c starts at rank c + 1; a sum in fp32, rounded once, would be 260.
void check_ring() {
  const float values[4] = {256, 1, 1, 1}, expected[4] = {260, 260, 256, 256};
  for (int chunk = 0; chunk < 4; chunk++) {
    const float half = simt::ring_sum(values, 4, chunk, true),
                whole = simt::ring_sum(values, 4, chunk, false);
    printf("a ring's sum of 256, 1, 1, 1, chunk %d              %g in bf16, %g in fp32\n", chunk,
           double(half), double(whole));
    expect(half == expected[chunk] && whole == 259, "a ring's sum", "is rounded elsewhere", "");
  }
}

} // namespace

int main() {
  check_launches();
  check_opt_in();
  check_rules();
  check_orders();
  check_ring();
  check_refusals();
  printf("%d failed\n", failures);
  return failures ? 1 : 0;
}
