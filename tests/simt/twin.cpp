#include "tests/simt/twin.h"

#include "kernels/cuda/cuda_kernels.h"
#include "runtime/base/check.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

extern "C" {
#include "kernels/cpu/pool.h"
#include "runtime/base/random.h"
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

float value_of(fsdp_dtype dtype, const bytes &data, int64_t i) {
  float value;
  fsdp_bf16 half;
  if (dtype == FSDP_F32) {
    memcpy(&value, &data[size_t(i) * 4], 4);
    return value;
  }
  memcpy(&half, &data[size_t(i) * 2], 2);
  return fsdp_bf16_to_f32(half);
}

twin_operand *add(twin_case *c, fsdp_dtype dtype, int64_t numel, int access) {
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
  uint64_t stream = c->operands.size() * 64 + c->kind;
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

std::vector<bytes> run_on_cuda(const twin_case &c, int run) {
  std::vector<bytes> data;
  std::vector<fsdp_view> views;
  begin_run(run);
  for (const twin_operand &o : c.operands) {
    data.push_back(cuda_initial(o));
    void *address;
    must(cudaMalloc(&address, data.back().size()));
    must(cudaMemset(address, 0, data.back().size()));
    views.push_back({address, o.cuda_numel, o.dtype, o.access});
  }
  must(cudaStreamSynchronize(nullptr));
  fsdp_kernel_call call = call_of(c, views);
  fsdp_cuda_prepare(&call);
  for (size_t i = 0; i < data.size(); i++)
    must(cudaMemcpy(views[i].data, data[i].data(), data[i].size(), cudaMemcpyHostToDevice));
  fsdp_cuda_kernels()->kernels[c.kind](&call);
  must(cudaStreamSynchronize(nullptr));
  std::string damaged = damage();
  FSDP_CHECK(damaged.empty(), "%s: %s", c.name.c_str(), damaged.c_str());
  for (size_t i = 0; i < data.size(); i++) {
    must(cudaMemcpy(data[i].data(), views[i].data, data[i].size(), cudaMemcpyDeviceToHost));
    must(cudaFree(views[i].data));
  }
  return data;
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
    double expected = double(value_of(o.dtype, cpu, e)), value = double(value_of(o.dtype, cuda, e));
    error += (value - expected) * (value - expected);
    size += expected * expected;
    equal += expected == value;
  }
  double relative = std::sqrt(error) / (size > 0 ? std::sqrt(size) : 1),
         share = double(equal) / double(o.numel);
  if (!(relative <= v->worst)) v->worst = relative;
  if (!(relative <= c.tolerance)) complain(v, "; operand %d is off by %.3g", i, relative);
  if (o.dtype == FSDP_BF16 && share < c.bits_equal_least)
    complain(v, "; operand %d has only %.5f of the same bits", i, share);
}

void check_run(const twin_case &c, int run, const std::vector<bytes> &cpu, const std::vector<bytes> &first,
               const std::vector<bytes> &cuda, verdict *v) {
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
  poison(&add(c, dtype, numel, FSDP_WRITE)->initial, dtype);
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

void twin_values(twin_case *c, fsdp_dtype dtype, const std::vector<float> &values, int access) {
  twin_operand *o = add(c, dtype, int64_t(values.size()), access);
  for (int64_t i = 0; i < o->numel; i++) set_value(o, i, values[size_t(i)]);
}

void twin_floats(twin_case *c, const std::vector<float> &values, int access) {
  twin_values(c, FSDP_F32, values, access);
}

void twin_workspace(twin_case *c, int64_t cpu_numel) {
  int64_t flat = c->operands.empty() ? 0 : c->operands[0].numel;
  int64_t numel = fsdp_op_workspace_bytes(FSDP_OP_CUDA, c->kind, &c->attrs, flat) / 4;
  twin_operand *o = add(c, FSDP_F32, cpu_numel ? cpu_numel : numel, FSDP_WRITE);
  poison(&o->initial, FSDP_F32);
  o->is_compared = false;
  o->is_cuda_only = cpu_numel == 0;
  o->cuda_numel = numel;
}

namespace {

twin_choice choice = TWIN_ALL;

struct noted_case {
  size_t size = 0;
  std::string name;
};
std::map<std::pair<int, bool>, noted_case> greatest; // by op, and whether it computes in bf16

bool is_chosen(const twin_case &c) {
  if (choice == TWIN_ALL) return true;
  size_t size = 0;
  for (const twin_operand &o : c.operands) size += o.initial.size();
  noted_case &noted = greatest[{int(c.kind), c.name.find("bf16") != std::string::npos}];
  if (choice == TWIN_NOTE && size > noted.size) noted = {size, c.name};
  return choice == TWIN_GREATEST && noted.name == c.name;
}

} // namespace

void twin_choose(twin_choice now) {
  choice = now;
}

void twin_compare(const std::string &what, fsdp_dtype dtype, const bytes &result, fsdp_dtype expected_dtype,
                  const bytes &expected, double tolerance) {
  double error = 0, size = 0;
  const int64_t numel = int64_t(expected.size()) / fsdp_dtype_bytes(expected_dtype);
  FSDP_CHECK(numel == int64_t(result.size()) / fsdp_dtype_bytes(dtype), "%s: two lengths", what.c_str());
  for (int64_t e = 0; e < numel; e++) {
    const double wanted = double(value_of(expected_dtype, expected, e));
    const double value = double(value_of(dtype, result, e));
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
  if (!is_chosen(c)) {
    std::vector<bytes> initial;
    for (const twin_operand &o : c.operands) initial.push_back(o.initial);
    return initial;
  }
  auto start = std::chrono::steady_clock::now();
  std::vector<bytes> cpu = run_on_cpu(c), first;
  auto middle = std::chrono::steady_clock::now();
  verdict v;
  for (int run = 0; run < runs; run++) {
    std::vector<bytes> cuda = run_on_cuda(c, run);
    if (run == 0) first = cuda;
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
  std::vector<bytes> data = run_on_cuda(c, 0);
  for (size_t i = 0; i < data.size(); i++)
    if (!c.operands[i].is_compared) data[i].clear();
  return data;
}

void twin_report(bool good, const std::string &what) {
  failures += !good;
  printf("%s %s\n", good ? "ok    " : "FAILED", what.c_str());
}

int twin_failures() {
  return failures;
}
