// A fixed set of threads for CPU kernels: created before the plan is sealed, bound by the caller, never
// grown.
//
// A parallel region hands out indices [0, count) to the calling thread and the pool's workers; which thread
// runs an index is not determined, so a kernel's result must not depend on it. Every thread, the caller's
// included, owns a scratch block for tiles.
//
// Between regions workers look for the next one for some 20 microseconds, and then sleep. If the pool is
// created where its threads have fewer processors than they are, they sleep at once.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct fsdp_pool fsdp_pool;

// Scratch bytes of each thread; kernels assert that their tiles fit.
#define FSDP_POOL_SCRATCH_BYTES ((size_t)4 << 20)

// `thread_count` >= 1 threads in all, the caller's included. Never NULL.
fsdp_pool *fsdp_pool_create(int thread_count);
void fsdp_pool_destroy(fsdp_pool *pool);
int fsdp_pool_thread_count(const fsdp_pool *pool);
// Processors that the calling thread may run on, and so the threads of a pool that it creates; at least 1.
int fsdp_pool_processors(void);

// Runs body(argument, index, scratch) for every index and returns when all are done. One region at a time;
// the calling thread must be the only user of the pool meanwhile.
void fsdp_pool_run(fsdp_pool *pool, int64_t count, void (*body)(void *argument, int64_t index, void *scratch),
                   void *argument);
