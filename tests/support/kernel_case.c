#include "tests/support/kernel_case.h"
#include "tests/support/draws.h"

#include "kernels/cpu/isa.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/device/pool.h"
#include "tests/support/unit_test.h"

#include <math.h>

typedef struct recorder {
  fsdp_access_recorder base;
  const kernel_case *test;
  unsigned char *seen[FSDP_OP_MAX_OPERANDS]; // access bits of each element
} recorder;

double kernel_value(const fsdp_view *view, int64_t i) {
  switch (view->dtype) {
  case FSDP_F32:
    return (double)((const float *)view->data)[i];
  case FSDP_BF16:
    return (double)fsdp_bf16_to_f32(((const fsdp_bf16 *)view->data)[i]);
  case FSDP_I32:
    return (double)((const int32_t *)view->data)[i];
  default:
    fail_msg("%s has no value", fsdp_dtype_name(view->dtype));
    return 0;
  }
}

static void set_value(const fsdp_view *view, int64_t i, double value) {
  if (view->dtype == FSDP_F32) {
    ((float *)view->data)[i] = (float)value;
  } else if (view->dtype == FSDP_BF16) {
    ((fsdp_bf16 *)view->data)[i] = fsdp_bf16_from_f32((float)value);
  } else {
    ((int32_t *)view->data)[i] = (int32_t)value;
  }
}

double *kernel_normal(uint64_t stream, int64_t count, double deviation) {
  float *numbers = fsdp_alloc((size_t)count * sizeof *numbers);
  double *values = fsdp_alloc((size_t)count * sizeof *values);
  fsdp_random_normal(7, stream, 0, count, 0, (float)deviation, numbers);
  for (int64_t i = 0; i < count; i++) values[i] = (double)numbers[i];
  free(numbers);
  return values;
}

kernel_case kernel_case_of(fsdp_op_kind kind, fsdp_op_attrs attrs, double tolerance) {
  return (kernel_case){.kind = kind, .attrs = attrs, .tolerance = tolerance};
}

static int add(kernel_case *c, fsdp_dtype dtype, int64_t numel, fsdp_access access) {
  int index = c->operand_count++;
  assert_true(index < FSDP_OP_MAX_OPERANDS);
  size_t bytes = (size_t)(numel * fsdp_dtype_bytes(dtype));
  c->operands[index] = (fsdp_view){fsdp_alloc(bytes), numel, dtype, access};
  c->initial[index] = fsdp_alloc(bytes);
  c->expected[index] = fsdp_alloc((size_t)numel * sizeof(double));
  return index;
}

double *kernel_case_input(kernel_case *c, fsdp_dtype dtype, int64_t numel, fsdp_access access,
                          const double *values) {
  int index = add(c, dtype, numel, access);
  fsdp_view *view = &c->operands[index];
  double *drawn =
      values ? NULL : kernel_normal(fsdp_random_stream(fsdp_op_name(c->kind)) + (uint64_t)index, numel, 1);
  for (int64_t i = 0; i < numel; i++) {
    set_value(view, i, values ? values[i] : drawn[i]);
    c->expected[index][i] = kernel_value(view, i);
  }
  free(drawn);
  memcpy(c->initial[index], view->data, (size_t)(numel * fsdp_dtype_bytes(dtype)));
  return c->expected[index];
}

double *kernel_case_output(kernel_case *c, fsdp_dtype dtype, int64_t numel) {
  int index = add(c, dtype, numel, FSDP_WRITE);
  uint32_t *words = c->initial[index];
  uint16_t *halves = c->initial[index];
  for (int64_t i = 0; i < numel; i++) {
    if (fsdp_dtype_bytes(dtype) == 4) {
      words[i] = 0x7fa0dead; // signalling NaN
    } else {
      halves[i] = 0x7fa1;
    }
    c->expected[index][i] = NAN;
  }
  return c->expected[index];
}

