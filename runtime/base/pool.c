#include "runtime/base/pool.h"

#include "runtime/base/check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct worker {
  fsdp_pool *pool;
  void *scratch;
  pthread_t thread;
} worker;

struct fsdp_pool {
  int thread_count;
  worker *workers; // [0] is the caller: it has a scratch and no thread

  pthread_mutex_t mutex;
  pthread_cond_t wake; // a region has begun, or the pool stops
  pthread_cond_t idle; // the last worker has left the region
  int64_t region;      // counts regions, so that a worker joins each at most once
  int inside;          // workers that are in the region
  bool stop;

  // Of the region; written by the caller under the mutex while no worker is inside.
  void (*body)(void *argument, int64_t index, void *scratch); // NULL between regions: late workers skip it
  void *argument;
  int64_t count;
  atomic_int_fast64_t next;
};

static void take_indices(fsdp_pool *pool, void *scratch) {
  for (;;) {
    int64_t index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    if (index >= pool->count) return;
    pool->body(pool->argument, index, scratch);
  }
}

static void *work(void *argument) {
  worker *self = argument;
  fsdp_pool *pool = self->pool;
  int64_t seen = 0;
  pthread_mutex_lock(&pool->mutex);
  for (;;) {
    while (pool->region == seen && !pool->stop) pthread_cond_wait(&pool->wake, &pool->mutex);
    if (pool->stop) break;
    seen = pool->region;
    if (!pool->body) continue;
    pool->inside++;
    pthread_mutex_unlock(&pool->mutex);
    take_indices(pool, self->scratch);
    pthread_mutex_lock(&pool->mutex);
    if (--pool->inside == 0) pthread_cond_signal(&pool->idle);
  }
  pthread_mutex_unlock(&pool->mutex);
  return NULL;
}

fsdp_pool *fsdp_pool_create(int thread_count) {
  FSDP_CHECK(thread_count >= 1, "a pool of %d threads", thread_count);
  fsdp_pool *pool = fsdp_alloc_zeroed(1, sizeof *pool);
  pool->thread_count = thread_count;
  pool->workers = fsdp_alloc_zeroed((size_t)thread_count, sizeof *pool->workers);
  FSDP_CHECK(pthread_mutex_init(&pool->mutex, NULL) == 0 && pthread_cond_init(&pool->wake, NULL) == 0 &&
                 pthread_cond_init(&pool->idle, NULL) == 0,
             "the pool's locks could not be created");
  atomic_init(&pool->next, 0);
  for (int i = 0; i < thread_count; i++) {
    pool->workers[i].pool = pool;
    pool->workers[i].scratch = aligned_alloc(4096, FSDP_POOL_SCRATCH_BYTES);
    FSDP_CHECK(pool->workers[i].scratch, "out of host memory for the scratch of pool thread %d", i);
    if (i == 0) continue;
    int failure = pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i]);
    FSDP_CHECK(failure == 0, "pool thread %d of %d could not be started (%d)", i, thread_count, failure);
  }
  return pool;
}

void fsdp_pool_destroy(fsdp_pool *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pool->mutex);
  pool->stop = true;
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  for (int i = 0; i < pool->thread_count; i++) {
    if (i > 0) pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers[i].scratch);
  }
  pthread_cond_destroy(&pool->idle);
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->mutex);
  free(pool->workers);
  free(pool);
}

int fsdp_pool_thread_count(const fsdp_pool *pool) {
  return pool->thread_count;
}

void fsdp_pool_run(fsdp_pool *pool, int64_t count, void (*body)(void *argument, int64_t index, void *scratch),
                   void *argument) {
  if (pool->thread_count == 1 || count <= 1) { // nothing to share: no worker is woken
    for (int64_t i = 0; i < count; i++) body(argument, i, pool->workers[0].scratch);
    return;
  }
  pthread_mutex_lock(&pool->mutex);
  FSDP_CHECK(!pool->body, "a pool runs one region at a time");
  pool->body = body;
  pool->argument = argument;
  pool->count = count;
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  pool->region++;
  pthread_cond_broadcast(&pool->wake);
  pthread_mutex_unlock(&pool->mutex);
  take_indices(pool, pool->workers[0].scratch);
  pthread_mutex_lock(&pool->mutex);
  while (pool->inside > 0) pthread_cond_wait(&pool->idle, &pool->mutex);
  pool->body = NULL;
  pthread_mutex_unlock(&pool->mutex);
}
