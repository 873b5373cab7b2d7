#include "runtime/base/job.h"

#include "runtime/base/clock.h"
#include "runtime/base/descriptors.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

// For a terminal that accepts nothing, and for the error file's disk.
#define TERMINAL_MS    1000
#define RECORD_MS      1000
#define RECORD_TICK_MS 5

static struct {
  int rank;
  char host[FSDP_HOST_NAME_BYTES];
  void (*fail)(fsdp_status status, const char *message, bool follows);
} identity;

static void (*record)(const fsdp_job_end *end);
static struct { int terminal, log; } outputs = {STDERR_FILENO, -1};

static _Atomic bool asked_here, *asked_to_end = &asked_here;
static _Atomic int64_t continued_ms; // 0: never

void fsdp_job_name(int rank, const char *host) {
  identity.rank = rank;
  snprintf(identity.host, sizeof identity.host, "%s", host);
}

void fsdp_job_identify(int rank, const char *host,
                       void (*fail)(fsdp_status status, const char *message, bool follows)) {
  fsdp_job_name(rank, host);
  identity.fail = fail;
}

void fsdp_job_set_recorder(void (*recorder)(const fsdp_job_end *end)) {
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
  atomic_store_explicit(asked_to_end, true, memory_order_relaxed);
}

bool fsdp_job_is_asked_to_end(void) {
  return atomic_load_explicit(asked_to_end, memory_order_relaxed);
}

void fsdp_job_continued(void) {
  atomic_store_explicit(&continued_ms, fsdp_now_ms(), memory_order_relaxed);
}

bool fsdp_job_was_continued(int64_t ms) {
  const int64_t at_ms = atomic_load_explicit(&continued_ms, memory_order_relaxed);
  return at_ms > 0 && fsdp_now_ms() - at_ms <= ms;
}

void fsdp_job_share_asked(_Atomic bool *asked) {
  if (fsdp_job_is_asked_to_end()) atomic_store(asked, true);
  asked_to_end = asked;
}

void fsdp_job_set_outputs(int terminal, int log) {
  outputs.terminal = terminal;
  outputs.log = log;
}

void fsdp_job_say(const char *message) {
  char line[2048];
  int length = snprintf(line, sizeof line, "%s: error: %.1900s\n", program_invocation_short_name, message);
  // The log first: it never blocks. A descriptor that cannot be polled, such as a file's, counts as ready.
  if (outputs.log >= 0 && write(outputs.log, line, (size_t)length) < 0) outputs.log = -1;
  struct pollfd terminal = {.fd = outputs.terminal, .events = POLLOUT};
  if (poll(&terminal, 1, TERMINAL_MS) == 0) return;
  if (write(outputs.terminal, line, (size_t)length) < 0) return; // the terminal is gone
}

// A fork without the libraries' fork handlers, which may wait for a lock that a stuck thread holds.
static pid_t fork_plainly(void) {
#if __GLIBC_PREREQ(2, 34)
  return _Fork();
#else
  return fork();
#endif
}

int fsdp_job_record(const fsdp_job_end *end) {
  if (!record) return -1;
  pid_t child = fork_plainly();
  if (child == 0) {
    // What starts ranks ends their process group, and waits for every process that holds their output.
    setsid();
    fsdp_close_from(0);
    record(end);
    _exit(0);
  }
  return child;
}

void fsdp_job_record_wait(int writer) {
  if (writer <= 0) return;
  for (int waited = 0; waitpid(writer, NULL, WNOHANG) == 0 && waited < RECORD_MS; waited += RECORD_TICK_MS)
    fsdp_sleep_ms(RECORD_TICK_MS);
}

static FSDP_NORETURN void end_job(fsdp_status status, const char *message, bool follows) {
  if (identity.fail) identity.fail(status, message, follows);
  // Several streams may fail at once; the first one reports.
  static atomic_flag spoken = ATOMIC_FLAG_INIT;
  if (!atomic_flag_test_and_set(&spoken)) {
    fsdp_job_say(message);
    fsdp_job_record_wait(
        fsdp_job_record(&(fsdp_job_end){identity.rank, host_name(), getpid(), status, message, 0}));
  }
  _Exit((int)status);
}

FSDP_NORETURN void fsdp_job_failed(bool follows, const char *call, const char *format, ...) {
  char reason[1024], message[1200];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  snprintf(message, sizeof message, "rank %d (host %s): %s failed: %s", identity.rank, host_name(), call,
           reason);
  end_job(FSDP_ERR_PEER, message, follows);
}

FSDP_NORETURN void fsdp_job_exhausted(const char *format, ...) {
  char message[1200];
  int named = 0; // fsdp_plan and fsdp_export have no ranks
  if (identity.host[0])
    named = snprintf(message, sizeof message, "rank %d (host %s): ", identity.rank, identity.host);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message + named, sizeof message - (size_t)named, format, arguments);
  va_end(arguments);
  end_job(FSDP_ERR_CAPACITY, message, false);
}
