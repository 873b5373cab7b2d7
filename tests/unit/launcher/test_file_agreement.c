// Whether ranks read the same files: ranks are threads with folders of their own, on nodes that are named,
// and what they exchange is counted.
#include "bench/world_inproc.h"
#include "launcher/train/file_agreement.h"
#include "runtime/base/check.h"
#include "runtime/base/progress.h"
#include "runtime/data/file_identity.h"
#include "tests/support/draws.h"
#include "tests/support/io_files.h"
#include "tests/support/unit_test.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { NODE_RANKS = 4, RANKS_MAX = 256 };

// ---- A job of threads

typedef struct job {
  int size;
  int files; // "0.bin", "1.bin", ...
  const char *mounts;
  bool sizes_only;
  const char *(*folder_of)(int rank); // the working directory
} job;

typedef struct member {
  const job *job;
  fsdp_world world;
  fsdp_status status;
  fsdp_error error;
  fsdp_file_agreement cost;
} member;

static int node_of[RANKS_MAX], first_of[RANKS_MAX];
static char hosts[RANKS_MAX][FSDP_HOST_NAME_BYTES];

static void *run_member(void *argument) {
  member *m = argument;
  fsdp_file_list list = {0};
  char name[32];
  // The working directory is the thread's own from here on.
  FSDP_CHECK(unshare(CLONE_FS) == 0 && chdir(m->job->folder_of(m->world.rank)) == 0, "no folder");
  for (int f = 0; f < m->job->files; f++) {
    snprintf(name, sizeof name, "%d.bin", f);
    fsdp_file_list_add(&list, "data", name);
  }
  const fsdp_file_comparison comparison = {
      .list = &list, .world = &m->world, .sizes_only = m->job->sizes_only, .mounts = m->job->mounts};
  m->status = fsdp_file_list_agree(&comparison, &m->cost, &m->error);
  fsdp_file_list_destroy(&list);
  return NULL;
}

// What all ranks returned, which is the same of all. Adds up in `sent` the most bytes that a rank has sent,
// and in `read` the pieces of files that all have read.
static member run_job(const job *j, int64_t *sent, int64_t *read) {
  fsdp_inproc_links *links = fsdp_inproc_links_create(j->size);
  member *members = fsdp_alloc_zeroed((size_t)j->size, sizeof *members);
  pthread_t *threads = fsdp_alloc((size_t)j->size * sizeof *threads);
  pthread_attr_t small;
  uint64_t before = fsdp_progress_count();
  assert_int_equal(pthread_attr_init(&small), 0);
  assert_int_equal(pthread_attr_setstacksize(&small, 1 << 19), 0);
  for (int r = 0; r < j->size; r++) {
    node_of[r] = r / NODE_RANKS;
    first_of[node_of[r]] = r / NODE_RANKS * NODE_RANKS;
    snprintf(hosts[node_of[r]], sizeof hosts[0], "node%d", node_of[r]);
  }
  for (int r = 0; r < j->size; r++) {
    members[r] = (member){.job = j, .world = {.rank = r, .size = j->size, .node_index = node_of[r]}};
    members[r].world.link = fsdp_inproc_link(links, r);
    members[r].world.nodes = (fsdp_world_nodes){.index = node_of, .first = first_of, .hosts = hosts};
    assert_int_equal(pthread_create(&threads[r], &small, run_member, &members[r]), 0);
  }
  for (int r = 0; r < j->size; r++) {
    pthread_join(threads[r], NULL);
    fsdp_link_counts counts = fsdp_inproc_link_counts(links, r);
    if (sent && counts.sent_bytes > *sent) *sent = counts.sent_bytes;
    if (members[r].status != members[0].status)
      fail_msg("rank %d returned %d, rank 0 %d", r, members[r].status, members[0].status);
    if (members[r].status != FSDP_OK) assert_string_equal(members[r].error.message, members[0].error.message);
  }
  if (read) *read = (int64_t)(fsdp_progress_count() - before);
  member result = members[0];
  pthread_attr_destroy(&small);
  free(threads);
  free(members);
  fsdp_inproc_links_destroy(links);
  return result;
}

// ---- Folders

static char folder_a[512], folder_b[512]; // io_path is not for threads

static const char *shared_folder(int rank) {
  return folder_a;
}

// Nodes 0 and 2 have one, the others another.
static const char *folder_of_half(int rank) {
  return rank / NODE_RANKS % 2 ? folder_b : folder_a;
}

// Rank 5 alone has another.
static const char *folder_of_one(int rank) {
  return rank == 5 ? folder_b : folder_a;
}

static void write_files(const char *folder, int files, int bytes) {
  unsigned char *data = fsdp_alloc((size_t)bytes);
  char name[64];
  mkdir(io_path(folder), 0777);
  snprintf(folder_a, sizeof folder_a, "%s", io_path("a"));
  snprintf(folder_b, sizeof folder_b, "%s", io_path("b"));
  for (int f = 0; f < files; f++) {
    for (int i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 7 + f);
    snprintf(name, sizeof name, "%s/%d.bin", folder, f);
    io_write(name, data, bytes);
  }
  free(data);
}

