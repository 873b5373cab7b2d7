// Keys and words of a device profile's YAML, the same for reading and printing.
#pragma once

#include "runtime/plan/price/device_profile.h"

#include <stddef.h>

typedef enum fsdp_profile_field_type {
  FSDP_KEY_WHOLE,   // int
  FSDP_KEY_LONG,    // int64_t
  FSDP_KEY_WORD,    // enum
  FSDP_KEY_FLAG,    // bool
  FSDP_KEY_NAME,    // char[]
  FSDP_KEY_KERNEL,  // char[FSDP_PROFILE_KERNEL_BYTES]: one to use
  FSDP_KEY_NUMBER,  // double
  FSDP_KEY_CURVE,   // fsdp_profile_curve
  FSDP_KEY_SOURCE,  // a text that is not kept
  FSDP_KEY_NODE,    // const yaml_node_t *: any value
  FSDP_KEY_MAPPING, // of further fields of the same struct
  FSDP_KEY_USE,     // the same, of kernels
  FSDP_KEY_LIST,    // of rows
  FSDP_KEY_BASE     // a profile, which is read before the rest
} fsdp_profile_field_type;

// A key of a mapping, and the field of the struct that its value sets.
typedef struct fsdp_profile_field {
  const char *key;
  fsdp_profile_field_type type;
  size_t offset;
  bool required;
  // WHOLE, LONG: the least; WORD: the value of the first word; NAME: the bytes; KERNEL: 0 attention, 1
  // grouped; NUMBER, CURVE: the exponent of the unit, a power of ten; LIST: the fsdp_profile_list.
  int number;
  const char *what; // as messages call it; NULL: as the key
  double least;     // NUMBER: the smallest that is allowed
  size_t mark;      // NUMBER: offset of the bool that `estimated: true` beside it sets; 0: it has none
  const char *const *words;                // WORD
  const struct fsdp_profile_field *fields; // MAPPING, USE; LIST: of a row
  int count;                               // of words, or of fields
} fsdp_profile_field;

enum { FSDP_PROFILE_FIELDS_MAX = 26 };

// A whole profile: a mapping of fields of fsdp_device_profile.
extern const fsdp_profile_field fsdp_profile_top;
