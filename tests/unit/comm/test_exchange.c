// Small exchanges among many ranks, which are threads: results against closed formulas, and how many messages
// and bytes of each rank they take.
#include "bench/world_inproc.h"
#include "runtime/base/check.h"
#include "runtime/exchange/small_sum.h"
#include "runtime/watch/hearing.h"
#include "tests/support/draws.h"
#include "tests/support/unit_test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// ---- Ranks as threads

typedef struct rank {
  fsdp_peers peers;
  fsdp_link link;
  int rank, size, wrong;
  void (*run)(struct rank *self);
  int64_t argument;
} rank;

static void expect(rank *self, bool right, const char *what) {
  if (right) return;
  if (self->wrong++ < 3) fprintf(stderr, "rank %d of %d: %s\n", self->rank, self->size, what);
}

static void *start(void *argument) {
  rank *self = argument;
  self->run(self);
  return NULL;
}

// Runs all ranks; their counts go into counts[size] unless it is NULL. Returns what was wrong.
static int run_ranks(int size, void (*run)(rank *self), int64_t argument, fsdp_link_counts *counts) {
  fsdp_inproc_links *links = fsdp_inproc_links_create(size);
  pthread_t *threads = fsdp_alloc((size_t)size * sizeof *threads);
  rank *ranks = fsdp_alloc_zeroed((size_t)size, sizeof *ranks);
  pthread_attr_t small;
  assert_int_equal(pthread_attr_init(&small), 0);
  assert_int_equal(pthread_attr_setstacksize(&small, 1 << 18), 0);
  int wrong = 0;
  for (int r = 0; r < size; r++) {
    ranks[r] = (rank){.rank = r, .size = size, .run = run, .argument = argument};
    ranks[r].link = fsdp_inproc_link(links, r);
    ranks[r].peers = (fsdp_peers){.link = &ranks[r].link, .place = r, .size = size};
    assert_int_equal(pthread_create(&threads[r], &small, start, &ranks[r]), 0);
  }
  for (int r = 0; r < size; r++) {
    pthread_join(threads[r], NULL);
    wrong += ranks[r].wrong;
    if (counts) counts[r] = fsdp_inproc_link_counts(links, r);
  }
  pthread_attr_destroy(&small);
  free(ranks);
  free(threads);
  fsdp_inproc_links_destroy(links);
  return wrong;
}

static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33};
enum { SIZES = sizeof sizes / sizeof *sizes };

static int log2_up(int size) {
  int rounds = 0;
  while (1 << rounds < size) rounds++;
  return rounds;
}

// ---- Results

static void run_reduce(rank *self) {
  int64_t n = self->size, r = self->rank, values[100];
  for (int i = 0; i < 100; i++) values[i] = i - r;
  fsdp_exchange_reduce(&self->peers, FSDP_REDUCE_SUM, values, 100); // more than the stack's
  for (int i = 0; i < 100; i++) expect(self, values[i] == i * n - n * (n - 1) / 2, "sum");
  int64_t bounds[2] = {r * r - 4 * r, 7 - r};
  fsdp_exchange_reduce(&self->peers, FSDP_REDUCE_MIN, bounds, 2);
  expect(self, bounds[0] == (n > 2 ? -4 : n > 1 ? -3 : 0) && bounds[1] == 8 - n, "least");
  bounds[0] = -r, bounds[1] = r;
  fsdp_exchange_reduce(&self->peers, FSDP_REDUCE_MAX, bounds, 2);
  expect(self, bounds[0] == 0 && bounds[1] == n - 1, "greatest");
}

static void run_broadcast(rank *self) {
  int64_t bytes = self->argument;
  unsigned char *data = fsdp_alloc((size_t)bytes + 1);
  for (int root = 0; root<self->size; root += self->size> 4 ? 3 : 1) {
    for (int64_t i = 0; i < bytes; i++) data[i] = (unsigned char)(self->rank == root ? i * 7 + root : 255);
    fsdp_exchange_broadcast(&self->peers, root, data, bytes);
    bool right = true;
    for (int64_t i = 0; i < bytes; i++) right = right && data[i] == (unsigned char)(i * 7 + root);
    expect(self, right, "broadcast");
  }
  free(data);
}

static void run_gather(rank *self) {
  int64_t mine[3] = {self->rank, -self->rank, 5}, all[33 * 3];
  for (int first = 0; first < 2; first++) {
    memset(all, 0xee, sizeof all);
    if (first)
      fsdp_exchange_gather_first(&self->peers, mine, sizeof mine, all);
    else
      fsdp_exchange_gather(&self->peers, mine, sizeof mine, all);
    bool right = true;
    for (int r = 0; r < self->size && (!first || self->rank == 0); r++)
      right = right && all[3 * r] == r && all[3 * r + 1] == -r && all[3 * r + 2] == 5;
    expect(self, right, first ? "gather on the first" : "gather");
  }
}

