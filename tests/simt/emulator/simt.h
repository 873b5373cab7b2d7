// A CUDA device on one CPU core: kernels are C++ functions, a thread is a fiber, and a mistake of a
// kernel or its caller is an error that names the place.
//
//   launch ─► refused as on a GPU: threads, grid, __launch_bounds__, shared memory (simt_kernel.cpp)
//        └─► for each block, in the chosen order: one fiber per thread
//               __syncthreads       waits for the block        different calls or early returns: error
//               warp functions      wait for the mask's lanes  different functions or missing lanes: error
//               named barriers      wait for their threads     other counts, or warps that never come: error
//               wgmma               lands at the wait for it   see simt_warpgroup.cpp
//               smem<T>             every access is checked (simt_shared.cpp)
//               global_load, _store every access is checked: bounds, alignment, and races between the blocks
//                                   of the launch (simt_memory.cpp, simt_global.cpp)
//   streams ─► work runs as late as possible, in any order that the program allows (simt_queue.cpp)
//   calls that block a thread on a GPU block it here, and a deadlock is reported (simt_runtime.cpp)
//   NCCL ─► a communicator's first collective meets its peers; one that does not block is in progress for a
//           while; sums are rounded at each hop of a ring (simt_nccl.cpp)
//
// Fibers switch only at barriers and warp functions, so which of two threads goes first is decided by the
// order alone: forward, reverse or random (over blocks too). A kernel whose result depends on it is wrong.
//
// Limits. Blocks run one after another, so a block that waits for a later one never ends. Accesses to device
// memory through plain pointers are seen only in their results and in the red zones. Threads of one block
// that race through device memory are seen only if the order changes a result. Caches, the order in which
// stores arrive, precision of fast intrinsics, speed, and sizes in registers are not modelled. Test code:
// each rule is shown to fire, beside a correct program that passes, in detectors/.
#pragma once

#include "runtime/base/dtype.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <tuple>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

enum class order { forward, reverse, random };
constexpr int order_count = 3;
constexpr int threads_max = 1024;
constexpr int warp_size = 32;
constexpr uint32_t shared_bytes_max = 227 * 1024; // of any architecture

void set_order(order value);

struct launch_shape {
  dim3 grid, block;
  size_t shared_bytes = 0;      // dynamic
  const void *kernel = nullptr; // the function; NULL: unnamed, with no limits of its own
};

// Runs `body` as every thread of the grid. An error of the kernel ends the program with its message, unless
// it is expected.
void launch(const launch_shape &shape, const std::function<void()> &body);

// Runs `action`, which does something wrong, on streams that are idle; returns the message, "" if nothing
// was found. After an error, pending work on streams is dropped, and memory allocated in `action` is freed.
std::string expect_error(const std::function<void()> &action);

// Ends the kernel (or, outside one, the action that is expected to fail, or the program) with a message, to
// which the kernel, block and thread are added.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- Kernels and what a launch may ask for (simt_kernel.cpp)

// `__launch_bounds__(n)` puts n one-byte instructions before the kernel's first, which are counted.
int launch_bounds(const void *kernel); // 1024 if the kernel has none
std::string kernel_name(const void *kernel);
// Without opt-in, 48 KiB of dynamic and static shared memory together; with it, as much as the architecture
// has: 8.0 and 8.7 163 KiB, 9.0 to 11.0 227, others 99 (FSDP_SIMT_CAPABILITY, 90 for 9.0).
constexpr uint32_t shared_bytes_default = 48 * 1024;
uint32_t shared_bytes_device();
int capability();
// cudaFuncSetAttribute(MaxDynamicSharedMemorySize): false if the architecture has less.
bool allow_shared(const void *kernel, int bytes);
uint32_t shared_bytes_allowed(const void *kernel); // dynamic and static
void note_static_shared(const void *kernel, uint32_t bytes);
// The cudaError_t of a launch, with what is wrong on standard error; cudaSuccess (0) if it may run.
int check_launch(const launch_shape &shape);
// Why the last launch was refused, "" if none was.
const std::string &last_refusal();
// True on the first call: on a GPU the kernel's module is then loaded.
bool is_first_use(const void *kernel);

// ---- Seen by a kernel: which thread it is
const void *kernel_of_launch(); // NULL: unnamed
struct self_state {
  dim3 thread_index;
  int thread, warp, lane; // thread: linear in the block
};
extern const self_state *self; // NULL outside a kernel
uint32_t dynamic_shared_bytes();

void barrier(const char *file, int line);

// Mutation: places where threads wait (__syncthreads, __syncwarp, cp_async_wait). Each that is passed is
// kept; one of them at a time can be left out, so that a test sees whether that is found.
struct place {
  std::string what, file;
  int line;
  bool operator<(const place &other) const {
    return std::tie(what, file, line) < std::tie(other.what, other.file, other.line);
  }
};
const std::set<place> &places_passed();
void leave_out(const place *mutant); // NULL: none
// Records the place; true if it is left out.
bool is_left_out(const char *what, const char *file, int line);

