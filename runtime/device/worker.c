#include "runtime/device/worker.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/device/pool.h"

#include <pthread.h>
#include <string.h>

typedef struct entry {
  bool is_wait;
  fsdp_work work;      // unless is_wait
  fsdp_stream awaited; // is_wait: whose ticket
  uint64_t ticket;
} entry;

struct fsdp_worker {
  fsdp_worker_config config;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t arrived;  // for the worker: an entry, or stop
  pthread_cond_t room;     // for the launching thread: the ring is no longer full
  pthread_cond_t finished; // for threads that wait for a ticket
  // Under the mutex.
  entry *ring;
  uint64_t head, tail; // entries taken, entries put
  uint64_t capacity;
  uint64_t wanted; // the least ticket that a thread in `finished` waits for; UINT64_MAX: none does
  bool stop;
  bool full_sleeper;     // the launching thread is in `room`
  uint64_t launched;     // the launching thread's own
  _Atomic uint64_t over; // tickets over; written under the mutex, read without
};

bool fsdp_worker_is_over(const fsdp_worker *worker, uint64_t ticket) {
  return atomic_load_explicit(&worker->over, memory_order_acquire) >= ticket;
}

void fsdp_worker_synchronize(fsdp_worker *worker, uint64_t ticket) {
  if (fsdp_worker_is_over(worker, ticket)) return;
  pthread_mutex_lock(&worker->mutex);
  while (atomic_load_explicit(&worker->over, memory_order_relaxed) < ticket) {
    if (ticket < worker->wanted) worker->wanted = ticket; // again after each wake: it was reset
    pthread_cond_wait(&worker->finished, &worker->mutex);
  }
  pthread_mutex_unlock(&worker->mutex);
}

// Waits for the next entry and copies it; it stays in the ring until it is complete. False at the end.
static bool take(fsdp_worker *self, entry *next) {
  while (self->head == self->tail && !self->stop) pthread_cond_wait(&self->arrived, &self->mutex);
  if (self->head == self->tail) return false;
  *next = self->ring[self->head % self->capacity];
  return true;
}

static void *work_loop(void *argument) {
  fsdp_worker *self = argument;
  entry next;
  pthread_mutex_lock(&self->mutex);
  while (take(self, &next)) {
    pthread_mutex_unlock(&self->mutex);
    if (next.is_wait) {
      self->config.wait(self->config.owner, next.awaited, next.ticket);
    } else {
      next.work.run(&next.work, &self->config.context);
    }
    pthread_mutex_lock(&self->mutex);
    self->head++;
    if (self->full_sleeper) pthread_cond_signal(&self->room);
    if (next.is_wait) continue;
    uint64_t over = atomic_fetch_add_explicit(&self->over, 1, memory_order_release) + 1;
    if (self->config.published) {
      atomic_store_explicit(self->config.published, over, memory_order_release);
    }
    if (over >= self->wanted) {
      self->wanted = UINT64_MAX;
      pthread_cond_broadcast(&self->finished);
    }
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

static void put(fsdp_worker *worker, const entry *item) {
  pthread_mutex_lock(&worker->mutex);
  while (worker->tail - worker->head == worker->capacity) {
    worker->full_sleeper = true;
    pthread_cond_wait(&worker->room, &worker->mutex);
    worker->full_sleeper = false;
  }
  bool was_empty = worker->head == worker->tail;
  worker->ring[worker->tail++ % worker->capacity] = *item;
  if (was_empty) pthread_cond_signal(&worker->arrived);
  pthread_mutex_unlock(&worker->mutex);
}

uint64_t fsdp_worker_launch(fsdp_worker *worker, const fsdp_work *work) {
  put(worker, &(entry){.work = *work});
  return ++worker->launched;
}

void fsdp_worker_launch_wait(fsdp_worker *worker, fsdp_stream awaited, uint64_t ticket) {
  put(worker, &(entry){.is_wait = true, .awaited = awaited, .ticket = ticket});
}

fsdp_worker *fsdp_worker_create(const fsdp_worker_config *config) {
  fsdp_worker *worker = fsdp_alloc_zeroed(1, sizeof *worker);
  worker->config = *config;
  worker->config.context.pool = fsdp_pool_create(config->threads);
  worker->wanted = UINT64_MAX;
  worker->capacity = (uint64_t)fsdp_max_i64(config->queue_capacity, 2);
  worker->ring = fsdp_alloc_zeroed(worker->capacity, sizeof *worker->ring);
  atomic_init(&worker->over, 0);
  int failure = pthread_mutex_init(&worker->mutex, NULL);
  if (!failure) failure = pthread_cond_init(&worker->arrived, NULL);
  if (!failure) failure = pthread_cond_init(&worker->room, NULL);
  if (!failure) failure = pthread_cond_init(&worker->finished, NULL);
  if (!failure) failure = pthread_create(&worker->thread, NULL, work_loop, worker);
  FSDP_NEED_THREAD(failure, "the thread of stream %s", fsdp_stream_name(config->context.stream));
  return worker;
}

void fsdp_worker_destroy(fsdp_worker *worker) {
  if (!worker) return;
  pthread_mutex_lock(&worker->mutex);
  worker->stop = true;
  pthread_cond_signal(&worker->arrived);
  pthread_mutex_unlock(&worker->mutex);
  pthread_join(worker->thread, NULL);
  pthread_cond_destroy(&worker->finished);
  pthread_cond_destroy(&worker->room);
  pthread_cond_destroy(&worker->arrived);
  pthread_mutex_destroy(&worker->mutex);
  fsdp_pool_destroy(worker->config.context.pool);
  free(worker->ring);
  free(worker);
}
