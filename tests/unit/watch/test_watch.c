// The board's sentences, and the watch: forked processes of two nodes, one killed, stopped, cut off or slow.
#include "runtime/base/clock.h"
#include "runtime/base/progress.h"
#include "runtime/watch/error_file.h"
#include "runtime/watch/watch.h"
#include "runtime/watch/watch_judge.h"
#include "tests/support/unit_test.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 9 };

// ---- Sentences

static fsdp_board_rank alive(int rank, const char *host) {
  return (fsdp_board_rank){
      .rank = rank, .view = {.beat = 9, .first_step = 100}, .state = FSDP_RANK_ALIVE, .host = host};
}

static void explain(const fsdp_board_rank *ranks, int count, int self, const char *wanted) {
  char text[1024];
  fsdp_board_explain(ranks, count, self, text, sizeof text);
  assert_string_equal(text, wanted);
}

TEST(test_who_waits_for_whom) {
  fsdp_board_rank ranks[3] = {alive(0, "a"), alive(1, "a"), alive(2, "b")};
  ranks[0].view.lanes[FSDP_STREAM_GATHER].waits = 1;
  ranks[0].view.lanes[FSDP_STREAM_GATHER].current = fsdp_place_of(17, 412);
  ranks[1].view.lanes[FSDP_STREAM_GATHER].waits = 1;
  ranks[1].view.lanes[FSDP_STREAM_GATHER].current = fsdp_place_of(17, 412);
  ranks[2].view.lanes[FSDP_STREAM_COMPUTE].finished = fsdp_place_of(17, 398);
  ranks[2].view.lanes[FSDP_STREAM_GATHER].finished = fsdp_place_of(17, 390);
  // The reporting rank reports its own wait; a rank that does not wait is waited for.
  explain(ranks, 3, 1,
          "rank 1 (host a) waits at instruction 412, step 117; rank 2 (host b) last finished 398, step 117");
  // A rank without a heartbeat is worse than one that does not wait.
  ranks[1].state = FSDP_RANK_SILENT;
  ranks[1].view.process = 77;
  ranks[1].view.lanes[FSDP_STREAM_GATHER].finished = fsdp_place_of(16, 5);
  explain(ranks, 3, 0,
          "rank 0 (host a) waits at instruction 412, step 117; rank 1 (host a) last finished 5, step 116 and "
          "shows no sign of life: its process 77 is stopped, or its machine hangs");
  ranks[2].state = FSDP_RANK_ENDED;
  ranks[2].view.process = 78;
  explain(
      ranks, 3, 0,
      "rank 0 (host a) waits at instruction 412, step 117; rank 2 (host b) last finished 398, step 117 and "
      "has ended (process 78): it was killed or crashed");
}

TEST(test_exchanges_and_the_furthest_behind) {
  fsdp_board_rank ranks[3] = {alive(0, "a"), alive(1, "b"), alive(2, "b")};
  for (int r = 0; r < 3; r++) {
    ranks[r].view.activity = FSDP_ACTIVITY_SAVING;
    ranks[r].view.exchanges = r == 2 ? 11 : 12;
    ranks[r].view.lanes[FSDP_LANE_MAIN].waits = 1;
  }
  explain(ranks, 3, 0,
          "rank 0 (host a) waits for all ranks in exchange 12, while saving; rank 2 (host b) has come to "
          "exchange 11, while saving and waits too");
  ranks[1].state = ranks[2].state = FSDP_RANK_UNREACHABLE;
  ranks[2].view.beat = 0;
  explain(
      ranks, 3, 0,
      "rank 0 (host a) waits for all ranks in exchange 12, while saving; rank 1 (host b) has come to "
      "exchange 12, while saving and cannot be reached: it is stopped, or its machine or the network is "
      "down; rank 2 (host b) has not been heard of and cannot be reached: it is stopped, or its machine or "
      "the network is down");
}

