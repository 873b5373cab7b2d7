// Races between the blocks of a launch through device memory, with a record beside every two bytes: which
// block wrote and which read them last.
//
// Blocks run one after another, so the later of two sees what the other did. It is an error
// unless it is ordered after it:
//
//   release   a thread's atomic operation, when every store that the block has made to device memory was
//             followed by a __threadfence, of the thread itself or, after a __syncthreads, of any, and that
//             fence comes before the operation (the same thread's, or with a __syncthreads between)
//   acquire   another block's later atomic operation on the same place: for its thread at once, for the
//             others of its block after a __syncthreads
//
// so the pattern of CUDA's programming guide passes: store, __threadfence, atomic counter, and the last block
// reads what all have stored. Atomic operations never race with each other. Limits: only the first 30
// releases of a block are distinguished. If several blocks read a place, it is only known that they are
// several; a block that writes there must then be ordered after all earlier ones. What a block that wrote
// atomically overwrote is forgotten. __syncwarp orders nothing here.
#include "tests/simt/emulator/simt.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sys/mman.h>

namespace simt {

namespace {

constexpr uint16_t atomic_bit = 1 << 15, thread_mask = 0x3ff;
constexpr int clock_shift = 10, clock_max = 31; // the last one is never released

// What a block knows of a different one: its operations up to `clock`, by thread `thread` at barrier `epoch`.
struct knowledge {
  int clock, thread;
  uint32_t epoch;
};
typedef std::map<uint32_t, knowledge> known_blocks;

// Numbers of blocks go up over all launches: `several` is below those of this launch, and above those before.
uint32_t several, current, next_number = 1;
uint32_t fast; // `current`, while the block has released nothing; else no block
int block_clock;
bool is_alone; // the launch has one block
dim3 grid_now;
std::vector<int> block_order;
known_blocks acquired;
std::map<uintptr_t, std::map<uint32_t, int>> released; // by place: blocks and their clocks
// By thread: the epoch of its last store that it has not fenced (0: none), of its last fence, and of its last
// fence after a store. Epochs go up over all blocks, so that those of earlier ones are below `first_epoch`.
uint32_t store_epoch[threads_max], fence_epoch[threads_max], clean_epoch[threads_max], first_epoch;

uint16_t own_detail() {
  return uint16_t(self->thread | block_clock << clock_shift);
}
int clock_of(uint16_t detail) {
  return detail >> clock_shift & clock_max;
}

bool knows(uint32_t block, uint16_t detail) {
  const auto found = acquired.find(block);
  if (found == acquired.end() || clock_of(detail) > found->second.clock) return false;
  return found->second.thread == self->thread || found->second.epoch < shared_epoch;
}

bool knows_all_before() {
  for (uint32_t block = several + 1; block < current; block++)
    if (!knows(block, 0)) return false;
  return true;
}

[[noreturn]] void report(const allocation *a, size_t record, const char *what, uint32_t block,
                         uint16_t detail, const char *other, const char *own) {
  const auto at = unsigned(block_order[block - several - 1]);
  fail("race on device memory: %sblock (%u,%u,%u) thread %d %s and this one %s byte %zu of an allocation of "
       "%zu "
       "bytes, with nothing that orders the two blocks",
       what, at % grid_now.x, at / grid_now.x % grid_now.y, at / grid_now.x / grid_now.y,
       detail & thread_mask, other, own, record * granule_bytes, a->bytes);
}

bool in_launch(uint32_t block) {
  return block > several;
}

void check_writer(const allocation *a, size_t i, const char *own) {
  const uint32_t writer = a->records[i].writer;
  if (in_launch(writer) && writer != current && !knows(writer, a->details[i].writer))
    report(a, i, "", writer, a->details[i].writer, "writes", own);
}

void check_reader(const allocation *a, size_t i, const char *own) {
  const uint32_t reader = a->records[i].reader;
  if (reader == several ? knows_all_before() : !in_launch(reader) || reader == current) return;
  if (reader != several && knows(reader, a->details[i].reader)) return;
  const uint32_t named = reader == several ? several + 1 : reader;
  report(a, i, reader == several ? "several blocks read, maybe " : "", named, a->details[i].reader, "reads",
         own);
}

void note_read(const allocation *a, size_t i) {
  global_record *r = &a->records[i];
  check_writer(a, i, "reads");
  if (r->reader == several) return;
  if (in_launch(r->reader) && r->reader != current && !knows(r->reader, a->details[i].reader)) {
    r->reader = several;
    return;
  }
  r->reader = current;
  a->details[i].reader = own_detail();
}

void note_write(const allocation *a, size_t i, uint16_t flags) {
  const bool both_atomic = flags && (a->details[i].writer & atomic_bit);
  if (!both_atomic) check_writer(a, i, flags ? "changes atomically" : "writes");
  check_reader(a, i, flags ? "changes atomically" : "writes");
  a->records[i].writer = current;
  a->details[i].writer = own_detail() | flags;
}

void make_records(allocation *a) {
  a->record_count = (a->bytes + granule_bytes - 1) / granule_bytes;
  const size_t bytes = a->record_count * (sizeof(global_record) + sizeof(global_detail));
  void *memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("simt: records of device memory");
    abort();
  }
  madvise(memory, bytes, MADV_HUGEPAGE); // fewer faults, if the system has them
  a->records = static_cast<global_record *>(memory);
  a->details = reinterpret_cast<global_detail *>(a->records + a->record_count);
}

struct piece {
  const allocation *a;
  size_t first, count;
};

piece records_of(const void *address, uint32_t bytes) {
  if (bytes % granule_bytes) fail("device memory is accessed in units of 2 bytes");
  allocation *a = memory_find(address, bytes, std::min(bytes, 16u));
  if (!a->records) make_records(a);
  const auto at = size_t(static_cast<const unsigned char *>(address) - a->data);
  return {a, at / granule_bytes, bytes / granule_bytes};
}

// Whether every store of the block is fenced, and ordered before what this thread does now.
bool is_released() {
  const int own = self->thread;
  const int count = int(blockDim.x * blockDim.y * blockDim.z);
  for (int t = 0; t < count; t++) {
    // Its own fence, or this thread's on the other side of a barrier.
    const bool is_fenced = store_epoch[t] >= first_epoch
                               ? fence_epoch[own] > store_epoch[t]
                               : clean_epoch[t] < first_epoch || t == own || clean_epoch[t] < shared_epoch;
    if (!is_fenced) return false;
  }
  return true;
}

} // namespace

