// Shared memory with a record beside every two bytes: who wrote and read them last, and when.
//
// Two accesses by different threads, one of them a write, must have a __syncthreads between them, a chain of
// named barriers, or, within a warp, a __syncwarp: "when" is a pair (barriers passed; the warp's clock, which
// its __syncwarps and named barriers move). Each warp knows each other's clock up to the last named barrier
// that ordered them. Shuffles, ldmatrix, mma and wgmma order nothing, as on the device.
//
// A product of a warpgroup reads for all its warps, from its start to the wait that ends it: bytes in between
// must not be written. Between a write and the product that reads it lies a fence_proxy_async: of the writer,
// which all warps of the warpgroup are ordered after; or of each thread of the warpgroup, ordered after the
// write.
// Boxes are written in the async proxy and need none; they land when a warpgroup waits for them.
#include "tests/simt/emulator/simt.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace simt {

alignas(128) unsigned char shared_memory[shared_bytes_max];
shared_record shared_records[shared_bytes_max / granule_bytes];
uint32_t shared_used_bytes, shared_epoch;
uint32_t shared_settled[shared_bytes_max / granule_bytes];
uint32_t block_token, warp_token, warp_tokens[threads_max / warp_size];

namespace {

// In place of one reader: several of a warp, of any warps, of warps that read_clocks lists.
constexpr uint16_t many_lanes = 0xfffe, many_warps = 0xffff, listed_warps = 0xfffd;
constexpr uint32_t warps_max = threads_max / warp_size, never = UINT32_MAX;

struct copy_in_flight {
  uint32_t address, valid;
  const void *source;
  int group;
};

struct thread_copies {
  std::vector<copy_in_flight> copies;
  int committed = 0;
};

thread_copies copies_of[threads_max];
int copiers; // threads from this one on have copied nothing
struct site {
  const void *key;
  uint32_t address, bytes;
};
std::vector<site> sites;
uint32_t dynamic_at;
uint32_t first_epoch;         // of the block
warp_clocks known[warps_max]; // by warp: what it knows of the others'; its own clock
bool has_named_barriers;      // the block so far
warp_clocks read_clocks[shared_bytes_max / granule_bytes]; // of listed_warps: the last read of each, or never
// By thread, its proxy fences.
struct moment {
  uint32_t epoch, clock;
};
std::vector<moment> proxy_fences[threads_max];
// What a thread's warp knew at its last one.
struct reader_fence {
  uint32_t epoch;
  warp_clocks known;
};
reader_fence last_fences[threads_max];
int fencers; // threads from this one on have none
uint32_t last_token;

void renew_tokens() {
  block_token = ++last_token;
  for (uint32_t &token : warp_tokens) token = ++last_token;
  if (self) warp_token = warp_tokens[self->warp];
}

// Whether what a warp did then comes before what warp `warp` does now.
bool is_before(int other_warp, uint32_t epoch, uint32_t clock, int warp) {
  return epoch < shared_epoch || clock < known[warp][other_warp];
}
bool is_before(int other_thread, uint32_t epoch, uint32_t clock) {
  return is_before(other_thread / warp_size, epoch, clock, self->warp);
}

void check_place(uint32_t address, uint32_t bytes, uint32_t alignment) {
  if (address > shared_used_bytes || bytes > shared_used_bytes - address)
    fail("shared memory out of bounds: bytes %u to %u of %u", address, address + bytes, shared_used_bytes);
  if (address % alignment) fail("shared memory: address %u is not aligned to %u bytes", address, alignment);
}

// Whether all reads come before a write of this thread now.
bool reads_are_before(const shared_record *r) {
  if (r->read_epoch < shared_epoch || r->reader == self->thread) return true;
  if (r->reader == many_warps) return false;
  if (r->reader != listed_warps) return r->read_sync < known[self->warp][r->reader_warp];
  const warp_clocks &reads = read_clocks[r - shared_records];
  for (uint32_t w = 0; w < warps_max; w++)
    if (reads[w] != never && reads[w] >= known[self->warp][w]) return false;
  return true;
}

void note_write(shared_record *r, uint32_t address) {
  const int t = self->thread;
  if (r->in_flight) fail("shared byte %u is written while a cp.async to it is in flight", address);
  if (r->async_readers) fail("shared byte %u is written while a wgmma in progress reads it", address);
  if (r->writer != t && !is_before(r->writer, r->write_epoch, r->write_sync))
    fail("race on shared byte %u: threads %d and %d write it with no barrier between", address, r->writer, t);
  if (!reads_are_before(r)) {
    if (r->reader < listed_warps)
      fail("race on shared byte %u: thread %d reads and thread %d writes it with no barrier between", address,
           r->reader, t);
    fail("race on shared byte %u: several threads read and thread %d writes it with no barrier between",
         address, t);
  }
  r->write_epoch = shared_epoch;
  r->write_sync = known[self->warp][self->warp];
  r->write_fence = uint32_t(proxy_fences[t].size());
  r->writer = uint16_t(t);
  r->by_box = false;
  shared_settled[r - shared_records] = 0;
}

void check_written(const shared_record *r, uint32_t address) {
  if (r->in_flight) fail("shared byte %u is read while a cp.async to it is in flight", address);
  if (r->write_epoch < first_epoch) fail("shared byte %u is read before anything was written to it", address);
}

// The readers of this epoch become a list of warps.
void list_readers(shared_record *r) {
  if (r->read_epoch == shared_epoch && (r->reader == listed_warps || r->reader == many_warps)) return;
  warp_clocks &reads = read_clocks[r - shared_records];
  std::fill(std::begin(reads), std::end(reads), never);
  if (r->read_epoch == shared_epoch) reads[r->reader_warp] = r->read_sync;
  r->read_epoch = shared_epoch;
  r->reader = listed_warps;
}

void note_read(shared_record *r, uint32_t address) {
  const int t = self->thread;
  const uint32_t now = known[self->warp][self->warp];
  check_written(r, address);
  if (r->writer != t && !is_before(r->writer, r->write_epoch, r->write_sync))
    fail("race on shared byte %u: thread %d writes and thread %d reads it with no barrier between", address,
         r->writer, t);
  if (r->read_epoch != shared_epoch) {
    r->read_epoch = shared_epoch;
    r->read_sync = now;
    r->reader = uint16_t(t);
    r->reader_warp = uint8_t(self->warp);
  } else if (r->reader == many_warps) {
    return;
  } else if (r->reader == listed_warps || (r->reader_warp != self->warp && has_named_barriers)) {
    list_readers(r);
    read_clocks[r - shared_records][self->warp] = now;
  } else if (r->reader_warp != self->warp) {
    r->reader = many_warps;
    if (r->write_epoch < shared_epoch) shared_settled[r - shared_records] = block_token;
  } else if (now > r->read_sync ||
             r->reader == t) { // earlier readers of this warp are ordered before its writes
    r->reader = uint16_t(t);
    r->read_sync = now;
  } else {
    r->reader = many_lanes;
    if (r->write_epoch < shared_epoch) shared_settled[r - shared_records] = warp_token;
  }
}

shared_record *records_at(uint32_t address, uint32_t bytes) {
  if (address % granule_bytes || bytes % granule_bytes) fail("shared memory is accessed in units of 2 bytes");
  return shared_records + address / granule_bytes;
}

void land(const copy_in_flight &copy) {
  shared_record *r = records_at(copy.address, 16);
  for (uint32_t i = 0; i < 16 / granule_bytes; i++) {
    r[i].in_flight = false;
    note_write(r + i, copy.address + i * granule_bytes);
  }
  memcpy(shared_memory + copy.address, copy.source, copy.valid);
  memset(shared_memory + copy.address + copy.valid, 0, 16 - copy.valid);
}

} // namespace

