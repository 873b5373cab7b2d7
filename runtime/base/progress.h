// Signs of progress in work that no peer sees: reading, writing and hashing files, drawing weights. Long
// loops mark their progress regularly, so that those who wait for this process can tell slow from stuck.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Callable from any thread. Costs an atomic addition, so call it per chunk of work, not per element.
void fsdp_progress_mark(void);

// Marks of this process so far.
uint64_t fsdp_progress_count(void);

#ifdef __cplusplus
}
#endif
