// Collectives between threads: exact sums for groups of 1 to 8 ranks, small and odd sizes, and two groups at
// a time.
#include "runtime/base/check.h"
#include "runtime/comm/comm_inproc.h"
#include "tests/support/comm_cases.h"
#include "tests/support/unit_test.h"

#include <pthread.h>
#include <string.h>

#define RANKS_MAX 8

typedef struct thread_run {
  fsdp_inproc *inproc;
  int index;
  int rank, repeats;
  int64_t numel;
  int64_t wrong;
  char message[256];
  pthread_t thread;
} thread_run;

static void *run_thread(void *argument) {
  thread_run *run = argument;
  fsdp_comm *comm = fsdp_inproc_comm(run->inproc, run->index, run->rank);
  void *buffer = fsdp_alloc((size_t)comm_cases_bytes(comm->size, run->numel));
  for (int i = 0; i < run->repeats; i++) {
    run->wrong += comm_cases_run(comm, run->numel, buffer, run->message, (int)sizeof run->message);
  }
  free(buffer);
  fsdp_comm_destroy(comm);
  return NULL;
}

static void start(thread_run *run) {
  assert_int_equal(pthread_create(&run->thread, NULL, run_thread, run), 0);
}

static void finish(thread_run *run) {
  pthread_join(run->thread, NULL);
  if (run->wrong) print_error("rank %d: %s\n", run->rank, run->message);
  assert_int_equal(run->wrong, 0);
}

TEST(sums_are_exact) {
  // Around tiles (16384), the small all-reduce (64 bytes) and alignment.
  static const int64_t sizes[] = {1, 3, 16, 17, 1000, 16385};
  static const int ranks[] = {1, 2, 3, 4, 8};
  for (size_t w = 0; w < sizeof ranks / sizeof *ranks; w++) {
    fsdp_comm_group groups[RANKS_MAX];
    for (int r = 0; r < ranks[w]; r++) groups[r] = (fsdp_comm_group){.rank = r, .size = ranks[w]};
    fsdp_inproc *inproc = fsdp_inproc_create(groups, 1, ranks[w]);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      thread_run runs[RANKS_MAX] = {0};
      for (int r = 0; r < ranks[w]; r++) {
        runs[r] = (thread_run){.inproc = inproc, .rank = r, .repeats = 1, .numel = sizes[s]};
        start(&runs[r]);
      }
      for (int r = 0; r < ranks[w]; r++) finish(&runs[r]);
      // Each size makes its own communicators.
      fsdp_inproc_destroy(inproc);
      inproc = fsdp_inproc_create(groups, 1, ranks[w]);
    }
    fsdp_inproc_destroy(inproc);
  }
}

// Every rank in four groups at one time, each on its own thread, as streams are.
TEST(groups_overlap) {
  enum { COMMS = 4 }; // neighbours twice, every other one, all
  fsdp_comm_group groups[4][COMMS];
  for (int r = 0; r < 4; r++) {
    groups[r][0] = groups[r][1] = (fsdp_comm_group){.color = r / 2, .rank = r % 2, .size = 2};
    groups[r][2] = (fsdp_comm_group){.color = r % 2, .rank = r / 2, .size = 2};
    groups[r][3] = (fsdp_comm_group){.color = 0, .rank = r, .size = 4};
  }
  fsdp_inproc *inproc = fsdp_inproc_create(groups[0], COMMS, 4);
  thread_run runs[4][COMMS];
  memset(runs, 0, sizeof runs);
  for (int r = 0; r < 4; r++) {
    for (int g = 0; g < COMMS; g++) {
      runs[r][g] = (thread_run){.inproc = inproc, .index = g, .rank = r, .repeats = 20, .numel = 777};
      start(&runs[r][g]);
    }
  }
  for (int r = 0; r < 4; r++) {
    for (int g = 0; g < COMMS; g++) finish(&runs[r][g]);
  }
  fsdp_inproc_destroy(inproc);
}

typedef struct touched {
  fsdp_access_recorder base;
  int64_t read, written;
} touched;

static void count_bytes(fsdp_access_recorder *recorder, const void *address, int64_t bytes,
                        fsdp_access access) {
  touched *self = (touched *)recorder;
  if (access & FSDP_READ) self->read += bytes;
  if (access & FSDP_WRITE) self->written += bytes;
}

TEST(alone_nothing_moves) {
  fsdp_comm *comm = fsdp_comm_self();
  float values[4] = {1, 2, 3, 4}, copy[4] = {0};
  touched seen = {.base = {count_bytes}};
  fsdp_collective call = {
      .input = values, .output = values, .numel = 4, .dtype = FSDP_F32, .recorder = &seen.base};
  fsdp_comm_run(comm, FSDP_ALL_GATHER, &call);
  assert_int_equal(seen.written, 0);
  call.output = copy;
  fsdp_comm_run(comm, FSDP_REDUCE_SCATTER, &call);
  assert_memory_equal(copy, values, sizeof values);
  assert_int_equal(seen.written, (int64_t)sizeof values);
  fsdp_comm_destroy(comm);
}