void shared_read_checked(uint32_t address, void *value, uint32_t bytes) {
  check_place(address, bytes, std::min(bytes, 16u));
  shared_record *r = records_at(address, bytes);
  for (uint32_t i = 0; i < bytes / granule_bytes; i++) note_read(r + i, address + i * granule_bytes);
  memcpy(value, shared_memory + address, bytes);
}

void shared_write(uint32_t address, const void *value, uint32_t bytes) {
  check_place(address, bytes, std::min(bytes, 16u));
  shared_record *r = records_at(address, bytes);
  for (uint32_t i = 0; i < bytes / granule_bytes; i++) note_write(r + i, address + i * granule_bytes);
  memcpy(shared_memory + address, value, bytes);
}

uint32_t shared_dynamic() {
  return dynamic_at;
}

uint32_t shared_static(const void *key, uint32_t bytes) {
  for (const site &s : sites)
    if (s.key == key) return s.address;
  uint32_t address = (shared_used_bytes + 127) / 128 * 128;
  const uint32_t allowed = shared_bytes_allowed(kernel_of_launch());
  if (address + bytes > allowed)
    fail("%u bytes of dynamic and static shared memory, but %u are allowed", address + bytes, allowed);
  sites.push_back({key, address, bytes});
  shared_used_bytes = address + bytes;
  note_static_shared(kernel_of_launch(), shared_used_bytes - dynamic_shared_bytes());
  return address;
}

