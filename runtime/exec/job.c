#include "runtime/exec/job.h"

#include "runtime/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

static struct {
  int rank;
  char host[FSDP_HOST_NAME_BYTES];
  void (*abort_job)(int status);
} identity;

void fsdp_job_identify(int rank, const char *host, void (*abort_job)(int status)) {
  identity.rank = rank;
  snprintf(identity.host, sizeof identity.host, "%s", host);
  identity.abort_job = abort_job;
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
  fprintf(stderr, "%s: note: rank %d on %s: %s\n", program_invocation_short_name, identity.rank, host_name(),
          message);
}

FSDP_NORETURN void fsdp_job_end(int status) {
  if (identity.abort_job) identity.abort_job(status);
  _Exit(status);
}

FSDP_NORETURN void fsdp_job_failed(const char *file, int line, const char *call, const char *format, ...) {
  // Several streams may fail at one time; the first one speaks.
  static atomic_flag spoken = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&spoken)) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: error: rank %d on %s: %s failed at %s:%d: %s\n", program_invocation_short_name,
            identity.rank, host_name(), call, file, line, message);
    fflush(stderr);
  }
  fsdp_job_end(FSDP_ERR_PEER);
}
