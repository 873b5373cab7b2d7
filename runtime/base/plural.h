// "1 step", "2 steps".
#pragma once

#include <stdint.h>

// The ending of a noun after the number `count`.
static inline const char *fsdp_plural(int64_t count) {
  return count == 1 ? "" : "s";
}
