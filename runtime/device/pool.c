#include "runtime/device/pool.h"

#include "runtime/base/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct worker {
  fsdp_pool *pool;
  void *scratch;
  pthread_t thread;
} worker;

// The region under way, in one word: its number, whether workers may still join it, and how many are in it.
#define INSIDE_ONE ((uint64_t)1)
#define OPEN       ((uint64_t)1 << 20)
#define REGION_ONE ((uint64_t)1 << 21)

// Looks for the next region, or for the end of this one, before a thread sleeps: some 20 microseconds, about
// what a sleep and a wake cost.
#define LOOKS 1000

struct fsdp_pool {
  int thread_count;
  int looks;       // LOOKS, or 0 if the threads have fewer processors than they are
  worker *workers; // [0] is the caller: it has a scratch and no thread

  _Atomic uint64_t state;
  atomic_bool stop;
  atomic_int sleepers;      // workers in `wake`
  atomic_bool caller_waits; // in `idle`
  pthread_mutex_t mutex;
  pthread_cond_t wake; // a region has begun, or the pool stops
  pthread_cond_t idle; // the last worker has left the region

  // Of the region; written by the caller while no worker is inside.
  void (*body)(void *argument, int64_t index, void *scratch);
  void *argument;
  int64_t count;
  atomic_int_fast64_t next;
};

static uint64_t region_of(uint64_t state) {
  return state / REGION_ONE;
}

static bool is_idle(const fsdp_pool *pool) {
  return atomic_load(&pool->state) % REGION_ONE == 0;
}

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void take_indices(fsdp_pool *pool, void *scratch) {
  for (;;) {
    int64_t index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    if (index >= pool->count) return;
    pool->body(pool->argument, index, scratch);
  }
}

// A sleeper has set its flag before its last look, under the mutex: it is not missed.
static void signal_all(fsdp_pool *pool, pthread_cond_t *sleepers) {
  pthread_mutex_lock(&pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
  pthread_cond_broadcast(sleepers);
}

// Joins the region if it is open; false if it is over, or was before.
static bool join_region(fsdp_pool *pool, uint64_t *state) {
  while (*state & OPEN)
    if (atomic_compare_exchange_weak(&pool->state, state, *state + INSIDE_ONE)) return true;
  return false;
}

static void leave_region(fsdp_pool *pool) {
  uint64_t state = atomic_fetch_sub(&pool->state, INSIDE_ONE) - INSIDE_ONE;
  if (state % REGION_ONE == 0 && atomic_load(&pool->caller_waits)) signal_all(pool, &pool->idle);
}

static bool is_called(const fsdp_pool *pool, uint64_t seen) {
  return region_of(atomic_load(&pool->state)) != seen || atomic_load(&pool->stop);
}

static void wait_for_region(fsdp_pool *pool, uint64_t seen) {
  for (int look = 0; look < pool->looks; look++) {
    if (is_called(pool, seen)) return;
    pause_briefly();
  }
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add(&pool->sleepers, 1);
  while (!is_called(pool, seen)) pthread_cond_wait(&pool->wake, &pool->mutex);
  atomic_fetch_sub(&pool->sleepers, 1);
  pthread_mutex_unlock(&pool->mutex);
}

static void *work(void *argument) {
  worker *self = argument;
  fsdp_pool *pool = self->pool;
  uint64_t seen = 0; // the last region that this worker was in, or came too late for
  for (;;) {
    wait_for_region(pool, seen);
    if (atomic_load(&pool->stop)) return NULL;
    uint64_t state = atomic_load(&pool->state);
    seen = region_of(state);
    if (!join_region(pool, &state)) continue;
    seen = region_of(state);
    take_indices(pool, self->scratch);
    leave_region(pool);
  }
}

int fsdp_pool_processors(void) {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

fsdp_pool *fsdp_pool_create(int thread_count) {
  FSDP_CHECK(thread_count >= 1, "a pool of %d threads", thread_count);
  fsdp_pool *pool = fsdp_alloc_zeroed(1, sizeof *pool);
  pool->thread_count = thread_count;
  pool->looks = fsdp_pool_processors() >= thread_count ? LOOKS : 0;
  pool->workers = fsdp_alloc_zeroed((size_t)thread_count, sizeof *pool->workers);
  FSDP_CHECK(pthread_mutex_init(&pool->mutex, NULL) == 0 && pthread_cond_init(&pool->wake, NULL) == 0 &&
                 pthread_cond_init(&pool->idle, NULL) == 0,
             "the pool's locks could not be created");
  atomic_init(&pool->next, 0);
  for (int i = 0; i < thread_count; i++) {
    pool->workers[i].pool = pool;
    pool->workers[i].scratch = aligned_alloc(4096, FSDP_POOL_SCRATCH_BYTES);
    FSDP_NEED_MEMORY(pool->workers[i].scratch, "the scratch of pool thread %d, %zu bytes", i,
                     FSDP_POOL_SCRATCH_BYTES);
    if (i == 0) continue;
    int failure = pthread_create(&pool->workers[i].thread, NULL, work, &pool->workers[i]);
    FSDP_NEED_THREAD(failure, "pool thread %d of %d", i, thread_count);
  }
  return pool;
}

void fsdp_pool_destroy(fsdp_pool *pool) {
  if (!pool) return;
  atomic_store(&pool->stop, true);
  signal_all(pool, &pool->wake);
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

// Until the last worker has left the region, which none can join any more.
static void wait_until_idle(fsdp_pool *pool) {
  for (int look = 0; look < pool->looks; look++) {
    if (is_idle(pool)) return;
    pause_briefly();
  }
  pthread_mutex_lock(&pool->mutex);
  atomic_store(&pool->caller_waits, true);
  while (!is_idle(pool)) pthread_cond_wait(&pool->idle, &pool->mutex);
  atomic_store(&pool->caller_waits, false);
  pthread_mutex_unlock(&pool->mutex);
}

void fsdp_pool_run(fsdp_pool *pool, int64_t count, void (*body)(void *argument, int64_t index, void *scratch),
                   void *argument) {
  if (pool->thread_count == 1 || count <= 1) { // nothing to share: no worker is woken
    for (int64_t i = 0; i < count; i++) body(argument, i, pool->workers[0].scratch);
    return;
  }
  FSDP_CHECK(is_idle(pool), "a pool runs one region at a time");
  pool->body = body;
  pool->argument = argument;
  pool->count = count;
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  atomic_store(&pool->state, (region_of(atomic_load(&pool->state)) + 1) * REGION_ONE + OPEN);
  if (atomic_load(&pool->sleepers) > 0) signal_all(pool, &pool->wake);
  take_indices(pool, pool->workers[0].scratch);
  atomic_fetch_and(&pool->state, ~OPEN);
  wait_until_idle(pool);
}