// A function of a warp: the last of the mask's lanes to arrive runs `run` with every lane's argument
// (arguments[lane], NULL for lanes outside the mask), then all resume.
typedef void (*warp_body)(void *const arguments[warp_size], uint32_t mask);
void warp_together(const char *name, uint32_t mask, void *argument, warp_body run);
void warp_barrier(uint32_t mask, const char *file, int line);

// A function of a warpgroup, four consecutive warps of which the first is a multiple of four: the last of its
// threads to arrive runs `run` with every thread's argument, then all resume.
constexpr int warpgroup_size = 128;
typedef void (*warpgroup_body)(void *const arguments[warpgroup_size]);
void warpgroup_together(const char *name, void *argument, warpgroup_body run);

// bar.sync and bar.arrive: barriers 1 to 15 of the block, for `threads` threads in whole warps.
void named_barrier(int barrier, int threads, bool waits);

// ---- Asynchronous products of a warpgroup (simt_warpgroup.cpp)
struct register_array {
  void *at;
  uint32_t bytes;
};
struct wgmma_call {
  float *d;
  int columns;
  const uint32_t *a; // NULL: in shared memory
  uint64_t a_descriptor, b_descriptor;
  bool a_mn, b_mn, accumulates;
};
void wgmma_fence(std::initializer_list<register_array> arrays, const char *file, int line);
void wgmma(const wgmma_call &call);
void wgmma_commit(const char *file, int line);
void wgmma_wait(int groups_left, std::initializer_list<register_array> arrays, const char *file, int line);

// ---- Shared memory (simt_shared.cpp): addresses are bytes from the block's first
template <class T> T shared_load(uint32_t address);
void shared_write(uint32_t address, const void *value, uint32_t bytes);
// A static array of the kernel: the same place for every thread of the block, named by `site`.
uint32_t shared_static(const void *site, uint32_t bytes);
// The place of the dynamic array, which has grid->shared_bytes bytes.
uint32_t shared_dynamic();
// cp.async: 16 bytes, of which the first `valid` come from `source` and the rest are zero. They land when the
// thread waits for the group; until then nobody may access them.
void async_copy(uint32_t address, const void *source, uint32_t valid);
void async_commit();
void async_wait(int groups_left);

// cp.async.bulk.tensor of rows of 64 bf16, swizzled by 128 bytes: they land when a warpgroup waits for the
// barrier's turn; until then nobody may access them.
struct box_map {
  const unsigned char *data;
  int64_t columns, rows, slices;
  int box_rows;
};
void box_barrier_init(uint32_t barrier);
void box_expect(uint32_t barrier, int bytes);
void box_copy(uint32_t address, const box_map &map, int column, int row, int slice, uint32_t barrier);
void box_wait(uint32_t barrier, int turn);

// fence.proxy.async; and 16 bytes that a product of the running warpgroup reads from its start to its end.
void shared_fence_proxy();
void shared_begin_async_read(uint32_t address);
void shared_end_async_read(uint32_t address);
void shared_drop_async_read(uint32_t address); // of a block that has failed

constexpr uint32_t granule_bytes = 2;
// What is known of two bytes.
struct shared_record {
  uint32_t write_epoch, write_sync, read_epoch, read_sync;
  uint32_t write_fence; // proxy fences that the writer had passed
  uint16_t writer, reader;
  uint8_t reader_warp;
  bool in_flight;        // a copy that nobody has waited for
  bool by_box;           // written in the async proxy
  uint8_t async_readers; // products in progress
};
extern unsigned char shared_memory[shared_bytes_max];
extern shared_record shared_records[shared_bytes_max / granule_bytes];
extern uint32_t shared_used_bytes, shared_epoch;
// By two bytes, a token: while it is the block's or the running warp's, one more read changes nothing. New
// ones are taken at each barrier, the warp's also at __syncwarp; no two are alike.
extern uint32_t shared_settled[shared_bytes_max / granule_bytes];
extern uint32_t block_token, warp_token, warp_tokens[threads_max / warp_size];
void shared_read_checked(uint32_t address, void *value, uint32_t bytes);

template <class T> __attribute__((always_inline)) inline T shared_load(uint32_t address) {
  T value;
  bool settled = address % std::min(sizeof(T), size_t(16)) == 0 && address + sizeof(T) <= shared_used_bytes;
  const uint32_t *tokens = shared_settled + address / granule_bytes;
  for (uint32_t i = 0; settled && i < sizeof(T) / granule_bytes; i++)
    settled = tokens[i] == block_token || tokens[i] == warp_token;
  if (settled) {
    memcpy(&value, shared_memory + address, sizeof value);
  } else {
    shared_read_checked(address, &value, sizeof value);
  }
  return value;
}

