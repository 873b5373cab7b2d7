#include "launcher/train/stop.h"

#include "runtime/base/job.h"

#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t received;

static void remember(int signal_number) {
  if (!received) received = signal_number;
  if (signal_number != SIGUSR1) fsdp_job_asked_to_end();
  // A second signal: its sender does not want to wait for the step.
  if (signal_number != SIGUSR1) signal(signal_number, SIG_DFL);
}

static void note_continued(int signal_number) {
  (void)signal_number;
  fsdp_job_continued();
}

void fsdp_stop_install(void) {
  const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCONT};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    struct sigaction action;
    // What nohup ignores stays ignored.
    if (signals[i] == SIGHUP && sigaction(SIGHUP, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
      continue;
    memset(&action, 0, sizeof action);
    action.sa_handler = signals[i] == SIGCONT ? note_continued : remember;
    action.sa_flags = SA_RESTART; // a write to the log is not to fail because of it
    sigemptyset(&action.sa_mask);
    sigaction(signals[i], &action, NULL);
  }
}

int fsdp_stop_signal(void) {
  return (int)received;
}

int fsdp_stop_status(int signal_number) {
  return 128 + (signal_number == SIGINT ? SIGINT : SIGTERM);
}

const char *fsdp_stop_name(int signal_number) {
  // A rank cannot tell them apart: mpirun keeps its own signal to itself.
  if (signal_number == SIGTERM && getenv("OMPI_COMM_WORLD_RANK")) {
    return "SIGTERM (which mpirun sends for SIGINT and SIGHUP too)";
  }
  switch (signal_number) {
  case SIGINT:
    return "SIGINT";
  case SIGTERM:
    return "SIGTERM";
  case SIGHUP:
    return "SIGHUP";
  default:
    return "SIGUSR1";
  }
}
