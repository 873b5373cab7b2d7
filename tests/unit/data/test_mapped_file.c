// Files that become shorter while they are mapped: what is gone is read as zeros, and the file is named.
#include "runtime/data/mapped_file.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 5 };

static const char *write_pages(const char *name) {
  static unsigned char data[PAGES * PAGE];
  memset(data, 'x', sizeof data);
  return io_write(name, data, sizeof data);
}

// A child process, for a page of a lost file stays lost: its status.
static int in_child(void (*run)(void)) {
  pid_t child = fork();
  if (child == 0) {
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    run();
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return status;
}

#define REQUIRE(what)                                                                                        \
  if (!(what)) _exit(__LINE__ % 200 + 1)

static void read_lost_pages(void) {
  fsdp_mapped_file first, second, third;
  fsdp_error error;
  REQUIRE(fsdp_mapped_file_open(write_pages("one.txt"), &first, &error) == FSDP_OK);
  REQUIRE(fsdp_mapped_file_open(write_pages("two.txt"), &second, &error) == FSDP_OK);
  REQUIRE(truncate(io_path("two.txt"), PAGE + 1) == 0);
  REQUIRE(fsdp_mapped_file_lost(&error) == FSDP_OK);
  REQUIRE(second.bytes[0] == 'x' && second.bytes[PAGE] == 'x');
  REQUIRE(fsdp_mapped_file_lost(&error) == FSDP_OK); // not read yet
  for (int page = PAGES - 1; page >= 2; page--) REQUIRE(second.bytes[page * PAGE + 7] == 0);
  REQUIRE(first.bytes[PAGES * PAGE - 1] == 'x' && second.bytes[0] == 'x');
  REQUIRE(fsdp_mapped_file_lost(&error) == FSDP_ERR_INPUT);
  REQUIRE(strstr(error.message, io_path("two.txt")) && strstr(error.message, "truncated"));
  // It is named as long as the process lives.
  fsdp_mapped_file_close(&second);
  REQUIRE(fsdp_mapped_file_open(write_pages("three.txt"), &third, &error) == FSDP_OK);
  REQUIRE(fsdp_mapped_file_lost(&error) == FSDP_ERR_INPUT && strstr(error.message, "two.txt"));
  fsdp_mapped_file_close(&first);
  fsdp_mapped_file_close(&third);
}

TEST(what_is_gone_is_zeros) {
  assert_int_equal(in_child(read_lost_pages), 0);
}

// Of memory that is no mapped file the signal is what it was.
static void read_other_memory(void) {
  fsdp_mapped_file file;
  fsdp_error error;
  signal(SIGBUS, SIG_DFL);
  REQUIRE(fsdp_mapped_file_open(write_pages("mine.txt"), &file, &error) == FSDP_OK);
  int descriptor = open(write_pages("other.txt"), O_RDONLY);
  volatile unsigned char *other = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, descriptor, 0);
  REQUIRE(other != MAP_FAILED && truncate(io_path("other.txt"), 0) == 0);
  _exit(other[PAGE]);
}

TEST(other_memory_ends_the_process) {
  int status = in_child(read_other_memory);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGBUS);
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
