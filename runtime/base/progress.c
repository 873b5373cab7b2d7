#include "runtime/base/progress.h"

#include <stdatomic.h>

static _Atomic uint64_t marks;

void fsdp_progress_mark(void) {
  atomic_fetch_add_explicit(&marks, 1, memory_order_relaxed);
}

uint64_t fsdp_progress_count(void) {
  return atomic_load_explicit(&marks, memory_order_relaxed);
}