double *kernel_case_result(kernel_case *c, bool update, fsdp_dtype dtype, int64_t numel) {
  if (update) return kernel_case_input(c, dtype, numel, FSDP_UPDATE, NULL);
  double *expected = kernel_case_output(c, dtype, numel);
  for (int64_t i = 0; i < numel; i++) expected[i] = 0;
  return expected;
}

double kernel_tolerance(fsdp_dtype dtype) {
  return dtype == FSDP_F32 ? 1e-5 : 1e-2;
}

static void record(fsdp_access_recorder *self, const void *address, int64_t bytes, fsdp_access access) {
  recorder *r = (recorder *)self;
  const kernel_case *c = r->test;
  for (int i = 0; i < c->operand_count; i++) {
    const fsdp_view *view = &c->operands[i];
    int64_t width = fsdp_dtype_bytes(view->dtype), start = (const char *)address - (const char *)view->data;
    if (start < 0 || start >= view->numel * width) continue;
    assert_true(bytes > 0 && start + bytes <= view->numel * width && start % width == 0 &&
                bytes % width == 0);
    for (int64_t e = start / width; e < (start + bytes) / width; e++) {
      // A first read of what the kernel was to overwrite would read what is not there.
      if (access & FSDP_READ) assert_true((view->access & FSDP_READ) || (r->seen[i][e] & FSDP_WRITE));
      if (access & FSDP_WRITE) assert_true(view->access & FSDP_WRITE);
      r->seen[i][e] |= (unsigned char)access;
    }
    return;
  }
  fail_msg("%s accesses %p, which is in no operand", fsdp_op_name(c->kind), address);
}

static void check_touches(const recorder *r) {
  const kernel_case *c = r->test;
  for (int i = 0; i < c->operand_count; i++) {
    kernel_range part = c->parts[i].numel ? c->parts[i] : (kernel_range){0, c->operands[i].numel};
    for (int64_t e = 0; !c->sparse[i] && e < c->operands[i].numel; e++) {
      bool in_part = e >= part.first && e < part.first + part.numel;
      int expected = in_part ? (int)c->operands[i].access : 0;
      if (in_part ? (r->seen[i][e] & expected) != expected : r->seen[i][e] != 0)
        fail_msg("%s: element %lld of operand %d is reported as %d", fsdp_op_name(c->kind), (long long)e, i,
                 r->seen[i][e]);
    }
    free(r->seen[i]);
  }
}

// Recording is per element, which a case of many millions does not need.
static bool worth_tracing(const kernel_case *c) {
  for (int i = 0; i < c->operand_count; i++)
    if (c->operands[i].numel > 4000000) return false;
  return true;
}

static void restore(kernel_case *c) {
  for (int i = 0; i < c->operand_count; i++)
    memcpy(c->operands[i].data, c->initial[i],
           (size_t)(c->operands[i].numel * fsdp_dtype_bytes(c->operands[i].dtype)));
}

static void run_on(kernel_case *c, const fsdp_cpu_isa *isa, int threads, bool traced) {
  recorder r = {.base = {record}, .test = c};
  for (int i = 0; traced && i < c->operand_count; i++)
    r.seen[i] = fsdp_alloc_zeroed((size_t)c->operands[i].numel, 1);
  fsdp_pool *pool = fsdp_pool_create(threads);
  fsdp_kernel_call call = {.kind = c->kind,
                           .attrs = &c->attrs,
                           .operands = c->operands,
                           .operand_count = c->operand_count,
                           .segments = c->segments,
                           .segment_count = c->segment_count,
                           .seed = c->seed,
                           .pool = pool,
                           .recorder = traced ? &r.base : NULL};
  restore(c);
  isa->table.kernels[c->kind](&call);
  fsdp_pool_destroy(pool);
  if (traced) check_touches(&r);
}

void kernel_case_run(kernel_case *c) {
  run_on(c, fsdp_cpu_isa_current(), 1, false);
}

