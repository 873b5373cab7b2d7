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

// By value of fsdp_op_product_form, fsdp_profile_direction and fsdp_profile_link.
enum { FSDP_PROFILE_FORMS = 4, FSDP_PROFILE_DIRECTIONS = 3, FSDP_PROFILE_LINKS = 2 };
extern const char *const fsdp_profile_forms[FSDP_PROFILE_FORMS];
extern const char *const fsdp_profile_directions[FSDP_PROFILE_DIRECTIONS];
extern const char *const fsdp_profile_links[FSDP_PROFILE_LINKS];
