// Blocks and threads: who runs, who waits, and what it means when nobody can resume.
#include "tests/simt/emulator/simt.h"
#include "tests/simt/emulator/simt_fiber.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

const self_state *self;

namespace {

enum class waiting { nothing, barrier, warp, warpgroup, named_barrier, ended };

struct thread_state {
  self_state seen;
  fiber own;
  waiting state;
};

// One function that lanes of a warp have called and others have yet to.
struct gathering {
  const char *name = nullptr;
  uint32_t mask = 0, arrived = 0;
  void *arguments[warp_size] = {};
};

struct warp_state {
  std::vector<gathering> open;
};

// One function that threads of a warpgroup have called and others have yet to.
struct warpgroup_gathering {
  const char *name = nullptr;
  int arrived = 0;
  void *arguments[warpgroup_size] = {};
};

struct named_barrier_state {
  int threads, arrived, generation;
  std::vector<int> waiting_warps;
  warp_clocks clocks;
};
constexpr int named_barriers_max = 16;

thread_state threads[threads_max];
warpgroup_gathering warpgroups[threads_max / warpgroup_size];
named_barrier_state named_barriers[named_barriers_max];
warp_state warps[threads_max / warp_size];
fiber host;
uint32_t dynamic_bytes;
int thread_count, word_count, ended_count, at_barrier, rank_of_current;
const char *barrier_file;
int barrier_line;
const std::function<void()> *body;

order chosen = order::forward;
uint64_t random_state = 0x9E3779B97F4A7C15u;
std::vector<int> thread_order(threads_max), place_of_thread(threads_max);
uint64_t runnable[threads_max / 64]; // bit r: the thread of rank r in the order can resume

std::set<place> places;
const place *left_out;
const char *last_file;
int last_line;

bool failure_expected;
std::string failure;
bool failed;
const void *kernel_now; // NULL: unnamed
struct expected_failure {};

uint64_t draw() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

void arrange(std::vector<int> *items, size_t count) {
  items->resize(count);
  std::iota(items->begin(), items->end(), 0);
  if (chosen == order::reverse)
    for (size_t i = 0; i < count / 2; i++) std::swap((*items)[i], (*items)[count - 1 - i]);
  if (chosen == order::random)
    for (size_t i = count; i > 1; i--) std::swap((*items)[i - 1], (*items)[draw() % i]);
}

void set_runnable(int thread, bool value) {
  int rank = place_of_thread[size_t(thread)];
  uint64_t bit = uint64_t(1) << (rank % 64);
  runnable[rank / 64] = value ? runnable[rank / 64] | bit : runnable[rank / 64] & ~bit;
}

// The rank whose thread resumes, -1 if there is none: in random order the next one around, so that warps
// take turns; else the lowest, so that a warp goes as far as it can, whose stacks are then in the cache.
int next_rank() {
  int word = 0;
  if (chosen == order::random) {
    word = rank_of_current / 64;
    uint64_t later = runnable[word] & ~((uint64_t(2) << (rank_of_current % 64)) - 1);
    if (later) return word * 64 + __builtin_ctzll(later);
    word++;
  }
  for (int i = 0; i < word_count; i++, word++) {
    if (word >= word_count) word = 0;
    if (runnable[word]) return word * 64 + __builtin_ctzll(runnable[word]);
  }
  return -1;
}

[[noreturn]] void leave_block() {
  thread_state *current = &threads[thread_order[size_t(rank_of_current)]];
  fiber_switch(&current->own, &host);
  abort(); // nobody returns to a block that has failed
}

void check_named_barriers() {
  for (int b = 0; b < named_barriers_max; b++)
    if (named_barriers[b].arrived > 0)
      fail("named barrier %d: %d of %d threads have arrived, the others never come", b,
           named_barriers[b].arrived, named_barriers[b].threads);
}

// Nobody can resume, though a thread has not ended.
[[noreturn]] void report_stuck() {
  for (int w = 0; w < (thread_count + warp_size - 1) / warp_size; w++)
    for (const gathering &g : warps[w].open)
      fail("warp %d: %s with mask %08x has lanes %08x waiting for lanes %08x, which never come", w, g.name,
           g.mask, g.arrived, g.mask & ~g.arrived);
  for (int w = 0; w < threads_max / warpgroup_size; w++)
    if (warpgroups[w].arrived > 0)
      fail("warpgroup %d: %s has %d of 128 threads, the others never come", w, warpgroups[w].name,
           warpgroups[w].arrived);
  check_named_barriers();
  fail("divergent barrier: %d of %d threads wait at %s:%d, %d have returned", at_barrier, thread_count,
       barrier_file, barrier_line, ended_count);
}

void become(const thread_state *thread) {
  self = &thread->seen;
  threadIdx = thread->seen.thread_index;
  warp_token = warp_tokens[self->warp];
}

void resume_next() {
  thread_state *current = &threads[thread_order[size_t(rank_of_current)]];
  int next = next_rank();
  if (next < 0) {
    if (ended_count < thread_count) report_stuck();
    fiber_switch(&current->own, &host);
    return;
  }
  if (next == rank_of_current) return;
  rank_of_current = next;
  thread_state *other = &threads[thread_order[size_t(next)]];
  become(other);
  fiber_switch(&current->own, &other->own);
}

void wait_as(waiting why) {
  thread_state *current = &threads[self->thread];
  current->state = why;
  set_runnable(self->thread, false);
  resume_next();
}

void wake(int thread) {
  threads[thread].state = waiting::nothing;
  set_runnable(thread, true);
}

void thread_main() {
  fiber_arrived(&threads[self->thread].own, &host);
  (*body)();
  shared_end_thread(self->thread);
  warpgroup_end_thread();
  if (++ended_count == thread_count) check_named_barriers();
  wait_as(waiting::ended);
  abort();
}

void start_threads(const launch_shape &shape) {
  thread_count = int(shape.block.x * shape.block.y * shape.block.z);
  word_count = (thread_count + 63) / 64;
  ended_count = at_barrier = 0;
  std::vector<int> order_now;
  arrange(&order_now, size_t(thread_count));
  memset(runnable, 0, sizeof runnable);
  for (int rank = 0; rank < thread_count; rank++) {
    thread_order[size_t(rank)] = order_now[size_t(rank)];
    place_of_thread[size_t(order_now[size_t(rank)])] = rank;
  }
  for (int t = 0; t < thread_count; t++) {
    unsigned x = shape.block.x, y = shape.block.y;
    dim3 index(unsigned(t) % x, unsigned(t) / x % y, unsigned(t) / x / y);
    threads[t].seen = {index, t, t / warp_size, t % warp_size};
    fiber_prepare(&threads[t].own, thread_main);
    wake(t);
  }
  for (warp_state &w : warps) w.open.clear();
  for (warpgroup_gathering &g : warpgroups) g.arrived = 0;
  for (named_barrier_state &b : named_barriers) b = named_barrier_state();
}

void run_block(const launch_shape &shape) {
  shared_begin_block(uint32_t(shape.shared_bytes));
  global_begin_block();
  warpgroup_begin_block();
  start_threads(shape);
  rank_of_current = 0;
  thread_state *first = &threads[thread_order[0]];
  become(first);
  fiber_switch(&host, &first->own);
  self = nullptr;
}

// On the host's stack: the program ends, or the caller that expects the failure resumes.
void finish_failure() {
  if (failure_expected) throw expected_failure();
  fprintf(stderr, "simt: %s\n", failure.c_str());
  exit(1);
}

} // namespace

