// The kernels of one instruction set level (isa.h), one per row of models/graph/ops.def, and how they use
// their operands: open them, and read rows of any dtype as fp32.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector.h"
#include "kernels/operand.h"
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/device/pool.h"

#define FSDP_OP(KIND, name, PHASE, operands, RULES) void FSDP_CPU(name)(const fsdp_kernel_call *call);
#include "models/graph/ops.def"

// What add_bias does, within a call whose operands are open: to = bias + from, in the op's columns of rows.
void FSDP_CPU(add_bias_to)(const fsdp_kernel_call *call, const fsdp_view *bias, const fsdp_view *from,
                           const fsdp_view *to);

// What rope_backward does, within a call whose operands are open: of its rows d_qkv.
void FSDP_CPU(rotate_back)(const fsdp_kernel_call *call, const fsdp_view *d_qkv);

void FSDP_CPU(convert)(fsdp_dtype source_dtype, const void *source, fsdp_dtype destination_dtype,
                       void *destination, int64_t count);

// Operand i, as a bit of `in_part`.
#define PART(index) (1u << (index))

// The call's operands, checked, and reported except those in `in_part` (kernels/operand.h).
static inline const fsdp_view *open_operands(const fsdp_kernel_call *call, unsigned in_part) {
  return fsdp_kernel_open(call, FSDP_OP_CPU, in_part);
}

static inline void *element(const fsdp_view *view, int64_t index) {
  return (char *)view->data + index * fsdp_dtype_bytes(view->dtype);
}

static inline bool updates(const fsdp_view *view) {
  return (view->access & FSDP_READ) != 0;
}

// `count` elements as fp32: in place if they are stored so, else converted into `buffer`.
static inline const float *load(const fsdp_view *view, int64_t first, int64_t count, float *buffer) {
  if (view->dtype == FSDP_F32) return (const float *)view->data + first;
  FSDP_CPU(convert)(view->dtype, element(view, first), FSDP_F32, buffer, count);
  return buffer;
}

static inline void load_into(const fsdp_view *view, int64_t first, int64_t count, float *buffer) {
  FSDP_CPU(convert)(view->dtype, element(view, first), FSDP_F32, buffer, count);
}

// Where to compute `count` elements of a result: in place if it is fp32, else in `buffer`, from which
// store() rounds them.
static inline float *result(const fsdp_view *view, int64_t first, float *buffer) {
  return view->dtype == FSDP_F32 ? (float *)view->data + first : buffer;
}

static inline void store(const fsdp_view *view, int64_t first, int64_t count, const float *values) {
  if (view->dtype == FSDP_F32 && values == (const float *)view->data + first) return;
  FSDP_CPU(convert)(FSDP_F32, values, view->dtype, element(view, first), count);
}

// The same two in whole vectors: zeros stand behind the last element, and results may.
static inline const float *load_vectors(const fsdp_view *view, int64_t first, int64_t count, float *buffer) {
  if (count % FSDP_LANES == 0) return load(view, first, count, buffer);
  load_into(view, first, count, buffer);
  for (int64_t i = count; i % FSDP_LANES != 0; i++) buffer[i] = 0;
  return buffer;
}

static inline float *result_vectors(const fsdp_view *view, int64_t first, int64_t count, float *buffer) {
  return count % FSDP_LANES == 0 ? result(view, first, buffer) : buffer;
}

// Stores sums, or adds them to what is there (`updates`). `buffer` has room for as many.
static inline void store_sums(const fsdp_view *view, int64_t first, int64_t count, float *sums,
                              float *buffer) {
  if (updates(view)) {
    const float *old = load(view, first, count, buffer);
    for (int64_t i = 0; i < count; i++) sums[i] += old[i];
  }
  store(view, first, count, sums);
}

// The part of a thread's scratch after `floats` floats, on a cache line.
static inline float *scratch_after(float *scratch, int64_t floats) {
  return scratch + (floats + 15) / 16 * 16;
}

static inline int64_t blocks_of(int64_t count, int64_t block) {
  return (count + block - 1) / block;
}
