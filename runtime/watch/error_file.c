#include "runtime/watch/error_file.h"

#include "runtime/base/check.h"
#include "runtime/watch/board.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 2048

static struct {
  char path[PATH_BYTES], temporary[PATH_BYTES], host[FSDP_HOST_NAME_BYTES];
  int rank;
} file;

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define FATAL_COUNT ((int)(sizeof fatal_signals / sizeof *fatal_signals))
static struct sigaction before[FATAL_COUNT];

// ---- Text, without what a signal handler must not call

typedef struct text {
  char data[4096];
  size_t used;
} text;

static void put(text *t, char character) {
  if (t->used < sizeof t->data) t->data[t->used++] = character;
}

static void put_raw(text *t, const char *string) {
  for (; *string; string++) put(t, *string);
}

static void put_int(text *t, int64_t value, int digits_min) {
  char digits[24];
  int count = 0;
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  if (value < 0) put(t, '-');
  do {
    digits[count++] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest > 0 || count < digits_min);
  while (count > 0) put(t, digits[--count]);
}

static void put_string(text *t, const char *string) {
  put(t, '"');
  // Leaves room for what follows the longest field.
  for (; *string && t->used < sizeof t->data - 256; string++) {
    unsigned char character = (unsigned char)*string;
    if (character == '"' || character == '\\') put(t, '\\');
    if (character < 0x20)
      put(t, ' ');
    else
      put(t, (char)character);
  }
  put(t, '"');
}

// Seconds since 1970 as "2026-01-31T23:59:59Z": the civil calendar from a count of days (Howard Hinnant,
// "chrono-Compatible Low-Level Date Algorithms", days are counted from 0000-03-01 in eras of 400 years).
static void put_time(text *t, int64_t seconds) {
  int64_t days = seconds / 86400 + 719468, second = seconds % 86400;
  int64_t era = days / 146097, day_of_era = days % 146097;
  int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  int64_t shifted_month = (5 * day_of_year + 2) / 153;
  int64_t day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
  int64_t month = shifted_month < 10 ? shifted_month + 3 : shifted_month - 9;
  put(t, '"');
  put_int(t, year_of_era + era * 400 + (month <= 2), 4), put(t, '-');
  put_int(t, month, 2), put(t, '-'), put_int(t, day, 2), put(t, 'T');
  put_int(t, second / 3600, 2), put(t, ':'), put_int(t, second / 60 % 60, 2), put(t, ':');
  put_int(t, second % 60, 2), put_raw(t, "Z\"");
}

// The step of the run that this rank is in.
static int64_t step_now(void) {
  fsdp_board_view view;
  fsdp_board_read(fsdp_board_mine, &view);
  return fsdp_board_step(&view);
}

static void put_report(text *t, const fsdp_job_end *end) {
  put_raw(t, "{\"rank\": "), put_int(t, end->rank, 1);
  put_raw(t, ", \"host\": "), put_string(t, end->host);
  put_raw(t, ", \"process\": "), put_int(t, end->process, 1);
  put_raw(t, ", \"step\": "), put_int(t, step_now(), 1);
  put_raw(t, ", \"status\": "), put_int(t, end->signal ? 128 + end->signal : (int)end->status, 1);
  put_raw(t, ", \"signal\": "), put_int(t, end->signal, 1);
  put_raw(t, ", \"time\": ");
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  put_time(t, (int64_t)now.tv_sec);
  put_raw(t, ", \"message\": "), put_string(t, end->message), put_raw(t, "}\n");
}

// ---- The file

void fsdp_error_file_write(const fsdp_job_end *end) {
  if (!file.path[0] || access(file.path, F_OK) == 0) return;
  text t;
  t.used = 0;
  put_report(&t, end);
  int descriptor = open(file.temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  bool written = write(descriptor, t.data, t.used) == (ssize_t)t.used && fsync(descriptor) == 0;
  close(descriptor);
  // A link is refused if the name is taken. Some file systems have no links.
  if (written && link(file.temporary, file.path) != 0 && access(file.path, F_OK) != 0) {
    rename(file.temporary, file.path);
  }
  unlink(file.temporary);
}

static const char *signal_message(int number) {
  switch (number) {
  case SIGSEGV:
    return "ended by SIGSEGV (a memory access out of bounds)";
  case SIGBUS:
    return "ended by SIGBUS (a mapped file that was cut, or a failing disk)";
  case SIGFPE:
    return "ended by SIGFPE";
  case SIGILL:
    return "ended by SIGILL (an instruction that this processor does not have)";
  default:
    return fsdp_check_message()[0] ? fsdp_check_message() : "ended by SIGABRT";
  }
}

static void on_fatal_signal(int number) {
  fsdp_error_file_write(&(fsdp_job_end){.rank = file.rank,
                                        .host = file.host,
                                        .process = getpid(),
                                        .message = signal_message(number),
                                        .signal = number});
  for (int i = 0; i < FATAL_COUNT; i++) {
    if (fatal_signals[i] == number) sigaction(number, &before[i], NULL);
  }
  raise(number); // blocked until this handler returns
}

void fsdp_error_file_open(const char *folder, int rank, const char *host, bool clears) {
  snprintf(file.path, sizeof file.path, "%.2000s/error.json", folder);
  snprintf(file.temporary, sizeof file.temporary, "%.2000s/error.rank-%d.tmp", folder, rank);
  snprintf(file.host, sizeof file.host, "%s", host);
  file.rank = rank;
  fsdp_job_set_recorder(fsdp_error_file_write);
  if (clears) unlink(file.path);
  for (int i = 0; i < FATAL_COUNT; i++) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_fatal_signal;
    sigemptyset(&action.sa_mask);
    sigaction(fatal_signals[i], &action, &before[i]);
  }
}