uint32_t dynamic_shared_bytes() {
  return dynamic_bytes;
}

void set_order(order value) {
  chosen = value;
  random_state = 0x9E3779B97F4A7C15u;
}

void fail(const char *format, ...) {
  char text[512], place[512] = "";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (self)
    snprintf(place, sizeof place, " [%s, block (%u,%u,%u), thread %d]", kernel_name(kernel_now).c_str(),
             blockIdx.x, blockIdx.y, blockIdx.z, self->thread);
  failure = std::string(text) + place;
  failed = true;
  if (self) leave_block();
  finish_failure();
  abort();
}

void launch(const launch_shape &shape, const std::function<void()> &kernel) {
  if (check_launch(shape) != 0) fail("a launch is refused: %s", last_refusal().c_str());
  blockDim = shape.block;
  gridDim = shape.grid;
  dynamic_bytes = uint32_t(shape.shared_bytes);
  kernel_now = shape.kernel;
  body = &kernel;
  failed = false;
  std::vector<int> blocks;
  arrange(&blocks, size_t(shape.grid.x) * shape.grid.y * shape.grid.z);
  global_begin_launch(shape.grid, blocks);
  for (int b : blocks) {
    unsigned at = unsigned(b), x = shape.grid.x, y = shape.grid.y;
    blockIdx = dim3(at % x, at / x % y, at / x / y);
    run_block(shape);
    if (failed) finish_failure();
  }
  const std::string damage = memory_damage();
  if (!damage.empty()) fail("%s by %s", damage.c_str(), kernel_name(shape.kernel).c_str());
}

const void *kernel_of_launch() {
  return kernel_now;
}

std::string expect_error(const std::function<void()> &action) {
  const size_t allocations = memory_count();
  failure.clear();
  failure_expected = true;
  try {
    action();
  } catch (const expected_failure &) {
    streams_clear();
    memory_free_beyond(allocations);
  }
  failure_expected = false;
  return failure;
}

const std::set<place> &places_passed() {
  return places;
}

void leave_out(const place *mutant) {
  left_out = mutant;
}

bool is_left_out(const char *what, const char *file, int line) {
  if (file != last_file || line != last_line) { // seldom: kernels wait at one place many times over
    places.insert({what, file, line});
    last_file = file;
    last_line = line;
  }
  return left_out && left_out->line == line && left_out->what == what && left_out->file == file;
}

