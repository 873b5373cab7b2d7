#include "runtime/base/check.h"
#include "runtime/exec/cuda_check.h"
#include "runtime/exec/watchdog.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define LOOK_MS 250
// Beyond the time limit, for a look that does not come back.
#define GUARD_MS 10000
// Collectives that can be under way at one time; more go unnamed.
#define POSTS_MAX 512

typedef struct post {
  cudaEvent_t over;
  const char *what, *unit;
  int64_t step;
} post;

// The posts of one stream, oldest first.
typedef struct lane {
  void *stream;
  post posts[POSTS_MAX];
  uint64_t head, tail;
  uint64_t seen_head; // at the last progress
  int64_t since_ms;
} lane;

#define LANES_MAX 8

struct fsdp_watchdog {
  fsdp_watchdog_config config;
  pthread_t thread, guard;
  pthread_mutex_t mutex;
  pthread_cond_t stopped;
  bool stop;
  _Atomic int64_t looked_ms; // when the last look began or ended
  _Atomic bool guard_ends;
  lane lanes[LANES_MAX];
  int lane_count;
};

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static lane *lane_of(fsdp_watchdog *self, void *stream) {
  for (int i = 0; i < self->lane_count; i++) {
    if (self->lanes[i].stream == stream) return &self->lanes[i];
  }
  FSDP_CHECK(self->lane_count < LANES_MAX, "collectives on more than %d streams", LANES_MAX);
  lane *added = &self->lanes[self->lane_count++];
  added->stream = stream;
  return added;
}

// One thread posts, and nobody else touches the place after the newest. The event is recorded outside the
// lock: a queue of the GPU that is full, for a peer has stopped, blocks the thread there, and the watchdog
// must go on.
void fsdp_watchdog_post(fsdp_watchdog *self, void *stream, const char *what, const char *unit, int64_t step) {
  if (!self) return;
  pthread_mutex_lock(&self->mutex);
  lane *mine = lane_of(self, stream);
  bool room = mine->tail - mine->head < POSTS_MAX;
  pthread_mutex_unlock(&self->mutex);
  if (!room) return;
  post *added = &mine->posts[mine->tail % POSTS_MAX];
  if (!added->over) CALL_CUDA(cudaEventCreateWithFlags(&added->over, cudaEventDisableTiming));
  CALL_CUDA(cudaEventRecord(added->over, (cudaStream_t)stream));
  added->what = what;
  added->unit = unit;
  added->step = step;
  pthread_mutex_lock(&self->mutex);
  if (mine->tail == mine->head) mine->since_ms = now_ms();
  mine->tail++;
  pthread_mutex_unlock(&self->mutex);
}

// Takes out what is over.
static void retire(lane *mine) {
  while (mine->head < mine->tail) {
    cudaError_t status = cudaEventQuery(mine->posts[mine->head % POSTS_MAX].over);
    if (status == cudaErrorNotReady) return;
    CALL_CUDA(status);
    mine->head++;
    mine->since_ms = now_ms();
  }
}

// The lane that has waited longest, where none has moved for the time limit.
static const lane *find_stuck(const fsdp_watchdog *self) {
  const lane *oldest = NULL;
  int64_t newest_ms = 0;
  for (int i = 0; i < self->lane_count; i++) {
    const lane *mine = &self->lanes[i];
    if (mine->since_ms > newest_ms) newest_ms = mine->since_ms;
    if (mine->head == mine->tail) continue;
    if (!oldest || mine->since_ms < oldest->since_ms) oldest = mine;
  }
  bool stuck = oldest && now_ms() - newest_ms > (int64_t)self->config.timeout_s * 1000;
  return stuck ? oldest : NULL;
}

static void look(fsdp_watchdog *self) {
  for (int i = 0; i < self->lane_count; i++) retire(&self->lanes[i]);
  const lane *stuck = find_stuck(self);
  if (!stuck) return;
  const post *first = &stuck->posts[stuck->head % POSTS_MAX];
  FSDP_JOB_FAIL(
      first->what,
      "nothing has moved for %d s: the %s of %s in step %lld is not over; a peer has stopped, or the "
      "network has (--comm-timeout sets the limit)",
      self->config.timeout_s, first->what, first->unit ? first->unit : "the step's scalars",
      (long long)first->step);
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
    atomic_store(&self->looked_ms, now_ms());
    look(self);
    // Not under the lock: the library may take its time, and collectives go on being posted.
    pthread_mutex_unlock(&self->mutex);
    self->config.look(self->config.owner);
    pthread_mutex_lock(&self->mutex);
    atomic_store(&self->looked_ms, now_ms());
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

// Watches the watchdog, whose questions to the driver may wait for a thread that is stuck in it: calls
// nothing but the clock.
static void *keep_guard(void *argument) {
  fsdp_watchdog *self = argument;
  const int64_t limit_ms = (int64_t)self->config.timeout_s * 1000 + GUARD_MS;
  while (!atomic_load(&self->guard_ends)) {
    nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
    if (now_ms() - atomic_load(&self->looked_ms) <= limit_ms) continue;
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
  atomic_init(&self->looked_ms, now_ms());
  if (!failure) failure = pthread_create(&self->thread, NULL, watch, self);
  if (!failure) failure = pthread_create(&self->guard, NULL, keep_guard, self);
  pthread_condattr_destroy(&monotonic);
  FSDP_CHECK(!failure, "the watchdog could not be started (%s)", strerror(failure));
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
  for (int i = 0; i < self->lane_count; i++) {
    for (int p = 0; p < POSTS_MAX; p++) {
      if (self->lanes[i].posts[p].over) CALL_CUDA(cudaEventDestroy(self->lanes[i].posts[p].over));
    }
  }
  pthread_cond_destroy(&self->stopped);
  pthread_mutex_destroy(&self->mutex);
  free(self);
}
