#include "tests/simt/twin.h"

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/check.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

extern "C" {
#include "runtime/base/random.h"
#include "runtime/device/pool.h"
#include "tests/support/draws.h"
}

float twin_value(fsdp_dtype dtype, const std::vector<unsigned char> &data, int64_t i) {
  float value;
  fsdp_bf16 half;
  if (dtype == FSDP_F32) {
    memcpy(&value, &data[size_t(i) * 4], 4);
    return value;
  }
  memcpy(&half, &data[size_t(i) * 2], 2);
  return fsdp_bf16_to_f32(half);
}

namespace {

typedef std::vector<unsigned char> bytes;

int failures;

constexpr int runs = 3;

#if defined(FSDP_SIMT)
const char *const run_names[runs] = {"forward", "reverse", "random"};
void begin_run(int run) {
  simt::set_order(static_cast<simt::order>(run));
}
std::string damage() {
  return simt::memory_damage();
}
#else
const char *const run_names[runs] = {"first", "second", "third"};
void begin_run(int) {}
std::string damage() {
  return ""; // compute-sanitizer's work
}
#endif

void must(cudaError_t status) {
  FSDP_CHECK(status == cudaSuccess, "%s", cudaGetErrorString(status));
}

void set_value(twin_operand *o, int64_t i, float value) {
  if (o->dtype == FSDP_F32) {
    memcpy(&o->initial[size_t(i) * 4], &value, 4);
  } else {
    fsdp_bf16 half = fsdp_bf16_from_f32(value);
    memcpy(&o->initial[size_t(i) * 2], &half, 2);
  }
}

twin_operand *add(twin_case *c, fsdp_dtype dtype, int64_t numel, fsdp_access access) {
  twin_operand o;
  o.dtype = dtype;
  o.access = access;
  o.numel = o.cuda_numel = numel;
  o.initial.resize(size_t(numel * fsdp_dtype_bytes(dtype)));
  c->operands.push_back(o);
  return &c->operands.back();
}

void draw(twin_case *c, twin_operand *o, double deviation) {
  std::vector<float> values(static_cast<size_t>(o->numel));
  // By the op's name: new rows of the op table must not change the draws of others.
  const uint64_t stream = fsdp_random_stream(fsdp_op_name(c->kind)) + c->operands.size();
  fsdp_random_normal(11, stream, 0, o->numel, 0, float(deviation), values.data());
  for (int64_t i = 0; i < o->numel; i++) set_value(o, i, values[size_t(i)]);
}

void poison(bytes *data, fsdp_dtype dtype) {
  const uint32_t word = 0x7fa0dead;
  const uint16_t half = 0x7fa1;
  const size_t width = size_t(fsdp_dtype_bytes(dtype));
  for (size_t at = 0; at + width <= data->size(); at += width)
    memcpy(&(*data)[at], width == 4 ? static_cast<const void *>(&word) : &half, width);
}

fsdp_kernel_call call_of(const twin_case &c, const std::vector<fsdp_view> &views) {
  fsdp_kernel_call call = {};
  call.kind = c.kind;
  call.attrs = &c.attrs;
  call.operands = views.data();
  call.operand_count = int(views.size());
  call.segments = c.segments.empty() ? nullptr : c.segments.data();
  call.segment_count = int(c.segments.size());
  call.seed = c.seed;
  return call;
}

std::vector<bytes> run_on_cpu(const twin_case &c) {
  std::vector<bytes> data;
  std::vector<fsdp_view> views;
  for (const twin_operand &o : c.operands) data.push_back(o.initial);
  for (size_t i = 0; i < data.size(); i++)
    if (!c.operands[i].is_cuda_only)
      views.push_back({data[i].data(), c.operands[i].numel, c.operands[i].dtype, c.operands[i].access});
  fsdp_kernel_call call = call_of(c, views);
  call.pool = fsdp_pool_create(1);
  fsdp_cpu_kernels()->kernels[c.kind](&call);
  fsdp_pool_destroy(call.pool);
  return data;
}

bytes cuda_initial(const twin_operand &o) {
  bytes data = o.initial;
  if (o.cuda_numel == o.numel) return data;
  data.resize(size_t(o.cuda_numel * fsdp_dtype_bytes(o.dtype)));
  poison(&data, o.dtype);
  return data;
}

// ---- Memory of a run on the device: an allocation for each operand
//
//   the first run   exactly the operand's bytes, and nothing written to outputs and workspaces beforehand, so
//                   that memcheck and initcheck (and the emulation) see every access beside or before
//   the others      a red zone on either side, looked at afterwards; outputs hold NaNs. Zones hold NaNs, which
//                   spoil what is read of them, and then tiny numbers, which an addition changes

constexpr size_t zone_bytes[runs] = {0, 256, 256};
constexpr unsigned char zone_byte[runs] = {0, 0xff, 0x11}; // as integers, none is a token

struct device_memory {
  unsigned char *start;
  size_t zone, bytes;   // on either side; between
  unsigned char filler; // of the zones
};

device_memory allocate(size_t bytes_count, int run) {
  void *address;
  must(cudaMalloc(&address, bytes_count + 2 * zone_bytes[run]));
  return {static_cast<unsigned char *>(address), zone_bytes[run], bytes_count, zone_byte[run]};
}

void write_memory(const device_memory &m, const bytes &data) {
  bytes all(m.bytes + 2 * m.zone, m.filler);
  memcpy(&all[m.zone], data.data(), m.bytes);
  must(cudaMemcpy(m.start, all.data(), all.size(), cudaMemcpyHostToDevice));
}

// Reads the operand back, and says which byte of its zones changed first ("" if none did).
std::string read_memory(const device_memory &m, size_t operand, bytes *data) {
  bytes all(m.bytes + 2 * m.zone);
  must(cudaMemcpy(all.data(), m.start, all.size(), cudaMemcpyDeviceToHost));
  memcpy(data->data(), &all[m.zone], m.bytes);
  char text[128] = "";
  for (size_t i = 0; i < m.zone && !*text; i++) {
    if (all[m.zone + m.bytes + i] != m.filler)
      snprintf(text, sizeof text, "operand %zu: byte %zu after its end is written", operand, i);
    if (all[m.zone - 1 - i] != m.filler)
      snprintf(text, sizeof text, "operand %zu: byte %zu before its start is written", operand, i + 1);
  }
  return text;
}

// On memory of its own, which is random while products are tried and zeroed afterwards.
void prepare(const twin_case &c) {
  std::vector<fsdp_view> views;
  for (const twin_operand &o : c.operands)
    if (!o.is_cpu_only)
      views.push_back({allocate(cuda_initial(o).size(), 0).start, o.cuda_numel, o.dtype, o.access});
  const fsdp_kernel_call call = call_of(c, views);
  fsdp_cuda_prepare(&call);
  fsdp_products_measure(&fsdp_cuda_products);
  must(cudaStreamSynchronize(nullptr));
  for (const fsdp_view &view : views) must(cudaFree(view.data));
}

struct device_run {
  std::vector<bytes> data; // of the operands; a workspace's is not read back in the first run
  std::string damage;      // what was written beside them
};

// `shortened` (or -1) is an operand whose memory lacks the last element that the op accesses.
device_run run_on_cuda(const twin_case &c, int run, int shortened = -1) {
  device_run result;
  std::vector<device_memory> memory;
  std::vector<fsdp_view> views;
  prepare(c);
  begin_run(run);
  for (const twin_operand &o : c.operands) {
    bytes data = cuda_initial(o);
    const int64_t lacks = int(memory.size()) == shortened ? o.untouched + 1 : 0;
    memory.push_back(allocate(data.size() - size_t(lacks * fsdp_dtype_bytes(o.dtype)), run));
    const device_memory &m = memory.back();
    if (m.zone > 0 || !o.is_unwritten) write_memory(m, data);
    if (!o.is_cpu_only) views.push_back({m.start + m.zone, o.cuda_numel, o.dtype, o.access});
    result.data.push_back(std::move(data));
  }
  must(cudaStreamSynchronize(nullptr));
  const fsdp_kernel_call call = call_of(c, views);
  fsdp_cuda_kernels()->kernels[c.kind](&call);
  must(cudaStreamSynchronize(nullptr));
  result.damage = damage();
  for (size_t i = 0; i < memory.size(); i++) {
    if (memory[i].zone > 0 || c.operands[i].is_compared) {
      const std::string damaged = read_memory(memory[i], i, &result.data[i]);
      if (result.damage.empty()) result.damage = damaged;
    }
    must(cudaFree(memory[i].start));
  }
  return result;
}

struct verdict {
  double worst = 0; // relative error
  std::string complaint;
};

void complain(verdict *v, const char *format, size_t operand, double value) {
  char text[160];
  snprintf(text, sizeof text, format, int(operand), value);
  v->complaint += text;
}

void compare(const twin_case &c, size_t i, const bytes &cpu, const bytes &cuda, verdict *v) {
  const twin_operand &o = c.operands[i];
  if (o.dtype == FSDP_I32) {
    if (cpu != cuda) complain(v, "; operand %d has other integers", i, 0);
    return;
  }
  double error = 0, size = 0;
  int64_t equal = 0;
  for (int64_t e = 0; e < o.numel; e++) {
    double expected = double(twin_value(o.dtype, cpu, e)), value = double(twin_value(o.dtype, cuda, e));
    equal += expected == value;
    if (std::isinf(expected) && value == expected) continue;
    error += (value - expected) * (value - expected);
    size += expected * expected;
  }
  double relative = std::sqrt(error) / (size > 0 ? std::sqrt(size) : 1),
         share = double(equal) / double(o.numel);
  if (!(relative <= v->worst)) v->worst = relative;
  if (!(relative <= c.tolerance)) complain(v, "; operand %d is off by %.3g", i, relative);
  if (o.dtype == FSDP_BF16 && share < c.bits_equal_least)
    complain(v, "; operand %d has only %.5f of the same bits", i, share);
}

void check_run(const twin_case &c, int run, const std::vector<bytes> &cpu, const std::vector<bytes> &first,
               const device_run &result, verdict *v) {
  const std::vector<bytes> &cuda = result.data;
  if (!result.damage.empty()) v->complaint += "; " + result.damage;
  for (size_t i = 0; i < cuda.size(); i++) {
    const twin_operand &o = c.operands[i];
    if (o.access == FSDP_READ) {
      if (cuda[i] != o.initial) complain(v, "; operand %d is only read, but changed", i, 0);
    } else if (o.is_compared && run == 0) {
      compare(c, i, cpu[i], cuda[i], v);
    }
    if (o.is_compared && cuda[i] != first[i])
      complain(v, "; operand %d differs from the first run's", i, 0), v->complaint += run_names[run];
  }
}

} // namespace

