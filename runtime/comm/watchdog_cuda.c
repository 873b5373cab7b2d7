#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/cuda_check.h"
#include "runtime/comm/watchdog.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 250
// Added to the time limit, for a look that does not return.
#define GUARD_MS 10000
// A collective that has been the oldest for so long counts as waiting.
#define WAITS_MS 1000
// Collectives that can be under way at one time on a stream; more go unnamed. A micro-batch of 126 layers
// on the axis tensor has about a thousand.
#define POSTS_MAX 2048

typedef struct post {
  cudaEvent_t over;
  fsdp_place place;
} post;

// The posts of one stream, oldest first.
typedef struct queue {
  void *stream;
  fsdp_board_lane *lane;
  post posts[POSTS_MAX];
  uint64_t head, tail;
  int64_t since_ms; // when the oldest became that
} queue;

#define QUEUES_MAX 8

struct fsdp_watchdog {
  fsdp_watchdog_config config;
  pthread_t thread, guard;
  pthread_mutex_t mutex;
  pthread_cond_t stopped;
  bool stop;
  _Atomic int64_t looked_ms; // when the last look began or ended
  _Atomic bool guard_ends;
  queue queues[QUEUES_MAX];
  int queue_count;
};

static queue *queue_of(fsdp_watchdog *self, void *stream) {
  for (int i = 0; i < self->queue_count; i++) {
    if (self->queues[i].stream == stream) return &self->queues[i];
  }
  FSDP_CHECK(self->queue_count < QUEUES_MAX, "collectives on more than %d streams", QUEUES_MAX);
  queue *added = &self->queues[self->queue_count++];
  added->stream = stream;
  return added;
}

// One thread posts; no other accesses the place after the newest. The event is recorded outside the lock: a
// queue of the GPU that is full because a peer has stopped blocks the thread there, and the watchdog must
// continue.
void fsdp_watchdog_post(fsdp_watchdog *self, void *stream, fsdp_board_lane *lane, fsdp_place place) {
  if (!self) return;
  pthread_mutex_lock(&self->mutex);
  queue *mine = queue_of(self, stream);
  bool room = mine->tail - mine->head < POSTS_MAX;
  pthread_mutex_unlock(&self->mutex);
  if (!room) return;
  post *added = &mine->posts[mine->tail % POSTS_MAX];
  if (!added->over) CALL_CUDA(cudaEventCreateWithFlags(&added->over, cudaEventDisableTiming));
  CALL_CUDA(cudaEventRecord(added->over, (cudaStream_t)stream));
  added->place = place;
  pthread_mutex_lock(&self->mutex);
  if (lane) mine->lane = lane;
  if (mine->tail == mine->head) mine->since_ms = fsdp_now_ms();
  mine->tail++;
  pthread_mutex_unlock(&self->mutex);
}

// Removes complete collectives, and shows the stream's place on the board.
static void look(queue *mine) {
  while (mine->head < mine->tail) {
    const post *oldest = &mine->posts[mine->head % POSTS_MAX];
    cudaError_t status = cudaEventQuery(oldest->over);
    if (status == cudaErrorNotReady) break;
    CALL_CUDA(status);
    if (mine->lane) fsdp_lane_end(mine->lane, oldest->place);
    mine->head++;
    mine->since_ms = fsdp_now_ms();
  }
  if (!mine->lane) return;
  bool busy = mine->head < mine->tail;
  if (busy) fsdp_lane_begin(mine->lane, mine->posts[mine->head % POSTS_MAX].place);
  fsdp_lane_wait(mine->lane, busy && fsdp_now_ms() - mine->since_ms > WAITS_MS);
}

// Sleeps, with the lock, until the next look; false at the end.
static bool sleep_between(fsdp_watchdog *self) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += LOOK_MS * 1000000L;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&self->stopped, &self->mutex, &until);
  return !self->stop;
}

static void *watch(void *argument) {
  fsdp_watchdog *self = argument;
  CALL_CUDA(cudaSetDevice(self->config.ordinal));
  pthread_mutex_lock(&self->mutex);
  while (sleep_between(self)) {
    atomic_store(&self->looked_ms, fsdp_now_ms());
    for (int i = 0; i < self->queue_count; i++) look(&self->queues[i]);
    // Not under the lock: the library may take its time, and collectives are posted meanwhile.
    pthread_mutex_unlock(&self->mutex);
    self->config.look(self->config.owner);
    pthread_mutex_lock(&self->mutex);
    atomic_store(&self->looked_ms, fsdp_now_ms());
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

// Watches the watchdog, whose driver calls may wait for a thread that is stuck in the driver. Calls nothing
// but the clock.
static void *keep_guard(void *argument) {
  fsdp_watchdog *self = argument;
  const int64_t limit_ms = (int64_t)self->config.timeout_s * 1000 + GUARD_MS;
  while (!atomic_load(&self->guard_ends)) {
    nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    if (fsdp_now_ms() - atomic_load(&self->looked_ms) <= limit_ms) continue;
    FSDP_JOB_FAIL("the watchdog",
                  "the driver or NCCL has not answered for %" PRId64
                  " s; a peer has stopped, or the GPU has (--comm-timeout sets the limit)",
                  limit_ms / 1000);
  }
  return NULL;
}

fsdp_watchdog *fsdp_watchdog_create(const fsdp_watchdog_config *config) {
  fsdp_watchdog *self = fsdp_alloc_zeroed(1, sizeof *self);
  self->config = *config;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  int failure = pthread_mutex_init(&self->mutex, NULL);
  if (!failure) failure = pthread_cond_init(&self->stopped, &monotonic);
  atomic_init(&self->looked_ms, fsdp_now_ms());
  if (!failure) failure = pthread_create(&self->thread, NULL, watch, self);
  if (!failure) failure = pthread_create(&self->guard, NULL, keep_guard, self);
  pthread_condattr_destroy(&monotonic);
  FSDP_NEED_THREAD(failure, "the watchdog of NCCL");
  return self;
}

void fsdp_watchdog_destroy(fsdp_watchdog *self) {
  if (!self) return;
  pthread_mutex_lock(&self->mutex);
  self->stop = true;
  pthread_cond_signal(&self->stopped);
  pthread_mutex_unlock(&self->mutex);
  pthread_join(self->thread, NULL);
  atomic_store(&self->guard_ends, true);
  pthread_join(self->guard, NULL);
  for (int i = 0; i < self->queue_count; i++) {
    for (int p = 0; p < POSTS_MAX; p++) {
      if (self->queues[i].posts[p].over) CALL_CUDA(cudaEventDestroy(self->queues[i].posts[p].over));
    }
  }
  pthread_cond_destroy(&self->stopped);
  pthread_mutex_destroy(&self->mutex);
  free(self);
}
