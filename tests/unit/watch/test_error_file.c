// The file about a job's first failure: whole, of the first one, on file systems with links and without.
#include "runtime/base/check.h"
#include "runtime/watch/board.h"
#include "runtime/watch/error_file.h"
#include "tests/support/unit_test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// The C library's function, on a file system that may have no links.
static bool no_links;

int link(const char *from, const char *to) {
  errno = EPERM;
  return no_links ? -1 : linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

static json_t *read_error_file(const char *folder) {
  char path[256];
  snprintf(path, sizeof path, "%s/error.json", folder);
  json_error_t reason;
  json_t *object = json_load_file(path, 0, &reason);
  if (!object) fail_msg("%s: %s", path, reason.text);
  unlink(path);
  return object;
}

TEST(test_the_error_file) {
  char folder[] = "/tmp/fsdp_watch_XXXXXX";
  assert_non_null(mkdtemp(folder));
  for (int run = 0; run < 3; run++) {
    const bool crash = run == 1;
    no_links = run == 2;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
      int quiet = open("/dev/null", O_WRONLY);
      dup2(quiet, STDERR_FILENO);
      fsdp_error_file_open(folder, 3, "node \"x\"", true);
      if (crash) FSDP_CHECK(!crash, "%d lines", 17);
      fsdp_lane_begin(&fsdp_board_mine->lanes[0], fsdp_place_of(12, 0));
      fsdp_job_end end = {3, "node \"x\"", 99, FSDP_ERR_PEER, "first\n\"one\"", 0};
      fsdp_error_file_write(&end);
      end.message = "second";
      fsdp_error_file_write(&end); // the first one stays
      _exit(0);
    }
    int status;
    no_links = false;
    waitpid(child, &status, 0);
    json_t *object = read_error_file(folder);
    assert_int_equal(json_integer_value(json_object_get(object, "rank")), 3);
    assert_string_equal(json_string_value(json_object_get(object, "host")), "node \"x\"");
    const char *message = json_string_value(json_object_get(object, "message"));
    if (crash) {
      assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
      assert_int_equal(json_integer_value(json_object_get(object, "signal")), SIGABRT);
      assert_int_equal(json_integer_value(json_object_get(object, "status")), 128 + SIGABRT);
      assert_non_null(strstr(message, "17 lines"));
    } else {
      assert_string_equal(message, "first \"one\"");
      assert_int_equal(json_integer_value(json_object_get(object, "step")), 12);
    }
    // The time is now, in the calendar of the C library.
    struct tm then = {0};
    const char *when = json_string_value(json_object_get(object, "time"));
    assert_non_null(strptime(when, "%Y-%m-%dT%H:%M:%SZ", &then));
    assert_true(labs((long)(timegm(&then) - time(NULL))) < 600);
    json_decref(object);
  }
  assert_int_equal(rmdir(folder), 0); // nothing else stays there
}