double twin_tolerance(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? 1e-5 : 1e-2;
}

twin_case twin_of(fsdp_op_kind kind, const fsdp_op_attrs &attrs, fsdp_dtype dtype) {
  twin_case c;
  c.name = std::string(fsdp_op_name(kind)) + " " + fsdp_dtype_name(dtype);
  c.kind = kind;
  c.attrs = attrs;
  c.tolerance = twin_tolerance(dtype);
  return c;
}

void twin_input(twin_case *c, fsdp_dtype dtype, int64_t numel, double deviation) {
  draw(c, add(c, dtype, numel, FSDP_READ), deviation);
}

void twin_update(twin_case *c, fsdp_dtype dtype, int64_t numel, double deviation) {
  draw(c, add(c, dtype, numel, FSDP_UPDATE), deviation);
}

void twin_output(twin_case *c, fsdp_dtype dtype, int64_t numel) {
  twin_operand *o = add(c, dtype, numel, FSDP_WRITE);
  poison(&o->initial, dtype);
  o->is_unwritten = true;
}

void twin_result(twin_case *c, bool updates, fsdp_dtype dtype, int64_t numel) {
  if (updates) {
    twin_update(c, dtype, numel);
  } else {
    twin_output(c, dtype, numel);
  }
}

void twin_integers(twin_case *c, const std::vector<int32_t> &values) {
  twin_operand *o = add(c, FSDP_I32, int64_t(values.size()), FSDP_READ);
  memcpy(o->initial.data(), values.data(), o->initial.size());
}