TEST(test_progress_is_seen) {
  static fsdp_board_slot slot;
  fsdp_board_view before, after;
  fsdp_board_read(&slot, &before);
  atomic_store(&slot.beat, 5);
  fsdp_board_read(&slot, &after);
  assert_false(fsdp_board_moved(&before, &after)); // a heartbeat is no progress
  fsdp_board_lane *lane = &slot.lanes[FSDP_STREAM_REDUCE];
  fsdp_lane_begin(lane, fsdp_place_of(3, 0));
  fsdp_board_read(&slot, &after);
  assert_true(fsdp_board_moved(&before, &after));
  fsdp_lane_end(lane, fsdp_place_of(3, 0));
  fsdp_board_read(&slot, &before);
  assert_true(fsdp_board_moved(&after, &before));
  assert_int_equal(fsdp_board_step(&before), 3);
  fsdp_lane_wait(lane, true);
  fsdp_board_read(&slot, &after);
  assert_int_equal(fsdp_board_waiting_lane(&after), FSDP_STREAM_REDUCE);
  assert_false(fsdp_board_moved(&before, &after));
  // Of several the one at the earliest instruction, and streams before the main thread.
  fsdp_lane_begin(lane, fsdp_place_of(4, 137));
  fsdp_lane_begin(&slot.lanes[FSDP_STREAM_TENSOR], fsdp_place_of(4, 35));
  fsdp_lane_begin(&slot.lanes[FSDP_STREAM_CONTEXT], fsdp_place_of(4, 20)); // does not wait
  fsdp_lane_wait(&slot.lanes[FSDP_STREAM_TENSOR], true);
  fsdp_lane_wait(&slot.lanes[FSDP_LANE_MAIN], true);
  fsdp_board_read(&slot, &after);
  assert_int_equal(fsdp_board_waiting_lane(&after), FSDP_STREAM_TENSOR);
  fsdp_lane_wait(&slot.lanes[FSDP_STREAM_TENSOR], false);
  fsdp_lane_wait(lane, false);
  fsdp_board_read(&slot, &after);
  assert_int_equal(fsdp_board_waiting_lane(&after), FSDP_LANE_MAIN);
  static fsdp_board_slot copy;
  fsdp_board_write(&copy, &after);
  fsdp_board_read(&copy, &before);
  assert_memory_equal(&before, &after, sizeof before);
}

TEST(test_places) {
  assert_true(fsdp_place_of(0, 0) != 0);
  const int64_t steps[] = {0, 1, 1 << 24};
  const int positions[] = {0, 412, 1000000};
  for (int s = 0; s < 3; s++) {
    for (int p = 0; p < 3; p++) {
      fsdp_place place = fsdp_place_of(steps[s], positions[p]);
      assert_int_equal(fsdp_place_step(place), steps[s]);
      assert_int_equal(fsdp_place_position(place), positions[p]);
    }
  }
}

// ---- Giving way

// Four nodes of two ranks in a circle, as node `own` sees them 10 s after the start with a limit of 8 s: rank
// 7 of node 3 has no heartbeat, rank 6 has one if `home`.
static fsdp_watch_known four_nodes(fsdp_watch_seen *ranks, int own, bool home) {
  for (int r = 0; r < 8; r++) {
    bool silent = r == 7 || (r == 6 && !home);
    ranks[r] = (fsdp_watch_seen){
        .rank = r, .node = r / 2 * 2, .local = r / 2 == own, .beat_ms = silent ? 1000 : 10000, .handle = -1};
  }
  return (fsdp_watch_known){.ranks = ranks, .count = 8, .self = 2 * own, .node = 2 * own, .limit_ms = 8000};
}

TEST(test_who_speaks_first) {
  fsdp_watch_seen ranks[8];
  for (int home = 0; home < 2; home++) {
    for (int own = 0; own < 4; own++) {
      fsdp_watch_known known = four_nodes(ranks, own, home);
      if (own == 3 && !home) continue;
      assert_int_equal(fsdp_watch_judge(&known, 10000), FSDP_VERDICT_SILENT);
      int64_t way_ms = fsdp_watch_courtesy_ms(&known, FSDP_VERDICT_SILENT, 10000);
      // A node that is gone: the first node at once. A rank: its own node at once.
      const int64_t wanted_ms[2][4] = {{0, 1000, 2000, 0}, {1000, 2000, 3000, 0}};
      assert_int_equal(way_ms, wanted_ms[home][own]);
    }
  }
  // To nodes that are gone too nobody gives way.
  fsdp_watch_known known = four_nodes(ranks, 2, false);
  for (int r = 0; r < 4; r++) ranks[r].beat_ms = 2000;
  assert_int_equal(fsdp_watch_courtesy_ms(&known, FSDP_VERDICT_SILENT, 10000), 0);
}

