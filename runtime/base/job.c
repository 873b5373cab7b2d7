#include "runtime/base/job.h"

#include "runtime/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static struct {
  int rank;
  char host[FSDP_HOST_NAME_BYTES];
  void (*fail)(const char *message, bool follows);
} identity;

static void (*record)(int rank, const char *host, int process, const char *message);

static _Atomic bool asked_to_end;

void fsdp_job_identify(int rank, const char *host, void (*fail)(const char *message, bool follows)) {
  identity.rank = rank;
  snprintf(identity.host, sizeof identity.host, "%s", host);
  identity.fail = fail;
}

void fsdp_job_set_recorder(void (*recorder)(int rank, const char *host, int process, const char *message)) {
  record = recorder;
}

static const char *host_name(void) {
  return identity.host[0] ? identity.host : "this machine";
}

void fsdp_job_note(const char *format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s: note: rank %d (host %s): %s\n", program_invocation_short_name, identity.rank,
          host_name(), message);
}

void fsdp_job_asked_to_end(void) {
  atomic_store_explicit(&asked_to_end, true, memory_order_relaxed);
}

bool fsdp_job_is_asked_to_end(void) {
  return atomic_load_explicit(&asked_to_end, memory_order_relaxed);
}

// In one write, which no other rank's line can divide, and past stdio, whose lock a stuck thread may hold.
void fsdp_job_report(int rank, const char *host, int process, const char *message) {
  char line[2048];
  int length = snprintf(line, sizeof line, "%s: error: %.1900s\n", program_invocation_short_name, message);
  if (write(STDERR_FILENO, line, (size_t)length) != length) return;
  if (record) record(rank, host, process, message);
}

FSDP_NORETURN void fsdp_job_failed(bool follows, const char *call, const char *format, ...) {
  char reason[1024], message[1200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  snprintf(message, sizeof message, "rank %d (host %s): %s failed: %s", identity.rank, host_name(), call,
           reason);
  if (identity.fail) identity.fail(message, follows);
  // Several streams may fail at one time; the first one speaks.
  static atomic_flag spoken = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&spoken)) fsdp_job_report(identity.rank, host_name(), getpid(), message);
  _Exit(FSDP_ERR_PEER);
}
