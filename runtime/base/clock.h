// The monotonic clock, which every time in this project is read from: times of two modules compare.
#pragma once

#include <stdint.h>

// Nanoseconds from an arbitrary beginning, the same for all processes of a machine but those in a time
// namespace of their own.
int64_t fsdp_now_ns(void);
int64_t fsdp_now_ms(void);

// Of the calling thread, at least so long unless a signal ends it.
void fsdp_sleep_ms(int64_t ms);
