// Records sorted by 64-bit keys.
#pragma once

#include <stdint.h>

typedef struct fsdp_record {
  int64_t key;
  void *of;
} fsdp_record;

// Sorts by key, digit by digit (radix sort from the least digit: Knuth, The Art of Computer Programming
// 5.2.5); equal keys keep their order. `other` holds as many and is overwritten. Returns the one of both that
// is sorted then.
fsdp_record *fsdp_sort_records(fsdp_record *records, fsdp_record *other, int count);
