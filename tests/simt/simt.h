// A CUDA device on one CPU core: kernels are C++ functions, a thread is a fiber, and what a kernel does wrong
// with shared memory or barriers is an error that names the place.
//
//   launch ─► for each block, in the chosen order: a fiber a thread
//               __syncthreads       waits for the block        different calls or early returns: error
//               warp functions      wait for the mask's lanes  different functions or missing lanes: error
//               smem<T>             every access is checked (simt_shared.cpp)
//
// Fibers switch only at barriers and warp functions, so which of two threads goes first is decided by the
// order alone: forward, reverse or random (over blocks too). A kernel whose result depends on it is wrong.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <tuple>

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
// The least of the architectures' limits: sm_120 has 99 KiB, sm_80 163, sm_90 and sm_100 227.
constexpr uint32_t shared_bytes_max = 99 * 1024;

void set_order(order value);

struct launch_shape {
  dim3 grid, block;
  size_t shared_bytes; // dynamic
};

// Runs `body` as every thread of the grid. An error of the kernel ends the program with its message, unless
// it is expected.
void launch(const launch_shape &shape, const std::function<void()> &body);

// Runs `action`, which launches a kernel that must be wrong; returns the message, "" where nothing was found.
std::string expect_error(const std::function<void()> &action);

// Ends the kernel with a message; the block and thread are added to it.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- Seen by a kernel: which thread it is
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
// Notes the place; true where it is left out.
bool is_left_out(const char *what, const char *file, int line);

// A function of a warp: the last of the mask's lanes to arrive runs `run` with every lane's argument
// (arguments[lane], NULL for lanes outside the mask), then all go on.
typedef void (*warp_body)(void *const arguments[warp_size], uint32_t mask);
void warp_together(const char *name, uint32_t mask, void *argument, warp_body run);
void warp_barrier(uint32_t mask, const char *file, int line);

// ---- Shared memory (simt_shared.cpp): addresses are bytes from the block's first
template <class T> T shared_load(uint32_t address);
void shared_write(uint32_t address, const void *value, uint32_t bytes);
// A static array of the kernel: the same place for every thread of the block, named by `site`.
uint32_t shared_static(const void *site, uint32_t bytes);
// The place of the dynamic array, which has grid->shared_bytes bytes.
uint32_t shared_dynamic();
// cp.async: 16 bytes, of which the first `valid` come from `source` and the rest are zero. They land when the
// thread waits for the group; until then nobody may look.
void async_copy(uint32_t address, const void *source, uint32_t valid);
void async_commit();
void async_wait(int groups_left);

constexpr uint32_t granule_bytes = 2;
// What is known of two bytes.
struct shared_record {
  uint32_t write_epoch, write_sync, read_epoch, read_sync;
  uint32_t
      settled_epoch; // written before this epoch and read by several warps in it: more reads change nothing
  uint16_t writer, reader;
  uint8_t reader_warp;
  bool in_flight; // a cp.async that nobody has waited for
};
extern unsigned char shared_memory[shared_bytes_max];
extern shared_record shared_records[shared_bytes_max / granule_bytes];
extern uint32_t shared_used_bytes, shared_epoch;
void shared_read_checked(uint32_t address, void *value, uint32_t bytes);

template <class T> T shared_load(uint32_t address) {
  T value;
  bool settled = address % std::min(sizeof(T), size_t(16)) == 0 && address + sizeof(T) <= shared_used_bytes;
  for (uint32_t i = 0; settled && i < sizeof(T) / granule_bytes; i++)
    settled = shared_records[address / granule_bytes + i].settled_epoch == shared_epoch;
  if (settled) {
    memcpy(&value, shared_memory + address, sizeof value);
  } else {
    shared_read_checked(address, &value, sizeof value);
  }
  return value;
}

// ---- Device memory (simt_memory.cpp): red zones around every allocation
void *memory_allocate(size_t bytes);
void memory_free(void *address);
// Ends with a message where [address, address + bytes) is not inside one allocation, or not aligned.
void memory_check(const void *address, size_t bytes, size_t alignment);
// Bytes beside the allocations that were written to ("" where none were).
std::string memory_damage();

// ---- Kernels as the runtime knows them (simt_runtime.cpp)
// A cudaError_t: not 0 where the program is said to hold no code for this GPU.
int kernel_load(const void *kernel);
// Whether kernels must be loaded ahead and this one was not.
bool kernel_is_late(const void *kernel);

// ---- Streams (simt_queue.cpp)
// Work is done when somebody waits for it, as late as can be, and of the streams whose next piece can be done
// a random one goes first: whatever the program does not order happens in the wrong order. The calls may come
// from several threads.
struct stream;
// A piece of work: true when it is over, false where it cannot be yet, to be asked again.
typedef std::function<bool()> work;
// NULL: at once, on this thread.
void enqueue(void *stream, work piece);
stream *stream_create();
void stream_destroy(stream *s);
// Does work of any stream until `over` says so.
void work_until(const std::function<bool()> &over);
bool streams_are_idle();
bool stream_is_idle(const stream *s);
// Runs `action` while no work is done.
void between_work(const std::function<void()> &action);

// ---- Between the harness's files
void shared_begin_block(uint32_t dynamic_bytes);
void shared_pass_barrier();
void shared_pass_warp_barrier(int warp);
void shared_end_thread(int thread);

} // namespace simt