// A stopped rank keeps its node from leaving, whether or not it has come to the end; mpirun can be reached.
// Before any SIGCONT.
TEST(test_a_stopped_rank_is_no_cut_link) {
  fsdp_watch_seen ranks[8];
  fsdp_watch_known known = four_nodes(ranks, 3, true);
  for (int r = 0; r < 6; r++) ranks[r].view.activity = FSDP_ACTIVITY_LEFT;
  known.leaving = true;
  assert_true(fsdp_watch_is_cut_off(&known, FSDP_VERDICT_STUCK, 10000));
  ranks[7].view.process = 77;
  assert_false(fsdp_watch_is_cut_off(&known, FSDP_VERDICT_STUCK, 10000));
  ranks[7].view.activity = FSDP_ACTIVITY_LEFT;
  assert_true(fsdp_watch_is_stopped(&known, &ranks[7], 10000));
  assert_false(fsdp_watch_is_cut_off(&known, FSDP_VERDICT_STUCK, 10000));
  known.of_daemon = true;
  assert_false(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_STUCK, 10000));
  ranks[7].ended = true;
  assert_true(fsdp_watch_is_cut_off(&known, FSDP_VERDICT_STUCK, 10000));
  assert_true(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_STUCK, 10000));
}

// At the end of a run a rank that has left reports those of its node that have not.
TEST(test_who_is_silent_at_the_end) {
  fsdp_watch_seen ranks[8];
  for (int own = 0; own < 4; own++) {
    fsdp_watch_known known = four_nodes(ranks, own, true);
    ranks[6].view.activity = FSDP_ACTIVITY_LEFT;
    assert_false(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_SILENT, 10000)); // it still trains
    ranks[2 * own].view.activity = FSDP_ACTIVITY_FINISHING;
    const bool other = own != 3;
    assert_int_equal(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_SILENT, 10000), other);
    ranks[own == 1 ? 4 : 2].beat_ms = 1000; // of a node of which none has left
    assert_false(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_SILENT, 10000));
  }
  fsdp_watch_known known = four_nodes(ranks, 0, true);
  ranks[0].view.activity = ranks[6].view.activity = FSDP_ACTIVITY_FINISHING;
  assert_false(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_SILENT, 10000));
  fsdp_job_continued(); // by mpirun
  assert_true(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_SILENT, 10000));
  ranks[0].view.activity = FSDP_ACTIVITY_TRAINING;
  assert_false(fsdp_watch_is_reported_elsewhere(&known, FSDP_VERDICT_SILENT, 10000));
  while (fsdp_job_was_continued(5)) fsdp_sleep_ms(1);
}

// Of a process that the machine runs late, less time has passed.
TEST(test_time_of_the_slowest) {
  fsdp_watch_seen ranks[8];
  fsdp_watch_known known = four_nodes(ranks, 1, false);
  for (int r = 0; r < 8; r++) ranks[r].view.beat = ranks[r].suspect_beat = 40 + (uint64_t)r;
  for (int r = 0; r < 6; r++) ranks[r].view.beat += 100;
  assert_int_equal(fsdp_watch_waited_ms(&known, 9000, 10000), 1000);
  ranks[4].view.beat -= 96;
  assert_int_equal(fsdp_watch_waited_ms(&known, 9000, 10000), 4 * FSDP_WATCH_BEAT_MS);
  ranks[4].beat_ms = 6000; // it is missed by now
  assert_int_equal(fsdp_watch_waited_ms(&known, 9000, 10000), 1000);
}

// ---- Processes

// What the test does to all of them.
typedef struct strings {
  _Atomic int cut;    // mail between nodes is lost
  _Atomic int frozen; // no rank makes progress any more
  _Atomic int twice;  // each mail comes twice
  _Atomic int way_ms; // of a mail
} strings;

// Mail between the ranks: datagrams.
struct packet {
  int64_t due_ms;
  int from;
  unsigned char data[8192];
};
typedef struct post_office {
  int sockets[RANKS_MAX][2]; // to rank, of rank
  strings *strings;
  int rank;
} post_office;

