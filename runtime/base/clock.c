#include "runtime/base/clock.h"

#include <time.h>

int64_t fsdp_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t fsdp_now_ms(void) {
  return fsdp_now_ns() / 1000000;
}

void fsdp_sleep_ms(int64_t ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}
