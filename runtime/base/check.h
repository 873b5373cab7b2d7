// Invariants: assertions that stay on in release builds and have no side effect.
#pragma once

#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
#define FSDP_NORETURN [[noreturn]]
extern "C" {
#else
#define FSDP_NORETURN _Noreturn
#endif

// Prints the place and the printf-style message on standard error and aborts the process.
FSDP_NORETURN void fsdp_check_failed(const char *file, int line, const char *condition, const char *format,
                                     ...) __attribute__((format(printf, 4, 5)));

// What fsdp_check_failed printed, or "": for a handler of SIGABRT.
const char *fsdp_check_message(void);

#define FSDP_CHECK(condition, ...)                                                                           \
  do {                                                                                                       \
    if (!(condition)) fsdp_check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__);                        \
  } while (0)

// Without memory or a thread the job ends with FSDP_ERR_CAPACITY and one message, which says what it was for
// (printf-style) and what to do. `failure` is pthread_create's.
FSDP_NORETURN void fsdp_memory_exhausted(const char *format, ...) __attribute__((format(printf, 1, 2)));
FSDP_NORETURN void fsdp_thread_exhausted(int failure, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define FSDP_NEED_MEMORY(memory, ...)                                                                        \
  do {                                                                                                       \
    if (!(memory)) fsdp_memory_exhausted(__VA_ARGS__);                                                       \
  } while (0)
#define FSDP_NEED_THREAD(failure, ...)                                                                       \
  do {                                                                                                       \
    if (failure) fsdp_thread_exhausted(failure, __VA_ARGS__);                                                \
  } while (0)

// malloc, calloc and realloc, which do not return without memory.
void *fsdp_alloc(size_t bytes);
void *fsdp_alloc_zeroed(size_t count, size_t item_bytes);
void *fsdp_realloc(void *memory, size_t bytes);

// strdup, which does not return without memory; `what` is for the message: "a path".
char *fsdp_strdup(const char *text, const char *what);

// The array `items`, which holds *capacity, with room for `count`: another address if it had to grow.
void *fsdp_grow(void *items, int count, int *capacity, size_t item_bytes);

#ifdef __cplusplus
}
#endif