void twin_values(twin_case *c, fsdp_dtype dtype, const std::vector<float> &values, fsdp_access access) {
  twin_operand *o = add(c, dtype, int64_t(values.size()), access);
  for (int64_t i = 0; i < o->numel; i++) set_value(o, i, values[size_t(i)]);
}

void twin_floats(twin_case *c, const std::vector<float> &values, fsdp_access access) {
  twin_values(c, FSDP_F32, values, access);
}

void twin_workspace(twin_case *c, int64_t cpu_numel) {
  int64_t flat = c->operands.empty() ? 0 : c->operands[0].numel;
  int64_t numel = fsdp_op_workspace_bytes(FSDP_OP_CUDA, c->kind, &c->attrs, flat) / 4;
  twin_operand *o = add(c, FSDP_F32, cpu_numel ? cpu_numel : numel, FSDP_WRITE);
  poison(&o->initial, FSDP_F32);
  o->is_compared = false;
  o->is_unwritten = true;
  o->is_cuda_only = cpu_numel == 0;
  o->is_cpu_only = numel == 0;
  o->cuda_numel = o->is_cpu_only ? cpu_numel : numel;
}

namespace {

twin_choice choice = TWIN_ALL;

struct noted_case {
  size_t size = 0;
  std::string name;
};
std::map<std::pair<int, bool>, noted_case> greatest; // by op, and whether it computes in bf16
std::map<std::pair<int, bool>, int> mutated_cases, listed;

size_t size_of(const twin_case &c) {
  size_t size = 0;
  for (const twin_operand &o : c.operands) size += o.initial.size();
  return size;
}

// Of all cases of an op and an element type every Nth with FSDP_TEST_PART=N.
bool is_chosen(const twin_case &c) {
  const std::pair<int, bool> sort = {int(c.kind), c.name.find("bf16") != std::string::npos};
  if (choice == TWIN_ALL) return listed[sort]++ % test_part() == 0;
  const size_t size = size_of(c);
  noted_case &noted = greatest[sort];
  if (choice == TWIN_NOTE && size > noted.size) noted = {size, c.name};
  return choice == TWIN_GREATEST && noted.name == c.name;
}

// What shows that operand `i` was one element too short; "" if nothing does.
std::string notice_short(const twin_case &c, size_t i) {
  for (int run = 1; run < runs; run++) {
    const std::vector<bytes> whole = run_on_cuda(c, run).data;
    const device_run cut = run_on_cuda(c, run, int(i));
    if (!cut.damage.empty()) return cut.damage;
    for (size_t other = 0; other < whole.size(); other++)
      if (other != i && c.operands[other].is_compared && cut.data[other] != whole[other])
        return "operand " + std::to_string(other) + " differs";
  }
  return "";
}

void report_mutant(const twin_case &c, size_t i, const char *what, const std::string &noticed) {
  failures += noticed.empty();
  printf("%s %-64s operand %zu of %s %s: %s\n", noticed.empty() ? "FAILED" : "ok    ", c.name.c_str(), i,
         fsdp_dtype_name(c.operands[i].dtype), what, noticed.empty() ? "nobody misses it" : noticed.c_str());
  fflush(stdout);
}

// An output that the kernel adds to, though nothing was written there before.
std::string notice_unwritten(const twin_case &c, size_t i) {
  twin_case adds = c;
  adds.operands[i].access = FSDP_UPDATE;
  return run_on_cuda(adds, 1).data[i] == run_on_cuda(c, 1).data[i] ? "" : "its NaNs spoil the result";
}

// Whether a last element may make no difference: of AdamW's scalars it is not read, of a gradient it may be
// dropped, and a router's logit whose expert was not chosen has none.
bool may_not_count(const twin_case &c, size_t i) {
  return (c.kind == FSDP_OP_ADAMW && i == 1) || (c.kind == FSDP_OP_DROPOUT_BACKWARD && i == 0) ||
         (c.kind == FSDP_OP_ROUTE_BACKWARD && i == 3);
}

// Of each op and element type a few small cases, each operand in turn one element short; false if this is
// not one of them. Integers are left out: an invalid token ends the job.
bool mutate(const twin_case &c) {
  constexpr size_t size_max = 64 << 10;
  constexpr int cases_max = 3;
  int *count = &mutated_cases[{int(c.kind), c.name.find("bf16") != std::string::npos}];
  if (size_of(c) > size_max || ++*count > cases_max) return false;
  for (size_t i = 0; i < c.operands.size(); i++) {
    const twin_operand &o = c.operands[i];
    if (o.dtype == FSDP_I32 || o.is_cpu_only || o.untouched == o.numel || may_not_count(c, i)) continue;
    report_mutant(c, i, "one element short", notice_short(c, i));
    if (o.is_unwritten && o.is_compared &&
        (c.kind == FSDP_OP_LINEAR_BACKWARD_WEIGHT || c.kind == FSDP_OP_RMSNORM_BACKWARD ||
         c.kind == FSDP_OP_LAYERNORM_BACKWARD || c.kind == FSDP_OP_POSITIONS_BACKWARD ||
         c.kind == FSDP_OP_BIAS_BACKWARD || c.kind == FSDP_OP_HEAD_LOSS || c.kind == FSDP_OP_HEAD_BACKWARD ||
         (c.kind == FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD && i == 6)))
      report_mutant(c, i, "read before it is written", notice_unwritten(c, i));
  }
  return true;
}

} // namespace

