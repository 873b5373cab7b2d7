// What kernels do with their operands: check them, report touches, and see rows of any dtype as fp32.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/pool.h"
#include "runtime/base/size.h"

void FSDP_CPU(convert)(fsdp_dtype source_dtype, const void *source, fsdp_dtype destination_dtype,
                       void *destination, int64_t count);

static inline void check_count(const fsdp_kernel_call *call, int least, int most) {
  FSDP_CHECK(call->operand_count >= least && call->operand_count <= most,
             "%s takes %d to %d operands, not %d", fsdp_op_name(call->kind), least, most,
             call->operand_count);
}

// Operand `index`, which must hold `numel` elements and be accessed as the op's row in op.h says.
static inline const fsdp_view *operand(const fsdp_kernel_call *call, int index, int64_t numel,
                                       fsdp_access access) {
  const fsdp_view *view = &call->operands[index];
  FSDP_CHECK(index < call->operand_count && view->numel == numel,
             "%s: operand %d has %lld elements, not %lld", fsdp_op_name(call->kind), index,
             (long long)view->numel, (long long)numel);
  // Where an op may write, its row allows both an overwrite and an update unless the kernel narrows it.
  FSDP_CHECK((view->access & ~access) == 0 && view->access != 0, "%s: operand %d is accessed as %d, not %d",
             fsdp_op_name(call->kind), index, view->access, access);
  return view;
}

static inline const fsdp_view *operand_of(const fsdp_kernel_call *call, int index, int64_t numel,
                                          fsdp_access access, fsdp_dtype dtype) {
  const fsdp_view *view = operand(call, index, numel, access);
  FSDP_CHECK(view->dtype == dtype, "%s: operand %d is %s, not %s", fsdp_op_name(call->kind), index,
             fsdp_dtype_name(view->dtype), fsdp_dtype_name(dtype));
  return view;
}

static inline void *element(const fsdp_view *view, int64_t index) {
  return (char *)view->data + index * fsdp_dtype_bytes(view->dtype);
}

static inline bool updates(const fsdp_view *view) {
  return (view->access & FSDP_READ) != 0;
}

// Reports `count` elements from `first` on, a read before the write of an update.
static inline void touch_part(const fsdp_kernel_call *call, const fsdp_view *view, int64_t first,
                              int64_t count, fsdp_access access) {
  int64_t bytes = count * fsdp_dtype_bytes(view->dtype);
  if (access & FSDP_READ) fsdp_access_report(call->recorder, element(view, first), bytes, FSDP_READ);
  if (access & FSDP_WRITE) fsdp_access_report(call->recorder, element(view, first), bytes, FSDP_WRITE);
}

static inline void touch(const fsdp_kernel_call *call, const fsdp_view *view, int64_t count) {
  touch_part(call, view, 0, count, view->access);
}

// `count` elements as fp32: in place where they are, else converted into `buffer`.
static inline const float *load(const fsdp_view *view, int64_t first, int64_t count, float *buffer) {
  if (view->dtype == FSDP_F32) return (const float *)view->data + first;
  FSDP_CPU(convert)(view->dtype, element(view, first), FSDP_F32, buffer, count);
  return buffer;
}

static inline void load_into(const fsdp_view *view, int64_t first, int64_t count, float *buffer) {
  FSDP_CPU(convert)(view->dtype, element(view, first), FSDP_F32, buffer, count);
}

// Where to compute `count` elements of a result: in place where it is fp32, else in `buffer`, from where
// store() then rounds them.
static inline float *result(const fsdp_view *view, int64_t first, float *buffer) {
  return view->dtype == FSDP_F32 ? (float *)view->data + first : buffer;
}

static inline void store(const fsdp_view *view, int64_t first, int64_t count, const float *values) {
  if (view->dtype == FSDP_F32 && values == (const float *)view->data + first) return;
  FSDP_CPU(convert)(FSDP_F32, values, view->dtype, element(view, first), count);
}

// The part of a thread's scratch after `floats` floats, on a cache line.
static inline float *scratch_after(float *scratch, int64_t floats) {
  return scratch + (floats + 15) / 16 * 16;
}

static inline int64_t blocks_of(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}