// A mount table in which this machine's disk is `type` from `source`.
static const char *write_mounts(const char *type, const char *source) {
  struct stat information;
  char text[512];
  assert_int_equal(stat(io_path("a"), &information), 0);
  snprintf(text, sizeof text,
           "22 27 0:99999 / /proc rw,relatime - proc proc rw\n"
           "36 35 %u:%u / /data\\040set rw,noatime shared:1 - %s %s rw,vers=4.2\n",
           major(information.st_dev), minor(information.st_dev), type, source);
  return io_write_text("mounts", text);
}

// ---- Tests

TEST(one_shared_file_system_is_not_read) {
  int64_t read = 0;
  write_files("a", 3, 1000);
  job j = {
      .size = 12, .files = 3, .mounts = write_mounts("nfs4", "server:/export"), .folder_of = shared_folder};
  member m = run_job(&j, NULL, &read);
  assert_int_equal(m.status, FSDP_OK);
  assert_int_equal(m.cost.bytes, 0);
  assert_int_equal(read, 0);
  // On disks of their own equal numbers mean nothing: each node reads each file once.
  j.mounts = write_mounts("ext4", "/dev/sda1");
  m = run_job(&j, NULL, &read);
  assert_int_equal(m.status, FSDP_OK);
  assert_int_equal(m.cost.bytes, 3000);
  assert_int_equal(read, 3 * 3);
}

// Each copy is read once, however many nodes see it.
TEST(copies_are_read_once) {
  int64_t read = 0;
  write_files("a", 5, 1000);
  write_files("b", 5, 1000);
  const job j = {.size = 16,
                 .files = 5,
                 .mounts = write_mounts("lustre", "10.0.0.1@tcp:/work"),
                 .folder_of = folder_of_half};
  member m = run_job(&j, NULL, &read);
  assert_int_equal(m.status, FSDP_OK);
  assert_int_equal(m.cost.bytes, 5000);
  assert_int_equal(read, 2 * 5);
}

// The ranks of a node share the slices of a large file, and one that differs is found in any of them.
TEST(slices_are_shared) {
  enum { MIB = 1 << 20, BYTES = 50 * MIB + 7 };
  int64_t read = 0;
  write_files("a", 1, BYTES);
  write_files("b", 1, BYTES);
  const job j = {
      .size = 8, .files = 1, .mounts = write_mounts("nfs", "server:/export"), .folder_of = folder_of_half};
  assert_int_equal(run_job(&j, NULL, &read).status, FSDP_OK);
  assert_int_equal(read, 2 * 51);
  for (int slice = 0; slice < 4; slice++) {
    FILE *file = fopen(io_path("b/0.bin"), "r+");
    assert_int_equal(fseek(file, 16L * slice * MIB, SEEK_SET), 0);
    const int was = fgetc(file);
    fseek(file, -1, SEEK_CUR);
    fputc(was ^ 1, file);
    fclose(file);
    const member m = run_job(&j, NULL, NULL);
    assert_int_equal(m.status, FSDP_ERR_INPUT);
    assert_non_null(strstr(m.error.message, "the same size but different contents"));
    file = fopen(io_path("b/0.bin"), "r+");
    fseek(file, 16L * slice * MIB, SEEK_SET);
    fputc(was, file);
    fclose(file);
  }
}

static void expect_message(const job *j, const char *const *parts) {
  member m = run_job(j, NULL, NULL);
  io_expect(m.status, FSDP_ERR_INPUT, &m.error, parts);
}
#define EXPECT_MESSAGE(j, ...) expect_message(j, (const char *const[]){__VA_ARGS__, NULL})

TEST(what_differs_is_named) {
  write_files("a", 9, 1000);
  write_files("b", 9, 1000);
  job j = {
      .size = 12, .files = 9, .mounts = write_mounts("nfs", "server:/export"), .folder_of = folder_of_half};
  FILE *file = fopen(io_path("b/6.bin"), "r+");
  assert_int_equal(fseek(file, 999, SEEK_SET), 0);
  fputc(0, file);
  fclose(file);
  EXPECT_MESSAGE(&j, "the ranks' data files differ", "/a/6.bin on rank 0 (host node0)",
                 "/b/6.bin on rank 4 (host node1)", "the same size but different contents");
  j.folder_of = folder_of_one;
  EXPECT_MESSAGE(&j, "/a/6.bin on rank 0 (host node0)", "/b/6.bin on rank 5 (host node1)", "contents");
  io_write("b/3.bin", "short", 5);
  EXPECT_MESSAGE(&j, "/a/3.bin has 1000 bytes on rank 0 (host node0)",
                 "/b/3.bin has 5 on rank 5 (host node1)");
  unlink(io_path("b/1.bin"));
  EXPECT_MESSAGE(&j, "1.bin: rank 5 (host node1) cannot read this data file (No such file",
                 "rank 0 (host node0) can");
  mkdir(io_path("b/1.bin"), 0777);
  EXPECT_MESSAGE(&j, "1.bin: rank 5 (host node1) cannot read", "it is not a regular file");
  unlink(io_path("a/0.bin"));
  EXPECT_MESSAGE(&j, "0.bin: rank 0 (host node0) cannot read", "rank 5 (host node1) can");
  rmdir(io_path("b/1.bin"));
  write_files("a", 9, 1000);
}