static bool post(void *owner, int rank, const void *data, int bytes) {
  post_office *self = owner;
  struct packet packet = {.from = self->rank, .due_ms = fsdp_now_ms() + atomic_load(&self->strings->way_ms)};
  if (atomic_load(&self->strings->cut)) return true;
  memcpy(packet.data, data, (size_t)bytes);
  int count = atomic_load(&self->strings->twice) ? 2 : 1;
  bool sent = true;
  for (int i = 0; i < count; i++)
    sent = send(self->sockets[rank][0], &packet, offsetof(struct packet, data) + (size_t)bytes,
                MSG_DONTWAIT) > 0 &&
           sent;
  return sent;
}

static int take(void *owner, void *data, int capacity, int *from) {
  post_office *self = owner;
  struct packet packet;
  const ssize_t head = offsetof(struct packet, data);
  int socket = self->sockets[self->rank][1];
  if (recv(socket, &packet, (size_t)head, MSG_DONTWAIT | MSG_PEEK) < head || packet.due_ms > fsdp_now_ms())
    return 0;
  ssize_t got = recv(socket, &packet, sizeof packet, MSG_DONTWAIT) - head;
  if (got <= 0 || got > capacity || atomic_load(&self->strings->cut)) return 0;
  memcpy(data, packet.data, (size_t)got);
  *from = packet.from;
  return (int)got;
}

// Two nodes, a and b, of two ranks; or nine of one, a to i, of which each hears of those at distances 1, 2
// and 4.
typedef struct job {
  int size, node_ranks;
  void *memory[RANKS_MAX]; // of the nodes
  post_office office;
  pid_t processes[RANKS_MAX];
  int errors; // a pipe's end: everyone's standard error
  char text[8192];
  int status[RANKS_MAX];
} job;

static void sleep_ms(int64_t ms) {
  nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static const char *error_folder; // of the next job's ranks; NULL: none

// Many nodes wait longer: where each hears of some alone, one that a loaded machine keeps from its ticks
// passes nothing on.
static int limit_s(const job *j) {
  return j->node_ranks == 1 ? 8 : 4;
}

// What a rank does: `slow` works for two limits, marking progress, while the others wait for it.
static void live(job *j, int rank, int slow) {
  static const char *const names[RANKS_MAX] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
  int node[RANKS_MAX];
  const char *hosts[RANKS_MAX];
  for (int r = 0; r < j->size; r++) {
    node[r] = r / j->node_ranks * j->node_ranks;
    hosts[r] = names[r / j->node_ranks];
  }
  j->office.rank = rank;
  if (error_folder) fsdp_error_file_open(error_folder, rank, hosts[rank], false);
  fsdp_mail mail = {.owner = &j->office, .post = post, .take = take};
  fsdp_watch_config config = {.rank = rank,
                              .size = j->size,
                              .circle = j->size == RANKS_MAX ? 3 : 0,
                              .node = node,
                              .hosts = hosts,
                              .memory = j->memory[rank / j->node_ranks],
                              .mail = &mail};
  fsdp_watch *watch = fsdp_watch_start(&config);
  fsdp_watch_set_limit(watch, limit_s(j));
  char advice[32];
  snprintf(advice, sizeof advice, "As rank %d says", rank);
  fsdp_watch_set_advice(watch, advice);
  fsdp_board_lane *lane = &fsdp_board_mine->lanes[FSDP_STREAM_GATHER];
  if (rank == slow) {
    for (int i = 0; i < 2 * limit_s(j) * 20; i++) {
      fsdp_progress_mark();
      sleep_ms(50);
    }
  } else {
    while (!atomic_load(&j->office.strings->frozen)) {
      fsdp_lane_move(lane);
      sleep_ms(10);
    }
    fsdp_lane_begin(lane, fsdp_place_of(7, 42));
    fsdp_lane_wait(lane, true);
    sleep_ms(slow < 0 ? 120 * 1000 : (2 * limit_s(j) + 1) * 1000);
    fsdp_lane_wait(lane, false);
  }
  fsdp_watch_leave(watch);
  fsdp_watch_stop(watch);
  _exit(0);
}

static void start_nodes(job *j, int size, int node_ranks, int slow) {
  memset(j, 0, sizeof *j);
  j->size = size;
  j->node_ranks = node_ranks;
  int64_t bytes = fsdp_watch_memory_bytes(size);
  for (int n = 0; n < size / node_ranks; n++) {
    j->memory[n] = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(j->memory[n] != MAP_FAILED);
  }
  j->office.strings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(j->office.strings != MAP_FAILED);
  for (int r = 0; r < size; r++)
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, j->office.sockets[r]), 0);
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  for (int r = 0; r < size; r++) {
    j->processes[r] = fork();
    assert_true(j->processes[r] >= 0);
    if (j->processes[r] != 0) continue;
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    live(j, r, slow);
  }
  close(ends[1]);
  j->errors = ends[0];
  // All have a heartbeat before anything happens to one of them.
  for (int r = 0; r < size; r++) {
    const fsdp_board_slot *slots = fsdp_watch_slots(j->memory[r / node_ranks]);
    while (atomic_load(&slots[r].beat) < 4) sleep_ms(10);
  }
}

