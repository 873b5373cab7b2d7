// What is remembered on disk comes back whole or not at all, and nothing that goes wrong with it is more than
// a line.
#include "runtime/base/cache_file.h"
#include "tests/support/unit_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITERS 4
#define ROUNDS  60

static char root[64], folder[96], file[128];
static const char identity[] = "NVIDIA H200, driver 13.0", lines[] = "one 1\ntwo 22\n";
static char why[FSDP_CACHE_WHY_BYTES];

static int set_up(void **state) {
  strcpy(root, "/tmp/fsdp_cache_XXXXXX");
  if (!mkdtemp(root)) return -1;
  snprintf(folder, sizeof folder, "%s/fsdp", root);
  snprintf(file, sizeof file, "%s/figures", folder);
  return setenv("XDG_CACHE_HOME", root, 1);
}

static int tear_down(void **state) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void write_lines(void) {
  assert_true(fsdp_cache_write("figures", identity, lines, why));
  assert_string_equal(why, "");
}

static void expect_lines(void) {
  char *text = fsdp_cache_read("figures", identity, why);
  assert_non_null(text);
  assert_string_equal(text, lines);
  assert_string_equal(why, "");
  free(text);
}

static void expect_none(const char *reason) {
  assert_null(fsdp_cache_read("figures", identity, why));
  if (*reason ? !strstr(why, reason) : why[0] != 0) fail_msg("'%s' in place of '%s'", why, reason);
}

static size_t read_file(char *bytes, size_t capacity) {
  FILE *stream = fopen(file, "rb");
  assert_non_null(stream);
  size_t count = fread(bytes, 1, capacity, stream);
  fclose(stream);
  return count;
}

static void write_file(const char *bytes, size_t count) {
  FILE *stream = fopen(file, "wb");
  assert_non_null(stream);
  assert_int_equal(fwrite(bytes, 1, count, stream), count);
  assert_int_equal(fclose(stream), 0);
}

static int count_files(void) {
  DIR *list = opendir(folder);
  assert_non_null(list);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(list));) count += entry->d_name[0] != '.';
  closedir(list);
  return count;
}

TEST_WITH(what_is_written_is_read, set_up, tear_down) {
  struct stat status;
  expect_none("");
  write_lines();
  expect_lines();
  assert_int_equal(stat(folder, &status), 0);
  assert_int_equal(status.st_mode & 0777, 0700);
  assert_null(fsdp_cache_read("figures", "NVIDIA H100, driver 13.0", why));
  assert_string_equal(why, "");
  assert_null(fsdp_cache_read("figures", "NVIDIA H200, driver 13.0 and more", why));
  assert_int_equal(count_files(), 1);
}

TEST_WITH(the_folder_is_where_it_belongs, set_up, tear_down) {
  char home[128];
  setenv("HOME", root, 1);
  setenv("XDG_CACHE_HOME", "relative", 1);
  write_lines();
  snprintf(home, sizeof home, "%s/.cache/fsdp/figures", root);
  assert_int_equal(access(home, F_OK), 0);
  unsetenv("XDG_CACHE_HOME");
  expect_lines();
  unsetenv("HOME");
  expect_none("names a folder");
  assert_false(fsdp_cache_write("figures", identity, lines, why));
  assert_non_null(strstr(why, "names a folder"));
}

TEST_WITH(no_damage_is_taken_for_content, set_up, tear_down) {
  char whole[512], damaged[512];
  write_lines();
  const size_t bytes = read_file(whole, sizeof whole);
  for (size_t cut = 0; cut < bytes; cut++) {
    write_file(whole, cut);
    expect_none("is damaged");
  }
  for (size_t at = 0; at < bytes; at++) {
    for (int bit = 0; bit < 8; bit++) {
      memcpy(damaged, whole, bytes);
      damaged[at] = (char)(damaged[at] ^ 1 << bit);
      write_file(damaged, bytes);
      expect_none("is damaged");
    }
  }
  memcpy(damaged, whole, bytes);
  damaged[bytes] = '\n';
  write_file(damaged, bytes + 1);
  expect_none("is damaged");
  write_lines(); // in its place
  expect_lines();
}

TEST_WITH(a_foreign_file_is_not_used, set_up, tear_down) {
  char other[160];
  write_lines();
  assert_int_equal(chmod(file, 0666), 0);
  expect_none("may be written by others");
  assert_int_equal(chmod(file, 0600), 0);
  expect_lines();
  if (geteuid() == 0) {
    assert_int_equal(chown(file, 1, 1), 0);
    expect_none("belongs to another user");
    assert_int_equal(chown(file, 0, 0), 0);
  }
  snprintf(other, sizeof other, "%s.kept", file);
  assert_int_equal(rename(file, other), 0);
  assert_int_equal(symlink(other, file), 0);
  expect_none(strerror(ELOOP));
  assert_int_equal(unlink(file), 0);
  assert_int_equal(mkfifo(file, 0600), 0);
  expect_none("is not a file");
}

TEST_WITH(a_folder_that_takes_nothing, set_up, tear_down) {
  char blocked[96];
  snprintf(blocked, sizeof blocked, "%s/blocked", root);
  FILE *stream = fopen(blocked, "w");
  assert_non_null(stream);
  fclose(stream);
  setenv("XDG_CACHE_HOME", blocked, 1);
  expect_none("");
  assert_false(fsdp_cache_write("figures", identity, lines, why));
  assert_non_null(strstr(why, "cannot be written: Not a directory"));
}

// In a child that may not write a byte to any file, as on a full disk.
TEST_WITH(a_full_disk, set_up, tear_down) {
  int status;
  write_lines();
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    const struct rlimit none = {0, 0};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) _exit(10);
    if (fsdp_cache_write("figures", identity, "other\n", why)) _exit(11);
    _exit(strstr(why, "cannot be written: File too large") ? 0 : 12);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(count_files(), 1); // what was begun is gone
  expect_lines();
}

// A writer's text names it in every line: one that is read is of one writer, whole.
static void print_lines(int writer, char out[2048]) {
  out[0] = 0;
  for (int i = 0; i < 40 + 20 * writer; i++) sprintf(out + strlen(out), "writer %d\n", writer);
}

TEST_WITH(writers_do_not_mix, set_up, tear_down) {
  char expected[WRITERS][2048];
  pid_t children[WRITERS];
  for (int w = 0; w < WRITERS; w++) {
    print_lines(w, expected[w]);
    children[w] = fork();
    assert_true(children[w] >= 0);
    if (children[w] != 0) continue;
    for (int i = 0; i < ROUNDS; i++)
      if (!fsdp_cache_write("figures", identity, expected[w], why)) _exit(1);
    _exit(0);
  }
  int seen = 0;
  for (int left = WRITERS; left > 0;) {
    char *text = fsdp_cache_read("figures", identity, why);
    assert_string_equal(why, "");
    if (text) {
      int writer;
      assert_int_equal(sscanf(text, "writer %d", &writer), 1);
      assert_string_equal(text, expected[writer]);
      seen++;
      free(text);
    }
    int status;
    pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      assert_int_equal(status, 0);
      left--;
    }
  }
  assert_true(seen > 0);
  assert_int_equal(count_files(), 1);
}