void async_copy(uint32_t address, const void *source, uint32_t valid) {
  if (valid) global_read(source, valid);
  check_place(address, 16, 16);
  shared_record *r = records_at(address, 16);
  for (uint32_t i = 0; i < 16 / granule_bytes; i++) {
    note_write(r + i, address + i * granule_bytes);
    r[i].in_flight = true;
  }
  thread_copies &own = copies_of[self->thread];
  copiers = std::max(copiers, self->thread + 1);
  own.copies.push_back({address, valid, source, own.committed});
}

void async_commit() {
  copies_of[self->thread].committed++;
  copiers = std::max(copiers, self->thread + 1);
}

void async_wait(int groups_left) {
  thread_copies &own = copies_of[self->thread];
  int landed = own.committed - groups_left;
  size_t kept = 0;
  for (const copy_in_flight &copy : own.copies) {
    if (copy.group < landed) {
      land(copy);
    } else {
      own.copies[kept++] = copy;
    }
  }
  own.copies.resize(kept);
}

namespace {

// Whether each thread of a warp has made a fence after the write.
bool readers_fence(const shared_record &r, int warp) {
  const int writer_warp = r.writer / warp_size;
  for (int t = warp * warp_size; t < (warp + 1) * warp_size; t++) {
    const reader_fence &last = last_fences[t];
    if (proxy_fences[t].empty()) return false;
    if (r.write_epoch >= last.epoch && r.write_sync >= last.known[writer_warp]) return false;
  }
  return true;
}

} // namespace

void shared_fence_proxy() {
  last_fences[self->thread].epoch = shared_epoch;
  memcpy(last_fences[self->thread].known, known[self->warp], sizeof known[self->warp]);
  proxy_fences[self->thread].push_back({shared_epoch, known[self->warp][self->warp]});
  fencers = std::max(fencers, self->thread + 1);
}

void shared_begin_async_read(uint32_t address) {
  check_place(address, 16, 16);
  shared_record *r = records_at(address, 16);
  const int first_warp = self->warp / 4 * 4;
  for (uint32_t i = 0; i < 16 / granule_bytes; i++) {
    const uint32_t at = address + i * granule_bytes;
    check_written(r + i, at);
    const int writer = r[i].writer;
    const std::vector<moment> &fences = proxy_fences[writer];
    const moment *fence = r[i].write_fence < fences.size() ? &fences[r[i].write_fence] : nullptr;
    for (int w = first_warp; w < first_warp + 4; w++) {
      if (!is_before(writer / warp_size, r[i].write_epoch, r[i].write_sync, w))
        fail("race on shared byte %u: thread %d writes it and a wgmma of warp %d reads it with no barrier "
             "between",
             at, writer, w);
      const bool fenced = fence && is_before(writer / warp_size, fence->epoch, fence->clock, w);
      if (!r[i].by_box && !fenced && !readers_fence(r[i], w))
        fail("shared byte %u is read by a wgmma of warp %d with no fence_proxy_async of thread %d, which "
             "wrote "
             "it, before a barrier, nor of each thread of the warp after it",
             at, w, writer);
    }
    r[i].async_readers++;
    shared_settled[address / granule_bytes + i] = 0;
  }
}