void barrier(const char *file, int line) {
  if (is_left_out("__syncthreads", file, line)) return;
  if (at_barrier > 0 && (line != barrier_line || strcmp(file, barrier_file) != 0))
    fail("divergent barrier: this thread waits at %s:%d, others at %s:%d", file, line, barrier_file,
         barrier_line);
  barrier_file = file;
  barrier_line = line;
  if (++at_barrier < thread_count) {
    wait_as(waiting::barrier);
    return;
  }
  at_barrier = 0;
  shared_pass_barrier();
  for (int t = 0; t < thread_count; t++)
    if (threads[t].state == waiting::barrier) wake(t);
}

void warp_together(const char *name, uint32_t mask, void *argument, warp_body run) {
  uint32_t own = uint32_t(1) << self->lane;
  if (!(mask & own)) fail("%s: lane %d is not in its own mask %08x", name, self->lane, mask);
  std::vector<gathering> &open = warps[self->warp].open;
  size_t i = 0;
  for (; i < open.size() && open[i].mask != mask; i++)
    if (open[i].mask & mask)
      fail("%s with mask %08x while %s waits with mask %08x", name, mask, open[i].name, open[i].mask);
  if (i == open.size()) {
    open.emplace_back();
    open[i].name = name;
    open[i].mask = mask;
  }
  if (open[i].name != name && strcmp(open[i].name, name) != 0)
    fail("%s while other lanes of the warp are in %s", name, open[i].name);
  open[i].arrived |= own;
  open[i].arguments[self->lane] = argument;
  if (open[i].arrived != mask) {
    wait_as(waiting::warp);
    return;
  }
  run(open[i].arguments, mask);
  open.erase(open.begin() + long(i));
  for (int lane = 0; lane < warp_size; lane++)
    if ((mask >> lane & 1) && lane != self->lane) wake(self->warp * warp_size + lane);
}

void warp_barrier(uint32_t mask, const char *file, int line) {
  if (is_left_out("__syncwarp", file, line)) return;
  warp_together("__syncwarp", mask, nullptr, [](void *const *, uint32_t lanes) {
    if (lanes != 0xffffffffu) fail("__syncwarp of a part of the warp (%08x)", lanes);
    shared_pass_warp_barrier(self->warp);
  });
}

void warpgroup_together(const char *name, void *argument, warpgroup_body run) {
  warpgroup_gathering *g = &warpgroups[self->thread / warpgroup_size];
  const int first = self->thread / warpgroup_size * warpgroup_size;
  if (first + warpgroup_size > thread_count)
    fail("%s: the block has no whole warpgroup from thread %d on", name, first);
  if (g->arrived > 0 && strcmp(g->name, name) != 0)
    fail("%s while other threads of the warpgroup are in %s", name, g->name);
  g->name = name;
  g->arguments[self->thread - first] = argument;
  if (++g->arrived < warpgroup_size) {
    wait_as(waiting::warpgroup);
    return;
  }
  run(g->arguments);
  g->arrived = 0;
  for (int t = first; t < first + warpgroup_size; t++)
    if (t != self->thread) wake(t);
}

namespace {

struct named_barrier_call {
  int barrier, threads, generation;
  bool waits;
};

void arrive_at_named_barrier(void *const *arguments, uint32_t) {
  const auto &call = *static_cast<named_barrier_call *>(arguments[0]);
  named_barrier_state *b = &named_barriers[call.barrier];
  for (int lane = 0; lane < warp_size; lane++) {
    auto *other = static_cast<named_barrier_call *>(arguments[lane]);
    if (other->barrier != call.barrier || other->threads != call.threads || other->waits != call.waits)
      fail("lanes 0 and %d of a warp are at different named barriers", lane);
    other->generation = b->generation;
  }
  if (b->arrived > 0 && b->threads != call.threads)
    fail("named barrier %d is for %d threads here, and for %d elsewhere", call.barrier, call.threads,
         b->threads);
  b->threads = call.threads;
  b->arrived += warp_size;
  shared_release(self->warp, &b->clocks);
  if (call.waits) b->waiting_warps.push_back(self->warp);
  if (b->arrived < b->threads) return;
  b->arrived = 0;
  b->generation++;
  for (int warp : b->waiting_warps) {
    shared_acquire(warp, b->clocks);
    for (int t = warp * warp_size; t < (warp + 1) * warp_size; t++)
      if (threads[t].state == waiting::named_barrier) wake(t);
  }
  b->waiting_warps.clear();
  memset(b->clocks, 0, sizeof b->clocks);
}

} // namespace

void named_barrier(int barrier, int barrier_threads, bool waits) {
  if (barrier < 1 || barrier >= named_barriers_max)
    fail("named barrier %d: they are 1 to %d", barrier, named_barriers_max - 1);
  if (barrier_threads <= 0 || barrier_threads % warp_size || barrier_threads > thread_count)
    fail("named barrier %d for %d threads of a block of %d: whole warps of it", barrier, barrier_threads,
         thread_count);
  named_barrier_call own = {barrier, barrier_threads, 0, waits};
  warp_together(waits ? "named_barrier_sync" : "named_barrier_arrive", 0xffffffffu, &own,
                arrive_at_named_barrier);
  while (waits && named_barriers[barrier].generation == own.generation) wait_as(waiting::named_barrier);
}

} // namespace simt