static void start(job *j, int slow) {
  start_nodes(j, 4, 2, slow);
}

// From here on ranks wait for each other, until all have ended.
static void finish(job *j) {
  atomic_store(&j->office.strings->frozen, 1);
  size_t used = 0;
  for (ssize_t got; (got = read(j->errors, j->text + used, sizeof j->text - 1 - used)) > 0;)
    used += (size_t)got;
  j->text[used] = 0;
  for (int r = 0; r < j->size; r++) waitpid(j->processes[r], &j->status[r], 0);
  close(j->errors);
  for (int r = 0; r < j->size; r++) close(j->office.sockets[r][0]), close(j->office.sockets[r][1]);
  for (int n = 0; n < j->size / j->node_ranks; n++)
    munmap(j->memory[n], (size_t)fsdp_watch_memory_bytes(j->size));
  munmap(j->office.strings, 4096);
}

static int count_of(const char *text, const char *part) {
  int count = 0;
  for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) count++;
  return count;
}

static void expect_status(const job *j, int rank, int status) {
  assert_true(WIFEXITED(j->status[rank]));
  assert_int_equal(WEXITSTATUS(j->status[rank]), status);
}

static void expect_one_message(const job *j, const char *part) {
  if (count_of(j->text, "error: ") != 1 || !strstr(j->text, part)) {
    fail_msg("not one message with '%s', but: %s", part, j->text);
  }
}

TEST(test_a_killed_rank) {
  job j;
  start(&j, -1);
  kill(j.processes[2], SIGKILL);
  finish(&j);
  expect_one_message(&j, "rank 2 (host b) has finished no instruction yet, while starting and has ended");
  expect_one_message(&j, "is the cause. As rank 2 says\n"); // of node b the lowest
  for (int r = 0; r < j.size; r++) {
    if (r != 2) expect_status(&j, r, 5);
  }
}

// The rank that reports for its node is stopped: another rank takes over.
TEST(test_a_stopped_rank) {
  job j;
  start(&j, -1);
  kill(j.processes[2], SIGSTOP);
  finish(&j); // its own node's other rank ends it: nothing else would
  expect_one_message(&j, "rank 3 (host b) waits at instruction 42, step 7; rank 2 (host b)");
  expect_one_message(&j, "shows no sign of life");
  assert_true(WIFSIGNALED(j.status[2]) && WTERMSIG(j.status[2]) == SIGKILL);
  for (int r = 0; r < j.size; r++) {
    if (r != 2) expect_status(&j, r, 5);
  }
}

TEST(test_a_cut_link) {
  job j;
  start(&j, -1);
  atomic_store(&j.office.strings->cut, 1);
  finish(&j);
  assert_int_equal(count_of(j.text, "error: "), 2); // one a side
  assert_non_null(strstr(j.text, "rank 2 (host b) has finished no instruction yet, while starting and cannot "
                                 "be reached"));
  assert_non_null(strstr(j.text, "rank 0 (host a) has finished no instruction yet, while starting and cannot "
                                 "be reached"));
  for (int r = 0; r < j.size; r++) expect_status(&j, r, 5);
}