// Odd ranks in falling order, while the even ones pass by.
static void run_some(rank *self) {
  int odd[17], count = 0;
  for (int r = self->size - 1; r > 0; r--)
    if (r % 2) odd[count++] = r;
  fsdp_peers some = {.link = &self->link, .ranks = odd, .place = -1, .size = count};
  for (int i = 0; i < count; i++)
    if (odd[i] == self->rank) some.place = i;
  int64_t value = self->rank, all[17];
  fsdp_exchange_gather(&some, &value, sizeof value, all);
  for (int i = 0; i < count && some.place >= 0; i++) expect(self, all[i] == odd[i], "gather among some");
  fsdp_exchange_broadcast(&some, count - 1, &value, sizeof value);
  expect(self, value == (some.place < 0 ? self->rank : 1), "broadcast among some");
}

TEST(test_results) {
  for (int s = 0; s < SIZES; s++) {
    assert_int_equal(run_ranks(sizes[s], run_reduce, 0, NULL), 0);
    assert_int_equal(run_ranks(sizes[s], run_broadcast, 1000, NULL), 0);
    assert_int_equal(run_ranks(sizes[s], run_gather, 0, NULL), 0);
    assert_int_equal(run_ranks(sizes[s], run_some, 0, NULL), 0);
  }
  assert_int_equal(run_ranks(3, run_broadcast, 2 * FSDP_SWAP_BYTES_MAX + 17, NULL), 0);
}

// ---- Sums of few values

// In fp32 1 vanishes beside 2^24, so that the order shows: of ranks in their blocks, then of blocks pairwise.
static float value_of(int r) {
  return r % 64 == 3 ? 16777216.0f : r % 64 == 9 ? -16777216.0f : 1.0f;
}

static float block_sum(int block, int size) {
  float sum = 0;
  for (int r = block * 64; r < size && r < block * 64 + 64; r++) sum += value_of(r);
  return sum;
}

static void run_small_sum(rank *self) {
  fsdp_comm_sum *sum = fsdp_alloc(sizeof *sum);
  fsdp_small_sum *small = fsdp_small_sum_create(&self->link, self->rank, self->size, sum);
  float values[5], wanted = 0;
  for (int i = 0; i < 5; i++) values[i] = value_of(self->rank) * (float)(1 << i);
  fsdp_small_sum_run(small, values, 5, FSDP_F32);
  for (int b = 0; b * 64 < self->size; b++) wanted += block_sum(b, self->size);
  for (int i = 0; i < 5; i++) expect(self, values[i] == wanted * (float)(1 << i), "sum of few values");
  fsdp_small_sum_destroy(small);
  free(sum);
}

TEST(test_few_values) {
  static const int counts[] = {1, 2, 13, 64, 65, 200};
  for (size_t s = 0; s < sizeof counts / sizeof *counts; s++)
    assert_int_equal(run_ranks(counts[s], run_small_sum, 0, NULL), 0);
}

// ---- Worlds

// Ranks of a world, of `argument` on a node: who is where, who failed, who differs.
static int wrong_in_world;
static pthread_mutex_t wrong_mutex = PTHREAD_MUTEX_INITIALIZER;

static void expect_in(const fsdp_world *world, bool right, const char *what) {
  if (right) return;
  fprintf(stderr, "rank %d of %d: %s\n", world->rank, world->size, what);
  pthread_mutex_lock(&wrong_mutex);
  wrong_in_world++;
  pthread_mutex_unlock(&wrong_mutex);
}

static void run_nodes(fsdp_world *world, void *argument) {
  int each = *(const int *)argument, nodes = (world->size + each - 1) / each;
  expect_in(world, world->node_count == nodes && world->node_index == world->rank / each, "its node");
  expect_in(world, world->even_nodes == (world->size % each == 0), "even nodes");
  for (int r = 0; r < world->size; r++) {
    char name[64];
    snprintf(name, sizeof name, "rank %d (host node%d)", r, r / each);
    expect_in(world, strcmp(fsdp_world_rank_name(world, r).text, name) == 0, "a rank's name");
  }
  int64_t mine = 100 + world->rank, local[33];
  fsdp_world_gather_node(world, &mine, sizeof mine, local);
  for (int i = 0; i < world->local_size; i++)
    expect_in(world, local[i] == 100 + world->rank / each * each + i, "gather within the node");
  expect_in(world, fsdp_world_max(world, mine) == 99 + world->size, "the greatest");
}

