// One kernel call under test: operands of exactly their size on the heap, results compared with a reference
// in double.
//
// A case is run at every instruction set level that the core has, on 1, 2 and 3 threads (in a
// sanitizer's build on 1 and 3). Operands that the kernel overwrites hold signalling NaNs before each run,
// results must agree to the bit between numbers of threads, and the byte ranges that the kernel reports must
// cover its operands and nothing else.
#pragma once

#include "kernels/kernels.h"

#include <stdbool.h>

typedef struct kernel_range {
  int64_t first, numel;
} kernel_range;

typedef struct kernel_case {
  fsdp_op_kind kind;
  fsdp_op_attrs attrs;
  fsdp_view operands[FSDP_OP_MAX_OPERANDS];
  double *expected[FSDP_OP_MAX_OPERANDS]; // NULL: not compared
  void *initial[FSDP_OP_MAX_OPERANDS];
  bool sparse[FSDP_OP_MAX_OPERANDS];        // accesses need not cover the operand
  kernel_range parts[FSDP_OP_MAX_OPERANDS]; // if it has elements: accesses cover this range and nothing else
  int operand_count;
  const fsdp_param_run *segments;
  int segment_count;
  uint64_t seed;
  double tolerance; // of ||result - expected|| / ||expected||
} kernel_case;

kernel_case kernel_case_of(fsdp_op_kind kind, fsdp_op_attrs attrs, double tolerance);

// Adds an operand and returns its elements in double, as the kernel sees them (rounded to dtype); owned by
// the case. An operand that is read or updated starts with `values` (NULL: normal numbers, keyed by operand
// and the name of the op).
double *kernel_case_input(kernel_case *c, fsdp_dtype dtype, int64_t numel, fsdp_access access,
                          const double *values);

// Adds an operand that is overwritten; returns space for its expected values, NaN (not compared) at first.
// Fill it in before kernel_case_check.
double *kernel_case_output(kernel_case *c, fsdp_dtype dtype, int64_t numel);

// Adds an operand that is added to (`update`) or overwritten; returns its values before what the kernel adds:
// zeros if it is overwritten. Add to them before kernel_case_check.
double *kernel_case_result(kernel_case *c, bool update, fsdp_dtype dtype, int64_t numel);

// fp32 sums of a few thousand terms; bf16 keeps 8 bits, and results are rounded to it.
double kernel_tolerance(fsdp_dtype dtype);

// Runs and compares everything; frees the case.
void kernel_case_check(kernel_case *c);

// `count` normal numbers times `deviation`, a function of `stream` alone; free() them.
double *kernel_normal(uint64_t stream, int64_t count, double deviation);

// Runs the case once on one thread at the level in use, and leaves the results in its operands.
void kernel_case_run(kernel_case *c);
void kernel_case_free(kernel_case *c);

// Value i of an operand, whatever its dtype.
double kernel_value(const fsdp_view *view, int64_t i);

// ---- Dropout as runtime/base/random.h describes it, written for the tests by itself

// The words of a counter under a key: Philox-4x32 (Salmon et al. 2011).
void reference_philox(int rounds, const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

// What dropout multiplies a column of a row by: 0 or 1 / (1 - rate). `row` has the row's two words.
double reference_dropout(const int32_t *row, uint64_t op, int64_t head, int64_t column, double rate);