// A thousand files, at worst a copy on every node: what a rank sends grows with the logarithm of the ranks,
// and with 8 bytes of each.
TEST(a_thousand_files_cost_little) {
  enum { FILES = 1000, TARGET = 16384 };
  int64_t sent[3] = {0};
  const int first = test_sanitized() ? 16 : 64;
  write_files("a", FILES, 8);
  job j = {.files = FILES, .mounts = write_mounts("xfs", "/dev/sda1"), .folder_of = shared_folder};
  for (int i = 0; i < 3; i++) {
    j.size = first << i;
    assert_int_equal(run_job(&j, &sent[i], NULL).status, FSDP_OK);
    print_message("%d ranks, %d files, a copy per node: a rank sends at most %lld bytes\n", j.size, FILES,
                  (long long)sent[i]);
  }
  // Of a doubling: what the gather of 8 bytes a rank takes more, and one more round of everything else.
  int64_t rounds = sent[1] - sent[0] - 8 * first, more = sent[2] - sent[1] - 16 * first;
  assert_in_range(more, rounds - rounds / 50, rounds + rounds / 50);
  int64_t at_target = sent[2];
  for (int ranks = j.size; ranks < TARGET; ranks *= 2) at_target += rounds + 8 * ranks;
  print_message("%d ranks: %lld bytes\n", TARGET, (long long)at_target);
  assert_true(at_target < 10 << 20);
  int64_t shared = 0;
  j.mounts = write_mounts("gpfs", "gpfs0");
  assert_int_equal(run_job(&j, &shared, NULL).status, FSDP_OK);
  print_message("%d ranks, one shared file system: %lld bytes\n", j.size, (long long)shared);
  assert_true(shared < sent[2]);
}

TEST(identities_follow_the_mount) {
  static const struct {
    const char *type, *source;
    bool shared;
  } cases[] = {{"nfs", "server:/export", true},
               {"nfs4", "[fd00::1]:/export", true},
               {"lustre", "a@o2ib:b@o2ib:/s", true},
               {"fuse.glusterfs", "host:/volume", true},
               {"fuse.sshfs", "me@host:/x", false},
               {"fuse", "host:/x", false},
               {"9p", "share", false},
               {"ext4", "/dev/sda1", false},
               {"nfsd", "nfsd", false},
               {"tmpfs", "nfs", false}};
  struct stat file = {
      .st_dev = makedev(0, 51), .st_ino = 7, .st_size = 9, .st_mtim = {3, 4}, .st_ctim = {5, 6}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char here[256], there[256];
    // Clients number devices, and name mount points, as they like.
    snprintf(here, sizeof here, "36 35 0:51 / /a rw shared:1 - %s %s rw\n", cases[i].type, cases[i].source);
    snprintf(there, sizeof there, "1 2 0:51 / /x rw - ext4 /dev/sdb rw\n9 1 0:77 / /b rw - %s %s rw\n",
             cases[i].type, cases[i].source);
    struct stat other = file;
    other.st_dev = makedev(0, 77);
    bool same = fsdp_file_identity(&file, 0, here) == fsdp_file_identity(&other, 1, there);
    if (same != cases[i].shared) fail_msg("%s from %s: %d", cases[i].type, cases[i].source, same);
    // Everything else counts.
    struct stat changed[] = {file, file, file, file, file};
    changed[0].st_ino++, changed[1].st_size++, changed[2].st_mtim.tv_nsec++, changed[3].st_ctim.tv_nsec++;
    for (int k = 0; k < 4; k++)
      assert_true(fsdp_file_identity(&changed[k], 0, here) != fsdp_file_identity(&file, 0, here));
    assert_true(fsdp_file_identity(&changed[4], 0, here) == fsdp_file_identity(&file, 0, here));
  }
  const char *one = "36 35 0:51 / /a rw - nfs server:/a rw\n",
             *two = "36 35 0:51 / /a rw - nfs server:/b rw\n";
  assert_true(fsdp_file_identity(&file, 0, one) != fsdp_file_identity(&file, 0, two));
  assert_true(fsdp_file_identity(&file, 0, "") != fsdp_file_identity(&file, 1, ""));
}

int main(void) {
  return run_all_tests(io_set_up, io_tear_down);
}