void global_free_records(allocation *a) {
  if (a->records) munmap(a->records, a->record_count * (sizeof(global_record) + sizeof(global_detail)));
}

void global_read(const void *address, uint32_t bytes) {
  if (is_alone) return memory_check(address, bytes, std::min(bytes, 16u));
  const piece p = records_of(address, bytes);
  const global_record *r = p.a->records + p.first;
  uint32_t unknown = 0; // with no branches inside: most reads find that they are known
  for (size_t i = 0; i < p.count; i++)
    unknown |= uint32_t(((r[i].writer >= several) & (r[i].writer != fast)) |
                        ((r[i].reader != fast) & (r[i].reader != several)));
  for (size_t i = 0; unknown && i < p.count; i++) note_read(p.a, p.first + i);
}

void global_write(const void *address, uint32_t bytes) {
  if (is_alone) return memory_check(address, bytes, std::min(bytes, 16u));
  const piece p = records_of(address, bytes);
  const global_record *r = p.a->records + p.first;
  uint32_t unknown = 0;
  for (size_t i = 0; i < p.count; i++)
    unknown |= uint32_t((r[i].writer != fast) | ((r[i].reader > several) & (r[i].reader != fast)));
  for (size_t i = 0; unknown && i < p.count; i++) note_write(p.a, p.first + i, 0);
  store_epoch[self->thread] = shared_epoch;
}

void global_fence() {
  uint32_t &stored = store_epoch[self->thread];
  fence_epoch[self->thread] = shared_epoch;
  if (stored >= first_epoch) clean_epoch[self->thread] = shared_epoch;
  stored = 0;
}

void global_atomic(const void *address, uint32_t bytes, const std::function<void()> &operation) {
  if (is_alone) {
    memory_check(address, bytes, bytes);
    operation();
    return;
  }
  const piece p = records_of(address, bytes);
  auto &place = released[reinterpret_cast<uintptr_t>(address)];
  for (const auto &other : place) {
    if (other.first == current) continue;
    const auto found = acquired.find(other.first);
    const bool is_older =
        found != acquired.end() && found->second.clock >= other.second && found->second.epoch < shared_epoch;
    if (!is_older) acquired[other.first] = {other.second, self->thread, shared_epoch};
  }
  for (size_t i = p.first; i < p.first + p.count; i++) note_write(p.a, i, atomic_bit);
  operation();
  if (!is_released() || block_clock == clock_max - 1) return;
  for (const auto &other : acquired)
    if (knows(other.first, 0)) place[other.first] = std::max(place[other.first], other.second.clock);
  place[current] = block_clock++;
  fast = UINT32_MAX; // what the block does from here on belongs to a different clock
}

void global_begin_launch(const dim3 &grid, const std::vector<int> &blocks) {
  if (next_number > UINT32_MAX - uint32_t(blocks.size()) - 1) fail("more than 2^32 blocks in one program");
  several = next_number;
  current = several;
  next_number += uint32_t(blocks.size()) + 1;
  is_alone = blocks.size() == 1;
  grid_now = grid;
  block_order = blocks;
  released.clear();
}

void global_begin_block() {
  fast = ++current;
  block_clock = 0;
  acquired.clear();
  first_epoch = shared_epoch;
}

} // namespace simt