// Of any two ranks that fail the lower one's error is everyone's, with its name.
static void run_errors(fsdp_world *world, void *argument) {
  int each = *(const int *)argument;
  for (int failing = 0; failing <= world->size; failing++) {
    fsdp_error error = {FSDP_OK, ""};
    if (world->rank == failing || world->rank == failing + 1)
      fsdp_fail(&error, FSDP_ERR_INPUT, "file %d", world->rank);
    char wanted[64] = "";
    if (failing < world->size) snprintf(wanted, sizeof wanted, "file %d", failing);
    if (failing > 0 && failing < world->size)
      snprintf(wanted, sizeof wanted, "file %d (rank %d (host node%d))", failing, failing, failing / each);
    fsdp_status status = fsdp_world_share_error(world, &error);
    expect_in(world, status == (failing < world->size ? FSDP_ERR_INPUT : FSDP_OK), "the shared status");
    expect_in(world, strcmp(error.message, wanted) == 0 && world->failed_rank == failing, "the shared error");
  }
}

static void run_agreement(fsdp_world *world, void *argument) {
  for (int other = 1; other < world->size; other++) {
    uint64_t values[3] = {7, world->rank >= other ? UINT64_MAX : 0, world->rank == other ? 1 : 2};
    int differs[3];
    bool same = fsdp_world_compare(world, values, 3, differs);
    expect_in(world, !same && differs[0] == -1 && differs[1] == other && differs[2] == other, "who differs");
    fsdp_error error = {FSDP_OK, ""};
    char part[64];
    snprintf(part, sizeof part, "and rank %d (host node%d) (0000000000000009)", other,
             world->nodes.index[other]);
    fsdp_status status = fsdp_world_agree(world, "it", world->rank >= other ? 9 : 8, &error);
    expect_in(world, status == FSDP_ERR_OPTION && strstr(error.message, part), "the message of a difference");
    expect_in(world, fsdp_world_agree(world, "it", 9, &error) == FSDP_OK, "agreement");
  }
}

TEST(test_worlds) {
  static const int shapes[][2] = {{1, 1}, {4, 4}, {5, 2}, {12, 4}, {33, 8}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    int each = shapes[s][1];
    fsdp_inproc_job job = {.size = shapes[s][0], .ranks_per_node = each, .argument = &each};
    job.run = run_nodes;
    fsdp_inproc_job_run(&job, NULL);
    job.run = run_errors;
    fsdp_inproc_job_run(&job, NULL);
    job.run = run_agreement;
    fsdp_inproc_job_run(&job, NULL);
  }
  assert_int_equal(wrong_in_world, 0);
}

// ---- Who hears of whom

TEST(test_hearing) {
  static const int shapes[][3] = {
      {4, 2, 65}, {130, 2, 65}, {132, 2, 65}, {9, 1, 3}, {1000, 8, 65}}; // and a circle
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    int size = shapes[s][0], each = shapes[s][1], nodes = size / each;
    int *node = fsdp_alloc((size_t)size * sizeof *node);
    const char **hosts = fsdp_alloc((size_t)size * sizeof *hosts);
    bool *heard = fsdp_alloc_zeroed((size_t)(nodes * nodes), sizeof *heard);
    for (int r = 0; r < size; r++) node[r] = r / each * each, hosts[r] = "a";
    for (int n = 0; n < nodes; n++) {
      fsdp_hearing hearing;
      fsdp_hearing_config config = {
          .rank = n * each, .size = size, .circle = shapes[s][2], .node = node, .hosts = hosts};
      fsdp_hearing_find(&config, &hearing);
      for (int i = 0; i < hearing.count; i++) {
        const fsdp_heard *h = &hearing.heard[i];
        heard[n * nodes + h->rank / each] = true;
        assert_int_equal(fsdp_hearing_index(&hearing, h->rank), i);
        assert_true(i == 0 || hearing.heard[i - 1].rank < h->rank);
        assert_int_equal(h->local, h->rank / each == n);
      }
      assert_int_equal(fsdp_hearing_index(&hearing, size), -1);
      assert_int_equal(hearing.heard[hearing.self].rank, n * each);
      assert_in_range(hearing.count, each, nodes <= shapes[s][2] ? size : each * (2 * log2_up(nodes) + 1));
      assert_int_equal(hearing.rounds, nodes <= shapes[s][2] ? 0 : log2_up(nodes));
      fsdp_hearing_release(&hearing);
    }
    for (int a = 0; a < nodes; a++)
      for (int b = 0; b < nodes; b++) assert_int_equal(heard[a * nodes + b], heard[b * nodes + a]);
    // From node 0 all know after log N rounds.
    bool *knows = fsdp_alloc_zeroed((size_t)nodes, sizeof *knows),
         *next = fsdp_alloc_zeroed((size_t)nodes, 1);
    knows[0] = true;
    for (int round = 0; round < (nodes <= shapes[s][2] ? 1 : log2_up(nodes)); round++) {
      for (int a = 0; a < nodes; a++)
        for (int b = 0; b < nodes; b++) next[a] = next[a] || (knows[b] && heard[a * nodes + b]);
      memcpy(knows, next, (size_t)nodes);
    }
    for (int a = 0; a < nodes; a++) assert_true(knows[a]);
    free(next), free(knows), free(heard), free(hosts), free(node);
  }
}