// All others miss it at the same time, and it takes a while until they know that one of them has spoken.
TEST(test_a_circle_loses_a_node) {
  job j;
  start_nodes(&j, 8, 1, -1);
  atomic_store(&j.office.strings->way_ms, 300);
  kill(j.processes[5], SIGKILL);
  finish(&j);
  expect_one_message(&j,
                     "rank 5 (host f) has finished no instruction yet, while starting and cannot be reached");
  for (int r = 0; r < j.size; r++) {
    if (r != 5) expect_status(&j, r, 5);
  }
}

// The end has time inside the limit, which is named as it was given.
TEST(test_limit_includes_the_end) {
  for (int seconds = 1; seconds <= 3600; seconds++) {
    const int64_t judged = fsdp_watch_judged_ms(seconds);
    assert_int_equal(1000 * (int64_t)seconds - judged, fmin(FSDP_WATCH_END_MS, 200.0 * seconds));
    assert_int_equal(fsdp_watch_limit_s(judged), seconds);
  }
}

TEST(test_all_wait) {
  job j;
  start(&j, -1);
  finish(&j);
  expect_one_message(&j, "no progress for 4 s (--comm-timeout): rank ");
  for (int r = 0; r < j.size; r++) expect_status(&j, r, 5);
}

TEST(test_a_slow_rank_is_waited_for) {
  job j;
  start(&j, 3);
  finish(&j);
  assert_string_equal(j.text, "");
  for (int r = 0; r < j.size; r++) expect_status(&j, r, 0);
}

// ---- More nodes than a circle: nine of one rank

static void expect_end(const job *j, const char *part, int but) {
  expect_one_message(j, part);
  for (int r = 0; r < j->size; r++)
    if (r != but) expect_status(j, r, 5);
}

// Those that hear of it are ranks 0, 1, 3, 4, 6 and 7; the rest learn from these that the job is over. A rank
// that the machine runs late finds several letters that say so, and is to pass it on as with one.
TEST(test_many_nodes_lose_one) {
  job j;
  start_nodes(&j, 9, 1, -1);
  atomic_store(&j.office.strings->twice, 1);
  kill(j.processes[5], SIGKILL);
  finish(&j);
  expect_end(&j, "rank 5 (host f) has finished no instruction yet, while starting and cannot be reached", 5);
}

TEST(test_many_nodes_all_wait) {
  job j;
  start_nodes(&j, 9, 1, -1);
  finish(&j);
  expect_end(&j, "no progress for 8 s (--comm-timeout): rank 0 (host a) waits at instruction 42, step 7", -1);
}

// Nothing else moves, and some nodes hear of that only from others.
TEST(test_many_nodes_wait_for_a_slow_one) {
  job j;
  start_nodes(&j, 9, 1, 7);
  finish(&j);
  assert_string_equal(j.text, "");
  for (int r = 0; r < j.size; r++) expect_status(&j, r, 0);
}

// ---- The error file

static json_t *read_error_file(const char *folder) {
  char path[256];
  snprintf(path, sizeof path, "%s/error.json", folder);
  json_error_t reason;
  json_t *object = json_load_file(path, 0, &reason);
  if (!object) fail_msg("%s: %s", path, reason.text);
  unlink(path);
  return object;
}

// A rank that has left the job is not the one that failed.
TEST(test_one_has_left) {
  char folder[] = "/tmp/fsdp_watch_XXXXXX", path[64];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/error.json", folder);
  error_folder = folder;
  job j;
  start(&j, -1);
  error_folder = NULL;
  atomic_store(&fsdp_watch_slots(j.memory[0])[0].activity, FSDP_ACTIVITY_LEFT);
  sleep_ms(1500); // until the other node knows
  kill(j.processes[2], SIGKILL);
  finish(&j);
  expect_one_message(&j, "rank 2 (host b) has finished no instruction yet, while starting and has ended");
  for (int i = 0; i < 500 && access(path, R_OK) != 0; i++) sleep_ms(10); // a process of its own writes it
  json_t *object = read_error_file(folder);
  assert_int_equal(json_integer_value(json_object_get(object, "rank")), 2);
  assert_int_equal(json_integer_value(json_object_get(object, "process")), j.processes[2]);
  json_decref(object);
  assert_int_equal(rmdir(folder), 0);
}