void shared_end_async_read(uint32_t address) {
  shared_record *r = records_at(address, 16);
  const int first_warp = self->warp / 4 * 4;
  for (uint32_t i = 0; i < 16 / granule_bytes; i++) {
    r[i].async_readers--;
    list_readers(r + i);
    if (r[i].reader == many_warps) continue;
    for (int w = first_warp; w < first_warp + 4; w++)
      read_clocks[address / granule_bytes + i][w] = known[w][w];
  }
}

void shared_drop_async_read(uint32_t address) {
  if (address > shared_bytes_max - 16) return; // the failure
  for (uint32_t i = 0; i < 16 / granule_bytes; i++)
    shared_records[address / granule_bytes + i].async_readers = 0;
}

// ---- Boxes

namespace {

struct box_in_flight {
  uint32_t address;
  const unsigned char *source; // NULL: zeros
  uint32_t bytes;              // of a row of 128, the others are zeros
};
struct box_barrier {
  uint32_t address = 0;
  int turns = 0; // that are complete
  int64_t expected = -1, started = 0;
  std::vector<box_in_flight> rows;
};
std::vector<box_barrier> box_barriers;
constexpr uint32_t box_row_bytes = 128;

box_barrier *box_barrier_at(uint32_t address) {
  for (box_barrier &b : box_barriers)
    if (b.address == address) return &b;
  fail("no box_barrier_init of shared byte %u", address);
}

void land_row(const box_in_flight &row) {
  unsigned char whole[box_row_bytes] = {};
  if (row.source) memcpy(whole, row.source, row.bytes);
  for (uint32_t c = 0; c < box_row_bytes / 16; c++) {
    const uint32_t at = row.address + (c ^ (row.address / box_row_bytes % 8)) * 16;
    shared_record *r = records_at(at, 16);
    for (uint32_t i = 0; i < 16 / granule_bytes; i++) {
      r[i].in_flight = false;
      r[i].by_box = true;
      r[i].write_epoch = shared_epoch;
      r[i].write_sync = known[self->warp][self->warp];
      r[i].writer = uint16_t(self->thread); // one of those that wait
    }
    memcpy(shared_memory + at, whole + c * 16, 16);
  }
}

} // namespace

void box_barrier_init(uint32_t barrier) {
  const uint64_t zero = 0;
  shared_write(barrier, &zero, sizeof zero);
  for (const box_barrier &b : box_barriers)
    if (b.address == barrier) fail("two box_barrier_init of shared byte %u", barrier);
  box_barriers.emplace_back();
  box_barriers.back().address = barrier;
}

void box_expect(uint32_t barrier, int bytes) {
  box_barrier *b = box_barrier_at(barrier);
  shared_load<uint64_t>(barrier); // was made before
  if (b->expected >= 0) fail("box_expect of a turn that is not complete");
  b->expected = bytes;
}