// ---- Costs

static void one_reduce(rank *self) {
  int64_t values[3] = {1, 2, 3};
  fsdp_exchange_reduce(&self->peers, FSDP_REDUCE_SUM, values, 3);
}

static void one_broadcast(rank *self) {
  int64_t value = self->rank;
  fsdp_exchange_broadcast(&self->peers, self->size / 2, &value, sizeof value);
}

static void one_gather(rank *self) {
  int64_t value = self->rank, *all = fsdp_alloc((size_t)self->size * sizeof *all);
  fsdp_exchange_gather(&self->peers, &value, sizeof value, all);
  free(all);
}

static void one_gather_first(rank *self) {
  int64_t value = self->rank, *all = fsdp_alloc((size_t)self->size * sizeof *all);
  fsdp_exchange_gather_first(&self->peers, &value, sizeof value, all);
  free(all);
}

static void one_small_sum(rank *self) {
  fsdp_comm_sum *sum = fsdp_alloc(sizeof *sum);
  fsdp_small_sum *small = fsdp_small_sum_create(&self->link, self->rank, self->size, sum);
  float value = 1;
  fsdp_small_sum_run(small, &value, 1, FSDP_F32);
  expect(self, value == (float)self->size, "sum of ones");
  fsdp_small_sum_destroy(small);
  free(sum);
}

// The greatest count over ranks of each kind, and the sum of what is sent.
static fsdp_link_counts greatest(int size, void (*run)(rank *self), int64_t *all_sent) {
  fsdp_link_counts *counts = fsdp_alloc((size_t)size * sizeof *counts), most = {0};
  assert_int_equal(run_ranks(size, run, 0, counts), 0);
  *all_sent = 0;
  for (int r = 0; r < size; r++) {
    const fsdp_link_counts *c = &counts[r];
    if (c->sent > most.sent) most.sent = c->sent;
    if (c->received > most.received) most.received = c->received;
    if (c->sent_bytes > most.sent_bytes) most.sent_bytes = c->sent_bytes;
    if (c->received_bytes > most.received_bytes) most.received_bytes = c->received_bytes;
    if (c->peers > most.peers) most.peers = c->peers;
    *all_sent += c->sent;
  }
  free(counts);
  return most;
}

TEST(test_costs) {
  static const int many[] = {2, 3, 8, 11, 64, 100, 128, 256};
  for (size_t s = 0; s < sizeof many / sizeof *many; s += (size_t)test_stride(3)) {
    int size = many[s], rounds = log2_up(size);
    bool even = 1 << rounds == size;
    int64_t sent;
    fsdp_link_counts most = greatest(size, one_reduce, &sent);
    assert_int_equal(most.sent, rounds); // where size is no power of two: a round less, and the loan returned
    assert_int_equal(most.sent_bytes, 24 * rounds);
    assert_int_equal(most.peers, rounds);
    if (even) assert_int_equal(sent, size * rounds);
    most = greatest(size, one_broadcast, &sent);
    assert_int_equal(sent, size - 1);
    assert_int_equal(most.sent, rounds);
    assert_int_equal(most.received, 1);
    most = greatest(size, one_gather, &sent);
    assert_int_equal(most.sent, rounds);
    assert_int_equal(most.received_bytes, 8 * (size - 1));
    assert_int_equal(sent, size * rounds);
    most = greatest(size, one_gather_first, &sent);
    assert_int_equal(sent, size - 1);
    assert_int_equal(most.sent, 1);
    assert_int_equal(most.received, rounds);
    assert_int_equal(most.received_bytes, 8 * (size - 1));
    // Six rounds among at most 64, those among the first of every 64, and the way back.
    most = greatest(size, one_small_sum, &sent);
    int block = size < 64 ? size : 64, firsts = log2_up((size + 63) / 64);
    assert_in_range(most.sent, log2_up(block), log2_up(block) * (firsts ? 2 : 1) + firsts);
    assert_in_range(most.sent_bytes, 4 * (block - 1), 4 * (block - 1 + log2_up(block) + firsts));
  }
}
