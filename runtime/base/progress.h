// Signs of progress of work that no peer sees: reading, writing and hashing files, drawing weights. Long
// loops mark it now and then, so that whoever waits for this process can tell slow from stuck.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Any thread's; costs an atomic addition, so once per chunk of work and not per element.
void fsdp_progress_mark(void);

// Marks of this process so far.
uint64_t fsdp_progress_count(void);

#ifdef __cplusplus
}
#endif
