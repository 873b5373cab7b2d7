// Keys and words of a device profile's YAML, the same for reading and printing.
#pragma once

#include "runtime/plan/price/device_profile.h"

#include <stddef.h>

// A number of fsdp_device_profile, in units of 10^exponent; `least` is the smallest that is allowed. `mark`
// is the offset of the bool that `estimated: true` beside it sets; 0: it has none.
typedef struct fsdp_profile_number {
  const char *key;
  size_t offset;
  int exponent;
  double least;
  size_t mark;
} fsdp_profile_number;

// Numbers that stand at the top, and mappings of others.
enum { FSDP_PROFILE_NUMBERS = 7, FSDP_PROFILE_SECTIONS = 7, FSDP_PROFILE_SECTION_NUMBERS_MAX = 4 };

typedef struct fsdp_profile_section {
  const char *key;
  int count;
  fsdp_profile_number numbers[FSDP_PROFILE_SECTION_NUMBERS_MAX];
} fsdp_profile_section;

extern const fsdp_profile_number fsdp_profile_numbers[FSDP_PROFILE_NUMBERS];
extern const fsdp_profile_section fsdp_profile_sections[FSDP_PROFILE_SECTIONS];

typedef enum fsdp_profile_field_type {
  FSDP_FIELD_WHOLE, // int
  FSDP_FIELD_LONG,  // int64_t
  FSDP_FIELD_WORD,  // enum
  FSDP_FIELD_FLAG,  // bool
  FSDP_FIELD_NAME,  // char[FSDP_PROFILE_KERNEL_BYTES]
  FSDP_FIELD_RATE,  // double
  FSDP_FIELD_CURVE  // fsdp_profile_curve
} fsdp_profile_field_type;

// A field of a list's rows.
typedef struct fsdp_profile_field {
  const char *key;
  fsdp_profile_field_type type;
  size_t offset;
  bool required;
  int number; // WHOLE, LONG: the least; WORD: the value of the first word; RATE, CURVE: the unit's exponent
  const char *const *words; // WORD
  int word_count;
} fsdp_profile_field;

enum { FSDP_PROFILE_FIELDS_MAX = 7 };

// The lists in the order in which they are printed, by fsdp_profile_list.
extern const struct fsdp_profile_list_key {
  const char *key;
  const fsdp_profile_field *fields;
  int count;
} fsdp_profile_lists[FSDP_PROFILE_LISTS];
