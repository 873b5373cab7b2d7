// The lock of an experiment's folder: by flock, and by a file of its own where there is none.
#include "runtime/checkpoint/checkpoint_lock.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char waited_for[512];
static int waits;

static void remember_wait(const char *folder, const char *holder, int wait_ms) {
  snprintf(waited_for, sizeof waited_for, "%s, %d ms", holder, wait_ms);
  waits++;
}

static const char *this_process(void) {
  static char name[512];
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  snprintf(name, sizeof name, "process %ld on host %s", (long)getpid(), host);
  return name;
}

static bool is_there(const char *name) {
  return access(io_path(name), F_OK) == 0;
}

TEST_WITH_FOLDER(folder_has_one_writer) {
  char wanted[600];
  const char *folder = io_folder();
  fsdp_checkpoint_lock first, second;
  fsdp_error error;
  waits = 0;
  assert_int_equal(fsdp_checkpoint_lock_take(folder, 0, NULL, &first, &error), FSDP_OK);
  assert_false(is_there(".lock.held"));
  IO_EXPECT(fsdp_checkpoint_lock_take(folder, 200, remember_wait, &second, &error), FSDP_ERR_INPUT, &error,
            "another run", "-e", this_process());
  // Reported once, with the holder.
  snprintf(wanted, sizeof wanted, "%s, 200 ms", this_process());
  assert_string_equal(waited_for, wanted);
  assert_int_equal(waits, 1);
  close(first.descriptor); // killed: what it left behind is not believed
  assert_true(is_there(".lock"));
  assert_int_equal(fsdp_checkpoint_lock_take(folder, 0, remember_wait, &second, &error), FSDP_OK);
  assert_int_equal(waits, 1);
  fsdp_checkpoint_lock_release(folder, &second);
  fsdp_checkpoint_lock_release(folder, &second); // nothing
  assert_false(is_there(".lock"));
  IO_EXPECT(fsdp_checkpoint_lock_take(io_path("none"), 0, NULL, &second, &error), FSDP_ERR_INPUT, &error,
            "none", "No such file");
}

static int refusal;

static int no_flock(int descriptor, int operation) {
  errno = refusal;
  return -1;
}

// What Lustre and NFS answer when they have no locks.
TEST(one_writer_without_flock) {
  static const int reasons[] = {ENOLCK, ENOSYS, EOPNOTSUPP};
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
    const char *folder = io_folder_make();
    fsdp_checkpoint_lock first, second;
    fsdp_error error;
    refusal = reasons[i];
    fsdp_checkpoint_lock_set_flock(no_flock);
    waits = 0;
    assert_int_equal(fsdp_checkpoint_lock_take(folder, 0, NULL, &first, &error), FSDP_OK);
    assert_true(is_there(".lock.held"));
    IO_EXPECT(fsdp_checkpoint_lock_take(folder, 200, remember_wait, &second, &error), FSDP_ERR_INPUT, &error,
              "another run", "-e", this_process(), "since 0 min", "remove", io_path(".lock.held"));
    assert_int_equal(waits, 1);
    fsdp_checkpoint_lock_release(folder, &second); // has none: the first's stays
    assert_true(is_there(".lock.held"));
    fsdp_checkpoint_lock_release(folder, &first);
    assert_false(is_there(".lock.held") || is_there(".lock"));
    fsdp_checkpoint_lock_set_flock(NULL);
    io_folder_remove();
  }
}

// A process that takes the lock and is killed with it.
static void leave_lock(const char *folder) {
  pid_t child = fork();
  if (child == 0) {
    fsdp_checkpoint_lock lock;
    fsdp_error error;
    _exit(fsdp_checkpoint_lock_take(folder, 0, NULL, &lock, &error) == FSDP_OK ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

static void change_held(const char *from, const char *to) {
  char text[1024] = "", out[1024];
  FILE *file = fopen(io_path(".lock.held"), "r");
  assert_non_null(file);
  size_t got = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  char *at = strstr(text, from);
  assert_true(got > 0 && at);
  snprintf(out, sizeof out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  io_write_text(".lock.held", out);
}

TEST_WITH_FOLDER(what_the_dead_hold_is_taken_over) {
  const char *folder = io_folder();
  fsdp_checkpoint_lock lock;
  fsdp_error error;
  char boot[64] = "";
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (file && fgets(boot, sizeof boot, file)) boot[strcspn(boot, "\n")] = 0;
  if (file) fclose(file);
  refusal = ENOLCK;
  fsdp_checkpoint_lock_set_flock(no_flock);
  leave_lock(folder);
  assert_true(is_there(".lock.held"));
  assert_int_equal(fsdp_checkpoint_lock_take(folder, 0, NULL, &lock, &error), FSDP_OK);
  assert_true(lock.held);
  // Its number is another process's now: that one has another start.
  char text[1024] = "", *third;
  file = fopen(io_path(".lock.held"), "r");
  assert_true(fread(text, 1, sizeof text - 1, file) > 0);
  fclose(file);
  third = strchr(strchr(text, '\n') + 1, '\n');
  change_held(third, "\n1\n");
  assert_int_equal(fsdp_checkpoint_lock_take(folder, 0, NULL, &lock, &error), FSDP_OK);
  fsdp_checkpoint_lock_release(folder, &lock);
  // Whether a process of another machine has ended cannot be known.
  leave_lock(folder);
  change_held(boot, "00000000-0000-0000-0000-000000000000");
  IO_EXPECT(fsdp_checkpoint_lock_take(folder, 0, NULL, &lock, &error), FSDP_ERR_INPUT, &error,
            "if it has ended, remove", ".lock.held");
  assert_false(lock.held);
  // Half a record is nobody's that is known to be dead.
  io_write_text(".lock.held", "process 1");
  IO_EXPECT(fsdp_checkpoint_lock_take(folder, 0, NULL, &lock, &error), FSDP_ERR_INPUT, &error, "remove");
  fsdp_checkpoint_lock_set_flock(NULL);
}