void twin_choose(twin_choice now) {
  choice = now;
}

twin_choice twin_chosen() {
  return choice;
}

std::set<int> twin_noted() {
  std::set<int> kinds;
  for (const auto &noted : greatest)
    if (noted.second.size > 0) kinds.insert(noted.first.first);
  return kinds;
}

void twin_compare(const std::string &what, fsdp_dtype dtype, const bytes &result, fsdp_dtype expected_dtype,
                  const bytes &expected, double tolerance) {
  double error = 0, size = 0;
  const int64_t numel = int64_t(expected.size()) / fsdp_dtype_bytes(expected_dtype);
  FSDP_CHECK(numel == int64_t(result.size()) / fsdp_dtype_bytes(dtype), "%s: two lengths", what.c_str());
  for (int64_t e = 0; e < numel; e++) {
    const double wanted = double(twin_value(expected_dtype, expected, e));
    const double value = double(twin_value(dtype, result, e));
    error += (value - wanted) * (value - wanted);
    size += wanted * wanted;
  }
  const double relative = std::sqrt(error) / (size > 0 ? std::sqrt(size) : 1);
  const bool good = relative <= tolerance;
  failures += !good;
  printf("%s %-64s error %.2e of %.0e\n", good ? "ok    " : "FAILED", what.c_str(), relative, tolerance);
  fflush(stdout);
}

