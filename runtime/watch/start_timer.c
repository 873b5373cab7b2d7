#include "runtime/watch/start_timer.h"

#include "runtime/base/clock.h"
#include "runtime/base/job.h"
#include "runtime/base/size.h"
#include "runtime/base/status.h"
#include "runtime/watch/start_guard.h"
#include "runtime/watch/watch.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

// How long the rank that reports for its node holds back the others, whose timers end a little later.
#define SPEAKER_MS 500
#define TICK_MS    50
#define HEARD_MS   5000 // by then a rank that was killed has been named: no other message is needed
#define PAUSE_MS   1500
// The least of runs exceeds both: of address space, and threads beside the main one.
#define ROOM_BYTES   ((size_t)256 << 20)
#define ROOM_THREADS 12
// What Open MPI's largest file takes, which ranks of a node share.
#define ROOM_FILE_BYTES ((rlim_t)4 << 20)

static struct {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t joined_or_late;
  fsdp_start_guard guard;
  char host[FSDP_HOST_NAME_BYTES];
  bool runs, joined;
  int seconds;
} timer = {.mutex = PTHREAD_MUTEX_INITIALIZER, .joined_or_late = PTHREAD_COND_INITIALIZER};

static int number_of(const char *variable) {
  const char *value = getenv(variable);
  return value ? atoi(value) : 0;
}

static bool on_one_node(void) {
  return number_of("OMPI_COMM_WORLD_LOCAL_SIZE") >= number_of("OMPI_COMM_WORLD_SIZE");
}

// The failure of one rank before all have joined (job.h). Of a node's ranks one speaks.
static void fail(fsdp_status status, const char *message, bool follows) {
  (void)message, (void)follows;
  if (!timer.runs || fsdp_start_guard_claim(&timer.guard)) return;
  fsdp_sleep_ms(SPEAKER_MS);
  _exit((int)status);
}

static FSDP_NORETURN void end_job(void) {
  char text[512];
  snprintf(text, sizeof text,
           "rank %d (host %s) could not join the job for %d s (--comm-timeout): another rank was stopped or "
           "did not start, or its node cannot be reached",
           number_of("OMPI_COMM_WORLD_RANK"), timer.host, timer.seconds);
  fail(FSDP_ERR_PEER, text, false);
  fsdp_job_say(text);
  if (!on_one_node()) fsdp_launcher_end(&timer.guard.launcher);
  fsdp_sleep_ms(SPEAKER_MS);
  _exit(FSDP_ERR_PEER);
}

static void *run(void *unused) {
  (void)unused;
  const int64_t least_ms = fsdp_min_i64(HEARD_MS, 1000 * (int64_t)timer.seconds);
  int64_t left_ms = fsdp_max_i64(fsdp_watch_judged_ms(timer.seconds), least_ms);
  pthread_mutex_lock(&timer.mutex);
  while (!timer.joined && left_ms > 0) {
    // Without mpirun no rank joins any more, and the reason of its end is reported.
    if (timer.guard.launcher.handle >= 0 && fsdp_launcher_has_ended(&timer.guard.launcher, 0))
      _exit(FSDP_ERR_PEER);
    struct timespec next;
    clock_gettime(CLOCK_REALTIME, &next);
    next.tv_nsec += TICK_MS * 1000000;
    next.tv_sec += next.tv_nsec / 1000000000, next.tv_nsec %= 1000000000;
    const int64_t began_ns = fsdp_now_ns();
    pthread_cond_timedwait(&timer.joined_or_late, &timer.mutex, &next);
    // The time in which this process itself was stopped does not count.
    left_ms -= fsdp_min_i64((fsdp_now_ns() - began_ns) / 1000000, PAUSE_MS);
  }
  bool joined = timer.joined;
  pthread_mutex_unlock(&timer.mutex);
  if (!joined) end_job();
  return NULL;
}

static void *wait_for_all(void *barrier) {
  pthread_barrier_wait(barrier);
  return NULL;
}

static void need_files(void) {
#ifdef FSDP_WITH_MPI
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= ROOM_FILE_BYTES) return;
  fsdp_job_exhausted(
      "a file may have %llu bytes here, and the start of MPI takes one of %llu: raise the limit "
      "(ulimit -f)",
      (unsigned long long)limit.rlim_cur, (unsigned long long)ROOM_FILE_BYTES);
#endif
}

// MPI's own start ends the process, without a word of ours, if a limit leaves it too little address space,
// too few threads or too small files.
static void need_room(void) {
  need_files();
  void *room = mmap(NULL, ROOM_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FSDP_NEED_MEMORY(room != MAP_FAILED, "the start of MPI, %zu bytes of address space", ROOM_BYTES);
  munmap(room, ROOM_BYTES);
  pthread_t threads[ROOM_THREADS];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, ROOM_THREADS + 1);
  for (int i = 0; i < ROOM_THREADS; i++) {
    int failure = pthread_create(&threads[i], NULL, wait_for_all, &barrier);
    FSDP_NEED_THREAD(failure, "thread %d of the %d that a rank has at least", i + 1, ROOM_THREADS);
  }
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < ROOM_THREADS; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
}

void fsdp_start_timer_begin(int seconds) {
  timer.seconds = seconds;
  timer.runs = true;
  gethostname(timer.host, sizeof timer.host - 1);
  fsdp_start_guard_begin(&timer.guard, number_of("OMPI_COMM_WORLD_RANK"), timer.host, seconds, on_one_node());
  fsdp_job_identify(number_of("OMPI_COMM_WORLD_RANK"), timer.host, fail);
  sigset_t all, before; // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  need_room();
  int failure = pthread_create(&timer.thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  FSDP_NEED_THREAD(failure, "the timer of the start");
}

void fsdp_start_timer_end(void) {
  if (!timer.runs) return;
  pthread_mutex_lock(&timer.mutex);
  timer.joined = true;
  pthread_cond_signal(&timer.joined_or_late);
  pthread_mutex_unlock(&timer.mutex);
  pthread_join(timer.thread, NULL);
  timer.runs = false;
  fsdp_start_guard_end(&timer.guard);
}
