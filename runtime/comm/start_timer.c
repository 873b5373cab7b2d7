#include "runtime/comm/start_timer.h"

#include "runtime/base/job.h"
#include "runtime/base/status.h"
#include "runtime/comm/launcher_end.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// How long the rank that reports for its node holds back the others, whose timers end a little later.
#define SPEAKER_MS 1000

static struct {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t joined_or_late;
  bool runs, joined;
  int seconds;
} timer = {.mutex = PTHREAD_MUTEX_INITIALIZER, .joined_or_late = PTHREAD_COND_INITIALIZER};

static int number_of(const char *variable) {
  const char *value = getenv(variable);
  return value ? atoi(value) : 0;
}

static void wait_ms(int64_t ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

// One rank of a node and a job: a name in the node's memory, which one process can have, until it ends.
static bool speaks_for_node(const fsdp_launcher *launcher) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  // The first byte stays 0: a name that is no file.
  snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "fsdp-start-of-%d", launcher->process);
  int file = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (launcher->process < 0 || file < 0) return true;
  return bind(file, (const struct sockaddr *)&name, sizeof name) == 0;
}

static FSDP_NORETURN void end_job(void) {
  char host[FSDP_HOST_NAME_BYTES] = "", text[512];
  gethostname(host, sizeof host - 1);
  snprintf(text, sizeof text,
           "rank %d (host %s) could not join the job for %d s (--comm-timeout): another rank was stopped or "
           "did not start, or its node cannot be reached",
           number_of("OMPI_COMM_WORLD_RANK"), host, timer.seconds);
  fsdp_launcher launcher = fsdp_launcher_find();
  if (!speaks_for_node(&launcher)) {
    wait_ms(SPEAKER_MS);
    _exit(FSDP_ERR_PEER);
  }
  fsdp_job_say(text);
  if (number_of("OMPI_COMM_WORLD_LOCAL_SIZE") < number_of("OMPI_COMM_WORLD_SIZE")) {
    fsdp_launcher_end(&launcher);
  }
  wait_ms(SPEAKER_MS);
  _exit(FSDP_ERR_PEER);
}

static void *run(void *unused) {
  (void)unused;
  struct timespec late;
  clock_gettime(CLOCK_REALTIME, &late);
  late.tv_sec += timer.seconds;
  pthread_mutex_lock(&timer.mutex);
  int failure = 0;
  while (!timer.joined && failure == 0) {
    failure = pthread_cond_timedwait(&timer.joined_or_late, &timer.mutex, &late);
  }
  bool joined = timer.joined;
  pthread_mutex_unlock(&timer.mutex);
  if (!joined) end_job();
  return NULL;
}

void fsdp_start_timer_begin(int seconds) {
  timer.seconds = seconds;
  sigset_t all, before; // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failure = pthread_create(&timer.thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  FSDP_CHECK(!failure, "the timer of the start could not be made (%s)", strerror(failure));
  timer.runs = true;
}

void fsdp_start_timer_end(void) {
  if (!timer.runs) return;
  pthread_mutex_lock(&timer.mutex);
  timer.joined = true;
  pthread_cond_signal(&timer.joined_or_late);
  pthread_mutex_unlock(&timer.mutex);
  pthread_join(timer.thread, NULL);
  timer.runs = false;
}