static void compare(const kernel_case *c, const fsdp_cpu_isa *isa) {
  for (int i = 0; i < c->operand_count; i++) {
    const fsdp_view *view = &c->operands[i];
    double error = 0, size = 0;
    for (int64_t e = 0; e < view->numel; e++) {
      double expected = c->expected[i][e], value = kernel_value(view, e);
      if (isnan(expected) || (isinf(expected) && value == expected)) continue;
      error += (value - expected) * (value - expected);
      size += expected * expected;
    }
    double relative = sqrt(error) / (size > 0 ? sqrt(size) : 1);
    if (!(relative <= c->tolerance))
      fail_msg("%s at level %s: operand %d is off by %.3g, tolerance %.3g", fsdp_op_name(c->kind), isa->name,
               i, relative, c->tolerance);
  }
}

static void keep(const kernel_case *c, void *kept[]) {
  for (int i = 0; i < c->operand_count; i++) {
    size_t bytes = (size_t)(c->operands[i].numel * fsdp_dtype_bytes(c->operands[i].dtype));
    kept[i] = fsdp_alloc(bytes);
    memcpy(kept[i], c->operands[i].data, bytes);
  }
}

static void expect_kept(const kernel_case *c, void *kept[], int threads) {
  for (int i = 0; i < c->operand_count; i++) {
    size_t bytes = (size_t)(c->operands[i].numel * fsdp_dtype_bytes(c->operands[i].dtype));
    if (memcmp(kept[i], c->operands[i].data, bytes) != 0)
      fail_msg("%s: operand %d differs between 1 and %d threads", fsdp_op_name(c->kind), i, threads);
  }
}

void kernel_case_check(kernel_case *c) {
  int count;
  const fsdp_cpu_isa *const *levels = fsdp_cpu_isa_list(&count);
  for (int level = 0; level < count; level++) {
    void *kept[FSDP_OP_MAX_OPERANDS];
    run_on(c, levels[level], 1, level == 0 && worth_tracing(c));
    compare(c, levels[level]);
    keep(c, kept);
    for (int threads = test_sanitized() ? 3 : 2; threads <= 3; threads++) {
      run_on(c, levels[level], threads, false);
      expect_kept(c, kept, threads);
    }
    for (int i = 0; i < c->operand_count; i++) free(kept[i]);
  }
  kernel_case_free(c);
}

void kernel_case_free(kernel_case *c) {
  for (int i = 0; i < c->operand_count; i++) {
    free(c->operands[i].data);
    free(c->initial[i]);
    free(c->expected[i]);
  }
  c->operand_count = 0;
}

void reference_philox(int rounds, const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]) {
  uint32_t c[4], k[2] = {key[0], key[1]};
  memcpy(c, counter, sizeof c);
  for (int round = 0; round < rounds; round++) {
    const uint64_t even = (uint64_t)c[0] * 0xD2511F53u, odd = (uint64_t)c[2] * 0xCD9E8D57u;
    const uint32_t next[4] = {(uint32_t)(odd >> 32) ^ c[1] ^ k[0], (uint32_t)odd,
                              (uint32_t)(even >> 32) ^ c[3] ^ k[1], (uint32_t)even};
    memcpy(c, next, sizeof c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  memcpy(words, c, sizeof c);
}

double reference_dropout(const int32_t *row, uint64_t op, int64_t head, int64_t column, double rate) {
  if (row[0] == 0) return 1;
  const uint32_t counter[4] = {(uint32_t)(column / 4), 0, (uint32_t)head, 0};
  const uint32_t key[2] = {(uint32_t)row[0] ^ (uint32_t)op, (uint32_t)row[1] ^ (uint32_t)(op >> 32)};
  uint32_t words[4];
  reference_philox(7, counter, key, words);
  return words[column % 4] < floor((double)(float)rate * 4294967296.0) ? 0 : 1 / (1 - (double)(float)rate);
}