void box_copy(uint32_t address, const box_map &map, int column, int row, int slice, uint32_t barrier) {
  box_barrier *b = box_barrier_at(barrier);
  if (b->expected < 0) fail("copy_box before box_expect");
  if (address % 1024) fail("copy_box to shared byte %u, which is not aligned to 1024 bytes", address);
  for (int i = 0; i < map.box_rows; i++) {
    const bool exists = row + i >= 0 && row + i < map.rows && column >= 0 && column < map.columns &&
                        slice >= 0 && slice < map.slices;
    const int64_t numel = exists ? std::min<int64_t>(64, map.columns - column) : 0;
    const unsigned char *source =
        exists ? map.data + ((slice * map.rows + row + i) * map.columns + column) * 2 : nullptr;
    if (exists) global_read(source, uint32_t(numel * 2));
    const uint32_t to = address + uint32_t(i) * box_row_bytes;
    check_place(to, box_row_bytes, 16);
    shared_record *r = records_at(to, box_row_bytes);
    for (uint32_t g = 0; g < box_row_bytes / granule_bytes; g++) {
      note_write(r + g, to + g * granule_bytes);
      r[g].in_flight = true;
    }
    b->rows.push_back({to, source, uint32_t(numel * 2)});
  }
  b->started += int64_t(map.box_rows) * box_row_bytes;
  if (b->started > b->expected) fail("copies of more bytes than box_expect said");
}

void box_wait(uint32_t barrier, int turn) {
  struct waiting_for {
    uint32_t barrier;
    int turn;
  } own = {barrier, turn};
  box_barrier_at(barrier);
  shared_load<uint64_t>(barrier);
  warpgroup_together("box_wait", &own, [](void *const *arguments) {
    const auto *wanted = static_cast<waiting_for *>(arguments[0]);
    box_barrier *b = box_barrier_at(wanted->barrier);
    if (b->turns > wanted->turn) return;
    if (b->turns < wanted->turn || b->expected < 0 || b->started != b->expected)
      fail("box_wait for turn %d of shared byte %u: %d are complete, and of the next %lld bytes of %lld are "
           "on "
           "their way",
           wanted->turn, wanted->barrier, b->turns, (long long)b->started, (long long)b->expected);
    for (const box_in_flight &row : b->rows) land_row(row);
    const int warp = self->warp;
    shared_pass_warp_barrier(warp);
    for (int w = warp / 4 * 4; w < warp / 4 * 4 + 4; w++) // all of them have waited
      known[w][warp] = std::max(known[w][warp], known[warp][warp]);
    b->rows.clear();
    b->started = 0;
    b->expected = -1;
    b->turns++;
  });
}

void shared_begin_block(uint32_t dynamic_bytes) {
  for (const box_barrier &b : box_barriers) // left by a failed block
    for (const box_in_flight &row : b.rows)
      for (uint32_t g = 0; g < box_row_bytes / granule_bytes; g++)
        shared_records[row.address / granule_bytes + g].in_flight = false;
  box_barriers.clear();
  sites.clear();
  dynamic_at = 0;
  shared_used_bytes = dynamic_bytes;
  first_epoch = ++shared_epoch;
  renew_tokens();
  memset(known, 0, sizeof known);
  has_named_barriers = false;
  for (; fencers > 0; fencers--) proxy_fences[fencers - 1].clear();
  for (; copiers > 0; copiers--) {
    thread_copies &own = copies_of[copiers - 1];
    for (const copy_in_flight &copy : own.copies) // left by a failed block
      for (uint32_t i = 0; i < 16 / granule_bytes; i++)
        shared_records[copy.address / granule_bytes + i].in_flight = false;
    own.copies.clear();
    own.committed = 0;
  }
}

void shared_pass_barrier() {
  shared_epoch++;
  renew_tokens();
}

void shared_pass_warp_barrier(int warp) {
  known[warp][warp]++;
  warp_token = warp_tokens[warp] = ++last_token;
}

void shared_release(int warp, warp_clocks *clocks) {
  has_named_barriers = true;
  block_token = ++last_token;
  shared_pass_warp_barrier(warp);
  for (uint32_t w = 0; w < warps_max; w++) (*clocks)[w] = std::max((*clocks)[w], known[warp][w]);
}

void shared_acquire(int warp, const warp_clocks &clocks) {
  for (uint32_t w = 0; w < warps_max; w++) known[warp][w] = std::max(known[warp][w], clocks[w]);
}

void shared_end_thread(int thread) {
  if (!copies_of[thread].copies.empty()) fail("the thread returns with a cp.async in flight");
}

} // namespace simt