// ---- Device memory (simt_memory.cpp): red zones around every allocation
enum class memory_kind { device, pinned };
// What is known of two bytes of device memory (simt_global.cpp): the blocks that wrote and read them last,
// numbered over all launches.
struct global_record {
  uint32_t writer, reader;
};
struct global_detail { // beside it, written more seldom: thread | clock << 10 | is_atomic << 15
  uint16_t writer, reader;
};
struct allocation {
  unsigned char *start; // of the first zone; NULL: registered memory, which has none
  unsigned char *data;
  size_t bytes;
  memory_kind kind;
  global_record *records; // NULL until a kernel comes
  global_detail *details;
  size_t record_count;
};
void *memory_allocate(size_t bytes, memory_kind kind = memory_kind::device);
void memory_free(void *address); // NULL is allowed
// Memory of the program's own, as pinned memory; false if some of it is that already, or is not registered.
bool memory_register(void *address, size_t bytes);
bool memory_unregister(void *address);
size_t memory_taken(memory_kind kind);
// Those made since there were `count` are freed, whatever they hold.
size_t memory_count();
void memory_free_beyond(size_t count);
// The allocation that holds [address, address + bytes), aligned: anything else ends with a message.
allocation *memory_search(const void *address, size_t bytes, size_t alignment);
extern allocation *memory_last; // found; NULL if the list has changed since
inline allocation *memory_find(const void *address, size_t bytes, size_t alignment) {
  const auto *at = static_cast<const unsigned char *>(address);
  const bool again = memory_last && at >= memory_last->data &&
                     at + bytes <= memory_last->data + memory_last->bytes &&
                     reinterpret_cast<uintptr_t>(at) % alignment == 0;
  return again ? memory_last : memory_search(address, bytes, alignment);
}
void memory_check(const void *address, size_t bytes, size_t alignment);
// The allocation that an address lies in or beside, NULL: none, so pageable memory of the host.
const allocation *memory_near(const void *address);
// Bytes beside the allocations that were written to since the last call, "" if none were. Checked after
// every launch, at every synchronisation and when memory is freed.
std::string memory_damage();

// ---- Kernels as the runtime knows them (simt_runtime.cpp)

// A cudaError_t: not 0 if the executable is said to hold no code for this GPU.
int kernel_load(const void *kernel);

// ---- Races between blocks (simt_global.cpp)
void global_read(const void *address, uint32_t bytes);
void global_write(const void *address, uint32_t bytes);
void global_atomic(const void *address, uint32_t bytes, const std::function<void()> &operation);
void global_fence();
void global_begin_launch(const dim3 &grid, const std::vector<int> &blocks);
void global_begin_block();
void global_free_records(allocation *a);

// ---- Streams (simt_queue.cpp)

// Work is done when a thread waits for it, as late as possible. Of the streams whose next piece can run, a
// random one goes first, so whatever the program does not order happens in the wrong order. The calls may
// come from several threads.
//
// The stream NULL is CUDA's legacy default stream: a piece of it waits for everything that blocking streams
// were given before, and theirs for it. Non-blocking streams and it do not know each other.
struct stream;
// A piece of work: true when it is complete, false if it cannot be yet and must be called again.
typedef std::function<bool()> work;
// `what`: for messages, kept as a pointer. `is_remote`: it may wait for another process.
void enqueue(void *stream, work piece, const char *what = "work", bool is_remote = false);
stream *stream_create(bool is_blocking, int priority);
constexpr int PRIORITY_HIGHEST = -5; // and 0 the lowest
int stream_priority(void *stream);
void stream_destroy(stream *s); // once its work is done
// Does work of any stream until `over` returns true. Ends with a message if that can never happen: nothing
// moves and no other thread or process could change it, or none has for FSDP_SIMT_STUCK_S seconds (60).
void work_until(const std::function<bool()> &over, const char *what);
bool streams_are_idle();
bool stream_is_idle(void *stream); // NULL: and all blocking streams
// A call that has yet to be enqueued (ncclInProgress): the stream must not be used until it is; NULL: it is.
void stream_hold(void *stream, const char *call);
void stream_check_free(void *stream, const char *what);
void streams_check_free(const char *what);
void streams_clear(); // drops all work
// Runs `action` while no work is done.
void between_work(const std::function<void()> &action);

// ---- Sums of a ring

// The sum of `values[rank]`, of an element in chunk `chunk`, as a ring of `ranks` makes it: from rank
// chunk + 1 on, around to rank `chunk`, rounded to the type at every hop.
inline float ring_sum(const float *values, int ranks, int chunk, bool is_bf16) {
  float sum = values[(chunk + 1) % ranks];
  for (int hop = 2; hop <= ranks; hop++) {
    sum += values[(chunk + hop) % ranks];
    if (is_bf16) sum = fsdp_bf16_to_f32(fsdp_bf16_from_f32(sum));
  }
  return sum;
}

// ---- Between the harness's files
void shared_begin_block(uint32_t dynamic_bytes);
void shared_pass_barrier();
void shared_pass_warp_barrier(int warp);
// What warps know of each other's accesses, by warp.
typedef uint32_t warp_clocks[threads_max / warp_size];
void shared_release(int warp, warp_clocks *clocks); // adds what the warp knows, with all it has done
void shared_acquire(int warp, const warp_clocks &clocks);
void warpgroup_begin_block();
void warpgroup_end_thread();
void shared_end_thread(int thread);

} // namespace simt
