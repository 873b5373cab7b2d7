// An item of a packing (pack.h).
#pragma once

#include <stdint.h>

typedef struct fsdp_pack_item {
  int begin, end;       // positions, both inclusive
  int64_t bytes, align; // bytes > 0, align a power of two
  int64_t address;      // the result
} fsdp_pack_item;
