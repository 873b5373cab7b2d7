// The pool: every index runs once, on any number of threads, region after region.
#include "runtime/device/pool.h"
#include "tests/support/unit_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { INDICES = 1000, THREADS_MAX = 5 };

typedef struct tally {
  atomic_int runs[INDICES];
  atomic_int misaligned;
} tally;

static void count_index(void *argument, int64_t index, void *scratch) {
  tally *t = argument;
  atomic_fetch_add(&t->runs[index], 1);
  if ((uintptr_t)scratch % 64 != 0) atomic_fetch_add(&t->misaligned, 1);
  memset(scratch, (int)index, FSDP_POOL_SCRATCH_BYTES / 1024); // two threads in one scratch are a data race
}

TEST(test_every_index_once) {
  static const int64_t counts[] = {0, 1, 2, 3, 7, INDICES};
  for (int threads = 1; threads <= THREADS_MAX; threads++) {
    fsdp_pool *pool = fsdp_pool_create(threads);
    assert_int_equal(fsdp_pool_thread_count(pool), threads);
    for (int region = 0; region < 200; region++) {
      tally t = {0};
      int64_t count = counts[region % 6];
      fsdp_pool_run(pool, count, count_index, &t);
      for (int64_t i = 0; i < INDICES; i++) assert_int_equal(atomic_load(&t.runs[i]), i < count);
      assert_int_equal(atomic_load(&t.misaligned), 0);
    }
    fsdp_pool_destroy(pool);
  }
}

typedef struct meeting {
  pthread_barrier_t barrier;
  void *scratch[3];
} meeting;

// Returns only if as many threads as indices are in the region at the same time.
static void meet(void *argument, int64_t index, void *scratch) {
  meeting *m = argument;
  m->scratch[index] = scratch;
  pthread_barrier_wait(&m->barrier);
}

TEST(test_threads_run_side_by_side) {
  fsdp_pool *pool = fsdp_pool_create(3);
  meeting m;
  assert_int_equal(pthread_barrier_init(&m.barrier, NULL, 3), 0);
  for (int region = 0; region < 20; region++) {
    fsdp_pool_run(pool, 3, meet, &m);
    assert_true(m.scratch[0] != m.scratch[1] && m.scratch[1] != m.scratch[2] && m.scratch[0] != m.scratch[2]);
  }
  pthread_barrier_destroy(&m.barrier);
  fsdp_pool_destroy(pool);
}

static void double_number(void *argument, int64_t index, void *scratch) {
  ((int64_t *)argument)[index] *= 2;
}

static void *own_pool(void *argument) {
  int64_t *numbers = argument;
  fsdp_pool *pool = fsdp_pool_create(2);
  for (int region = 0; region < 50; region++) {
    if (region % 5 == 0) usleep(200); // workers fall asleep
    fsdp_pool_run(pool, 10, double_number, numbers);
  }
  fsdp_pool_destroy(pool);
  return NULL;
}

// What a region writes is there for the caller, and for the next region whichever thread runs it.
TEST(test_pools_are_independent) {
  pthread_t threads[3];
  int64_t numbers[3][10];
  for (int i = 0; i < 3; i++) {
    for (int64_t n = 0; n < 10; n++) numbers[i][n] = 1 + n;
    assert_int_equal(pthread_create(&threads[i], NULL, own_pool, numbers[i]), 0);
  }
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 3; i++)
    for (int64_t n = 0; n < 10; n++) assert_true(numbers[i][n] == (1 + n) << 50);
}

TEST(test_destroy_nothing) {
  fsdp_pool_destroy(NULL);
}
