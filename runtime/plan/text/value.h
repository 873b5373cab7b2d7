// Option values as text: numbers with 1e8 and 100_000_000, sizes with units, on/off, choices with aliases,
// meshes.
//
// Every parser takes the text and gives the value, or false if the text is not of its form; what is
// allowed, and the message, are the caller's (options.h). Nothing is silently clipped: a number that does not
// fit is not a number.
#pragma once

#include "runtime/plan/mesh/units.h"
#include "runtime/plan/sharding/factored.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// One accepted word: `aliases` are further words for the same value, separated by spaces, or NULL. Letters'
// case does not count.
typedef struct fsdp_choice {
  const char *name;
  int value;
  const char *aliases;
} fsdp_choice;

// An integer: digits with an optional sign, `_` between digits, or a decimal form of a whole number
// (1e8, 2.5e3).
bool fsdp_value_int(const char *text, int64_t *value);

// A size in bytes: a number, whole or not, and a unit: none or B, kB, MB, GB, TB (powers of 1000), KiB, MiB,
// GiB, TiB.
bool fsdp_value_size(const char *text, int64_t *value);

// A finite real number.
bool fsdp_value_real(const char *text, double *value);
// The same, or a percentage: "3%" is 0.03.
bool fsdp_value_share(const char *text, double *value);

// A finite number in a unit of 10^exponent: 794.5 of 1e12 is exactly the double nearest to 794.5e12.
bool fsdp_value_decimal(const char *text, int exponent, double *value);
// The shortest text that fsdp_value_decimal turns into `value` again, which is finite. Returns `out`.
#define FSDP_DECIMAL_BYTES 48
const char *fsdp_value_print_decimal(double value, int exponent, char out[FSDP_DECIMAL_BYTES]);

// on, true, yes, 1 or off, false, no, 0.
bool fsdp_value_flag(const char *text, bool *value);

// Words that options and a planner's settings (runtime/plan/fsdp_plan.h) share, by the enums of schedule.h
// and dtype.h.
extern const fsdp_choice fsdp_strategy_words[], fsdp_accumulate_words[], fsdp_dtype_words[];

// One of `choices`, which end with a NULL name.
bool fsdp_value_choice(const char *text, const fsdp_choice *choices, int *value);

// "data=R,fsdp=F", axes in any order, the last one fastest, or "F,T": sizes of fsdp and tensor alone. No axes
// are added. False if a name occurs twice or a size is not above 0.
bool fsdp_value_mesh(const char *text, fsdp_mesh *mesh);

// "size", "block", "none" or "module:NAME,...": sets kind and classes, which point into `text`.
bool fsdp_value_wrap(const char *text, fsdp_wrap_policy *policy);
// The text that sets the policy, which is none of FSDP_WRAP_CHOSEN. Returns `out`.
const char *fsdp_value_print_wrap(const fsdp_wrap_policy *policy, char *out, size_t out_bytes);

// "A:B", whole numbers with 1 <= A <= B <= `high`.
bool fsdp_value_range(const char *text, int64_t high, int64_t *first, int64_t *last);
