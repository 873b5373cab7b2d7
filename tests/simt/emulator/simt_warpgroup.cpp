// Asynchronous products of warpgroups (kernels/cuda/attention/hopper.cuh). A product that has started changes nothing
// until the wait that ends it: then it reads shared memory and its result lands. In between
//
//   the accumulator holds NaNs           one that is read spoils the result; one that was written is an error
//   fragments of a                       must hold what they held
//   shared memory that it reads          must not be written (simt_shared.cpp)
//
// A product whose registers the last wgmma_fence did not name, or that have changed since, is an error; so is
// a wait that does not name registers that are free after it, or that names others. The descriptor is decoded
// from its 64 bits (PTX ISA 9.7.15.5.1.2.2): a wrong one gives wrong numbers. Of its modes of swizzling the
// one of 128 bytes is known, with patterns that start on 1024 bytes (base offset 0).
#include "tests/simt/emulator/simt.h"

#include <cstring>
#include <memory>

namespace simt {

namespace {

constexpr int rows = 64, depth = 16, columns_max = 256;
constexpr uint32_t poison_bits = 0x7fd5a5a5; // a quiet NaN

struct accumulator {
  float *at[warpgroup_size]; // by thread
  int columns, products = 0; // that are in progress
  float value[rows][columns_max];
};

struct product {
  std::shared_ptr<accumulator> d;
  bool accumulates;
  int group;
  const uint32_t *a_at[warpgroup_size];     // NULL: from shared memory
  float a[rows][depth];                     // of registers
  std::vector<uint32_t> a_chunks, b_chunks; // addresses of 16 bytes
  bool a_mn, b_mn, is_last;                 // with its accumulator
};

struct fenced_registers {
  const char *at;
  std::vector<char> held;
};

struct warpgroup_state {
  std::vector<std::shared_ptr<product>> in_progress;
  int committed = 0;
  std::vector<fenced_registers> fenced[warpgroup_size];
};

warpgroup_state groups[threads_max / warpgroup_size];

struct named_registers {
  std::initializer_list<register_array> arrays;
  int groups_left;
};

warpgroup_state *own_group() {
  return &groups[self->thread / warpgroup_size];
}
int first_thread() {
  return self->thread / warpgroup_size * warpgroup_size;
}

bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  const auto *x = static_cast<const char *>(a), *y = static_cast<const char *>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

size_t bytes_of_thread(const accumulator &d) {
  return size_t(d.columns) / 2 * sizeof(float);
}

bool is_poisoned(const accumulator &d, int thread) {
  for (int i = 0; i < d.columns / 2; i++) {
    uint32_t bits;
    memcpy(&bits, d.at[thread] + i, sizeof bits);
    if (bits != poison_bits) return false;
  }
  return true;
}

// Whether a product in progress uses any of the registers of a thread.
bool is_used(const warpgroup_state &group, int thread, const void *at, size_t bytes) {
  for (const auto &p : group.in_progress)
    if (overlap(at, bytes, p->d->at[thread], bytes_of_thread(*p->d)) ||
        (p->a_at[thread] && overlap(at, bytes, p->a_at[thread], 4 * sizeof(uint32_t))))
      return true;
  return false;
}

// Where element `i` of a thread's registers lies in d.
template <class Use> void each_element(int columns, int thread, const Use &use) {
  const int row = thread / warp_size * 16 + thread % warp_size / 4, column = thread % 4 * 2;
  for (int i = 0; i < columns / 2; i++) use(i, row + i / 2 % 2 * 8, i / 4 * 8 + column + i % 2);
}

// ---- Descriptors

// The addresses of the 16-byte chunks of a factor: with major::k, chunk 2 r + c holds row r's elements 8 c to
// 8 c + 7 of k; with major::mn, chunk extent / 8 * k + c holds k's rows 8 c to 8 c + 7.
std::vector<uint32_t> chunks_of(const char *factor, uint64_t descriptor, bool mn, int extent) {
  const auto field = [&](int from) { return uint32_t(descriptor >> from & 0x3fff) << 4; };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  constexpr uint64_t known_bits =
      uint64_t(0x3fff) | uint64_t(0x3fff) << 16 | uint64_t(0x3fff) << 32 | uint64_t(3) << 62;
  if (descriptor >> 62 != 1 || (descriptor & ~known_bits))
    fail("the descriptor of %s, %016llx, is not of a 128-byte swizzle with base offset 0", factor,
         (unsigned long long)descriptor);
  std::vector<uint32_t> chunks;
  for (int i = 0; i < (mn ? depth : extent); i++)
    for (int c = 0; c < (mn ? extent / 8 : depth / 8); c++) {
      const uint32_t along = mn ? uint32_t(c % 8) * 16 + uint32_t(c / 8) * leading : uint32_t(c) * 16;
      const uint32_t at = (start + along + uint32_t(i % 8) * 128 + uint32_t(i / 8) * stride) & 0x3ffff;
      chunks.push_back(at ^ (at >> 7 & 7) << 4); // bits of the address itself
    }
  return chunks;
}

// Calls to(row or column, k, x) for every element of a factor.
template <class To> void read_factor(const std::vector<uint32_t> &chunks, bool mn, int extent, const To &to) {
  const int per_line = mn ? extent / 8 : depth / 8;
  for (size_t i = 0; i < chunks.size(); i++) {
    const int line = int(i) / per_line, first = int(i) % per_line * 8;
    fsdp_bf16 numbers[8];
    memcpy(numbers, shared_memory + chunks[i], sizeof numbers);
    for (int e = 0; e < 8; e++) {
      const float x = fsdp_bf16_to_f32(numbers[e]);
      mn ? to(first + e, line, x) : to(line, first + e, x);
    }
  }
}

#if defined(__x86_64__) && !defined(FSDP_SANITIZE_ADDRESS)
__attribute__((target_clones("avx2", "default")))
#endif
void add_product(const float (&a)[rows][depth], const float (&b)[depth][columns_max], int columns,
                 float (&d)[rows][columns_max]) {
  for (int m = 0; m < rows; m++)
    for (int k = 0; k < depth; k++)
      for (int n = 0; n < columns; n++) d[m][n] += a[m][k] * b[k][n];
}

// ---- The instructions, once all threads have come

void name_registers(void *const *arguments) {
  warpgroup_state *group = own_group();
  for (int t = 0; t < warpgroup_size; t++) {
    group->fenced[t].clear();
    for (const register_array &r : static_cast<named_registers *>(arguments[t])->arrays) {
      if (is_used(*group, t, r.at, r.bytes)) fail("wgmma_fence names registers of a product in progress");
      const auto *at = static_cast<const char *>(r.at);
      group->fenced[t].push_back({at, std::vector<char>(at, at + r.bytes)});
    }
  }
}

void check_fenced(const warpgroup_state &group, int thread, const char *what, const void *at, size_t bytes) {
  for (const fenced_registers &f : group.fenced[thread]) {
    const auto *from = static_cast<const char *>(at);
    if (from < f.at || from + bytes > f.at + f.held.size()) continue;
    if (memcmp(from, f.held.data() + (from - f.at), bytes) == 0) return;
    fail("wgmma: thread %d has changed its registers of %s since the last wgmma_fence",
         first_thread() + thread, what);
  }
  fail("wgmma: the last wgmma_fence does not name thread %d's registers of %s", first_thread() + thread,
       what);
}

std::shared_ptr<accumulator> accumulator_of(const warpgroup_state &group, void *const *arguments) {
  const auto *first = static_cast<wgmma_call *>(arguments[0]);
  for (const auto &p : group.in_progress) {
    if (p->d->at[0] != first->d) continue;
    for (int t = 0; t < warpgroup_size; t++) {
      if (p->d->at[t] != static_cast<wgmma_call *>(arguments[t])->d || p->d->columns != first->columns)
        fail("wgmma: thread %d's accumulator is partly in use by a product in progress", first_thread() + t);
      if (!is_poisoned(*p->d, t))
        fail("wgmma: thread %d has written an accumulator of a product in progress", first_thread() + t);
    }
    return p->d;
  }
  auto d = std::make_shared<accumulator>();
  d->columns = first->columns;
  for (int t = 0; t < warpgroup_size; t++) {
    d->at[t] = static_cast<wgmma_call *>(arguments[t])->d;
    if (is_used(group, t, d->at[t], bytes_of_thread(*d)))
      fail("wgmma: thread %d's accumulator is partly in use by a product in progress", first_thread() + t);
    check_fenced(group, t, "d", d->at[t], bytes_of_thread(*d));
    each_element(d->columns, t, [&](int i, int row, int column) {
      d->value[row][column] = d->at[t][i];
      memcpy(d->at[t] + i, &poison_bits, sizeof poison_bits);
    });
  }
  return d;
}

float half_of(uint32_t pair, int which) {
  const uint32_t bits = which ? pair & 0xffff0000u : pair << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

void take_fragments(const warpgroup_state &group, void *const *arguments, product *p) {
  for (int t = 0; t < warpgroup_size; t++) {
    const auto *call = static_cast<wgmma_call *>(arguments[t]);
    p->a_at[t] = call->a;
    if (!call->a) continue;
    check_fenced(group, t, "a", call->a, 4 * sizeof(uint32_t));
    const int row = t / warp_size * 16 + t % warp_size / 4, k = t % 4 * 2;
    for (int i = 0; i < 4; i++)
      for (int half = 0; half < 2; half++)
        p->a[row + i % 2 * 8][k + i / 2 * 8 + half] = half_of(call->a[i], half);
  }
}

void start_product(void *const *arguments) {
  warpgroup_state *group = own_group();
  const wgmma_call &call = *static_cast<wgmma_call *>(arguments[0]);
  for (int t = 0; t < warpgroup_size; t++) {
    const wgmma_call &other = *static_cast<wgmma_call *>(arguments[t]);
    if (other.a_descriptor != call.a_descriptor || other.b_descriptor != call.b_descriptor ||
        other.accumulates != call.accumulates || other.columns != call.columns || !other.a != !call.a ||
        other.a_mn != call.a_mn || other.b_mn != call.b_mn)
      fail("wgmma: threads %d and %d of a warpgroup start different products", first_thread(),
           first_thread() + t);
  }
  auto p = std::make_shared<product>();
  p->accumulates = call.accumulates;
  p->a_mn = call.a_mn;
  p->b_mn = call.b_mn;
  take_fragments(*group, arguments, p.get());
  p->d = accumulator_of(*group, arguments);
  p->d->products++;
  p->group = group->committed;
  if (!call.a) p->a_chunks = chunks_of("a", call.a_descriptor, call.a_mn, rows);
  p->b_chunks = chunks_of("b", call.b_descriptor, call.b_mn, call.columns);
  group->in_progress.push_back(p);
  for (const auto *chunks : {&p->a_chunks, &p->b_chunks})
    for (uint32_t chunk : *chunks) shared_begin_async_read(chunk);
}

void compute(const product &p) {
  static float a[rows][depth], b[depth][columns_max];
  if (p.a_at[0]) {
    memcpy(a, p.a, sizeof a);
  } else {
    read_factor(p.a_chunks, p.a_mn, rows, [&](int row, int k, float x) { a[row][k] = x; });
  }
  read_factor(p.b_chunks, p.b_mn, p.d->columns, [&](int column, int k, float x) { b[k][column] = x; });
  if (!p.accumulates) memset(p.d->value, 0, sizeof p.d->value);
  add_product(a, b, p.d->columns, p.d->value);
  for (const auto *chunks : {&p.a_chunks, &p.b_chunks})
    for (uint32_t chunk : *chunks) shared_end_async_read(chunk);
}

bool is_named(const named_registers &names, const void *at, size_t bytes) {
  for (const register_array &r : names.arrays) {
    const auto *from = static_cast<const char *>(at), *first = static_cast<const char *>(r.at);
    if (from >= first && from + bytes <= first + r.bytes) return true;
  }
  return false;
}

// Thread `t` of the warpgroup has its fragments of a product again, unless others read them.
void give_back_a(const warpgroup_state &group, const product &p, int t, const named_registers &names) {
  if (!p.a_at[t] || is_used(group, t, p.a_at[t], 4 * sizeof(uint32_t))) return;
  if (!is_named(names, p.a_at[t], 4 * sizeof(uint32_t)))
    fail("wgmma_wait does not name thread %d's registers of a, which it frees", first_thread() + t);
  const int row = t / warp_size * 16 + t % warp_size / 4, k = t % 4 * 2;
  for (int i = 0; i < 8; i++) {
    const float held = half_of(p.a_at[t][i / 2], i % 2);
    if (memcmp(&held, &p.a[row + i / 2 % 2 * 8][k + i / 4 * 8 + i % 2], sizeof held) != 0)
      fail("thread %d has written registers of a while a product read them", first_thread() + t);
  }
}

// Thread `t` has the result of all products with this accumulator.
void give_back_d(const accumulator &d, int t, const named_registers &names) {
  if (!is_named(names, d.at[t], bytes_of_thread(d)))
    fail("wgmma_wait does not name thread %d's accumulator, which it completes", first_thread() + t);
  if (!is_poisoned(d, t))
    fail("thread %d has written an accumulator of a product in progress", first_thread() + t);
  each_element(d.columns, t, [&](int i, int row, int column) { d.at[t][i] = d.value[row][column]; });
}

void end_products(void *const *arguments) {
  warpgroup_state *group = own_group();
  const int complete = group->committed - static_cast<named_registers *>(arguments[0])->groups_left;
  std::vector<std::shared_ptr<product>> ended;
  while (!group->in_progress.empty() && group->in_progress[0]->group < complete) {
    ended.push_back(group->in_progress[0]);
    group->in_progress.erase(group->in_progress.begin());
    ended.back()->d->products--;
    ended.back()->is_last = ended.back()->d->products == 0;
    compute(*ended.back());
  }
  for (int t = 0; t < warpgroup_size; t++) {
    const named_registers &names = *static_cast<named_registers *>(arguments[t]);
    for (const register_array &r : names.arrays)
      if (is_used(*group, t, r.at, r.bytes))
        fail("wgmma_wait names registers of a product that is still in progress");
    for (const auto &p : ended) give_back_a(*group, *p, t, names);
    for (const auto &p : ended)
      if (p->is_last) give_back_d(*p->d, t, names);
  }
}

} // namespace

void wgmma_fence(std::initializer_list<register_array> arrays, const char *file, int line) {
  if (is_left_out("wgmma_fence", file, line)) return;
  named_registers own = {arrays, 0};
  warpgroup_together("wgmma_fence", &own, name_registers);
}

void wgmma(const wgmma_call &call) {
  wgmma_call own = call;
  warpgroup_together("wgmma", &own, start_product);
}

void wgmma_commit(const char *file, int line) {
  if (is_left_out("wgmma_commit", file, line)) return;
  warpgroup_together("wgmma_commit", nullptr, [](void *const *) { own_group()->committed++; });
}

void wgmma_wait(int groups_left, std::initializer_list<register_array> arrays, const char *file, int line) {
  if (is_left_out("wgmma_wait", file, line)) return;
  named_registers own = {arrays, groups_left};
  warpgroup_together("wgmma_wait", &own, end_products);
}

void warpgroup_begin_block() {
  for (warpgroup_state &group : groups) {
    for (const auto &p : group.in_progress) // left by a failed block
      for (const auto *chunks : {&p->a_chunks, &p->b_chunks})
        for (uint32_t chunk : *chunks) shared_drop_async_read(chunk);
    group = warpgroup_state();
  }
}

void warpgroup_end_thread() {
  if (!own_group()->in_progress.empty()) fail("the thread returns with a wgmma in progress");
}

} // namespace simt