std::vector<bytes> twin_check(const twin_case &c) {
  if (choice == TWIN_MUTATE && mutate(c)) return run_on_cpu(c);
  const bool chosen = choice != TWIN_MUTATE && is_chosen(c);
  if (!chosen && choice == TWIN_ALL) return run_on_cpu(c);
  if (!chosen) {
    std::vector<bytes> initial;
    for (const twin_operand &o : c.operands) initial.push_back(o.initial);
    return initial;
  }
  auto start = std::chrono::steady_clock::now();
  std::vector<bytes> cpu = run_on_cpu(c), first;
  auto middle = std::chrono::steady_clock::now();
  verdict v;
  for (int run = 0; run < runs; run++) {
    const device_run cuda = run_on_cuda(c, run);
    if (run == 0) first = cuda.data;
    check_run(c, run, cpu, first, cuda, &v);
  }
  std::chrono::duration<double> cpu_s = middle - start, cuda_s = std::chrono::steady_clock::now() - middle;
  failures += !v.complaint.empty();
  printf("%s %-64s error %.2e of %.0e, %6.3f s (CPU %.3f)%s\n", v.complaint.empty() ? "ok    " : "FAILED",
         c.name.c_str(), v.worst, c.tolerance, cuda_s.count(), cpu_s.count(), v.complaint.c_str());
  fflush(stdout);
  return cpu;
}

std::vector<bytes> twin_run(const twin_case &c) {
  device_run result = run_on_cuda(c, 0);
  FSDP_CHECK(result.damage.empty(), "%s: %s", c.name.c_str(), result.damage.c_str());
  std::vector<bytes> &data = result.data;
  for (size_t i = 0; i < data.size(); i++)
    if (!c.operands[i].is_compared) data[i].clear();
  return data;
}

#if !defined(FSDP_SIMT)
double twin_time_s(const twin_case &c) {
  constexpr int repeats = 5, launches = 4;
  std::vector<device_memory> memory;
  std::vector<fsdp_view> views;
  std::vector<float> times(repeats);
  cudaEvent_t begin, end;
  prepare(c);
  must(cudaEventCreate(&begin));
  must(cudaEventCreate(&end));
  for (const twin_operand &o : c.operands) {
    const bytes data = cuda_initial(o);
    memory.push_back(allocate(data.size(), 0));
    write_memory(memory.back(), data);
    views.push_back({memory.back().start, o.cuda_numel, o.dtype, o.access});
  }
  const fsdp_kernel_call call = call_of(c, views);
  for (int i = 0; i <= repeats; i++) { // the first warms up
    must(cudaEventRecord(begin, nullptr));
    for (int launch = 0; launch < launches; launch++) fsdp_cuda_kernels()->kernels[c.kind](&call);
    must(cudaEventRecord(end, nullptr));
    must(cudaEventSynchronize(end));
    must(cudaEventElapsedTime(&times[size_t(i > 0 ? i - 1 : 0)], begin, end));
  }
  for (const device_memory &m : memory) must(cudaFree(m.start));
  must(cudaEventDestroy(begin));
  must(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  return double(times[repeats / 2]) / (1e3 * launches);
}
#endif

void twin_report(bool good, const std::string &what) {
  failures += !good;
  printf("%s %s\n", good ? "ok    " : "FAILED", what.c_str());
}

int twin_failures() {
  return failures;
}
