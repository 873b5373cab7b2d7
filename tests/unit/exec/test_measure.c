// Measured memory against traces made by hand, and against a brute force over single bytes on random traces.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/exec/measure.h"
#include "tests/support/unit_test.h"

#include <string.h>

#define COUNT(list) ((int64_t)(sizeof(list) / sizeof *(list)))

static fsdp_measurement measured(const fsdp_measure_event *events, int64_t count, int64_t issues) {
  fsdp_measurement measurement;
  char message[256] = "";
  bool clean = fsdp_measure(events, count, issues, &measurement, message, (int)sizeof message);
  if (!clean) print_error("%s\n", message);
  assert_true(clean);
  return measurement;
}

TEST(nothing_costs_nothing) {
  fsdp_measurement m = measured(NULL, 0, 3);
  assert_int_equal(m.valley_bytes[0] + m.peak_bytes[0] + m.valley_bytes[1] + m.peak_bytes[1], 0);
}

// Two buffers that follow each other at one address share it; if they meet, both count.
TEST(lifetimes_follow_each_other) {
  const fsdp_measure_event apart[] = {{0, 0, 0, FSDP_WRITE, 0, 100},
                                      {1, 0, 0, FSDP_READ, 0, 100},
                                      {2, 1, 0, FSDP_WRITE, 0, 60},
                                      {3, 1, 0, FSDP_READ, 0, 60}};
  assert_int_equal(measured(apart, COUNT(apart), 4).peak_bytes[0], 100);
  const fsdp_measure_event meet[] = {{0, 0, 0, FSDP_WRITE, 0, 100},
                                     {1, 0, 0, FSDP_READ, 0, 100},
                                     {1, 1, 0, FSDP_WRITE, 100, 160},
                                     {3, 1, 0, FSDP_READ, 100, 160}};
  fsdp_measurement m = measured(meet, COUNT(meet), 4);
  assert_int_equal(m.peak_bytes[0], 160);
  assert_int_equal(m.peak_issue[0], 1);
  assert_int_equal(m.valley_bytes[0], 0);
}

// A buffer counts whole from its first byte to its last, but once for each stretch of time.
TEST(stretches_count_whole) {
  const fsdp_measure_event parts[] = {{0, 0, 0, FSDP_WRITE, 0, 10},  {1, 1, 0, FSDP_WRITE, 50, 55},
                                      {2, 0, 0, FSDP_WRITE, 10, 30}, {3, 0, 0, FSDP_READ, 0, 30},
                                      {5, 0, 0, FSDP_WRITE, 0, 5},   {6, 0, 0, FSDP_READ, 0, 5},
                                      {6, 1, 0, FSDP_WRITE, 60, 61}};
  fsdp_measurement m = measured(parts, COUNT(parts), 7);
  assert_int_equal(m.peak_bytes[0], 35); // at 1: all 30 of buffer 0, and 5
  assert_int_equal(m.peak_issue[0], 1);
}

// Read before it is written: from the step before. Rewritten at the end: to the next step.
TEST(carried_bytes_are_the_valley) {
  const fsdp_measure_event carried[] = {
      {1, 0, 0, FSDP_READ, 0, 40},   // parameters, read, then updated
      {2, 1, 0, FSDP_WRITE, 64, 72}, // an activation
      {3, 1, 0, FSDP_READ, 64, 72},
      {4, 0, 0, FSDP_UPDATE, 0, 40},
      {4, 2, 1, FSDP_WRITE, 0, 16}, // host: written first, then read, then left
      {5, 2, 1, FSDP_READ, 0, 16},
      {5, 3, 1, FSDP_READ, 16, 24}, // host: read, and rewritten for the next step
      {6, 3, 1, FSDP_WRITE, 16, 24},
  };
  fsdp_measurement m = measured(carried, COUNT(carried), 8);
  assert_int_equal(m.valley_bytes[0], 40);
  assert_int_equal(m.peak_bytes[0], 48);
  assert_int_equal(m.valley_bytes[1], 8);
  assert_int_equal(m.peak_bytes[1], 24);
}

// Within one instruction only the first access decides: bytes written and then read are not carried.
TEST(an_instruction_reads_what_it_wrote) {
  const fsdp_measure_event own[] = {
      {0, 0, 0, FSDP_WRITE, 0, 8}, {0, 0, 0, FSDP_READ, 0, 8}, {2, 0, 0, FSDP_READ, 0, 8}};
  fsdp_measurement m = measured(own, COUNT(own), 3);
  assert_int_equal(m.valley_bytes[0], 0);
  assert_int_equal(m.peak_bytes[0], 8);
}

TEST(collisions_are_found) {
  const fsdp_measure_event collide[] = {{0, 0, 0, FSDP_WRITE, 0, 100},
                                        {1, 1, 0, FSDP_WRITE, 99, 120},
                                        {2, 0, 0, FSDP_READ, 0, 100},
                                        {3, 1, 0, FSDP_READ, 99, 120}};
  fsdp_measurement m;
  char message[256];
  assert_false(fsdp_measure(collide, COUNT(collide), 4, &m, message, (int)sizeof message));
  assert_non_null(strstr(message, "buffers 0 and 1 both need byte 99"));
  // In the last of a buffer's parts, which are needed from different times on.
  const fsdp_measure_event in_parts[] = {{0, 0, 0, FSDP_WRITE, 0, 64},
                                         {1, 0, 0, FSDP_WRITE, 64, 128},
                                         {2, 1, 0, FSDP_WRITE, 96, 160},
                                         {3, 0, 0, FSDP_READ, 0, 128},
                                         {4, 1, 0, FSDP_READ, 96, 160}};
  assert_false(fsdp_measure(in_parts, COUNT(in_parts), 5, &m, message, (int)sizeof message));
  assert_non_null(strstr(message, "buffers 0 and 1 both need byte 96"));
  fsdp_measure_event elsewhere[4];
  memcpy(elsewhere, collide, sizeof collide);
  elsewhere[1].space = elsewhere[3].space = 1;
  assert_true(fsdp_measure(elsewhere, 4, 4, &m, message, (int)sizeof message));
}

// ---- Brute force: every byte by itself

#define BYTES   24
#define BUFFERS 3
#define ISSUES  12

typedef struct brute {
  bool live[BUFFERS][BYTES][ISSUES];
  bool touched[BUFFERS][BYTES];
  bool carries[BUFFERS];
} brute;

// The first access of each instruction to one byte of one buffer.
static fsdp_access first_access(const fsdp_measure_event *events, int64_t count, int buffer, int64_t byte,
                                int64_t issue) {
  for (int64_t i = 0; i < count; i++) {
    if (events[i].issue == issue && events[i].buffer == buffer && events[i].begin <= byte &&
        byte < events[i].end) {
      return events[i].access;
    }
  }
  return (fsdp_access)0; // none
}

static void live_of_byte(brute *all, const fsdp_measure_event *events, int64_t count, int buffer, int byte) {
  int first = -1, last = -1;
  bool carried = false;
  for (int issue = 0; issue <= ISSUES; issue++) {
    fsdp_access access = issue < ISSUES ? first_access(events, count, buffer, byte, issue) : FSDP_WRITE;
    if (!access) continue;
    if (access == FSDP_WRITE && last >= 0) {
      int end = carried && issue == ISSUES ? ISSUES - 1 : last;
      for (int t = first; t <= end; t++) all->live[buffer][byte][t] = true;
      first = issue;
    }
    if (last < 0) {
      carried = access != FSDP_WRITE;
      first = carried ? 0 : issue;
    }
    last = issue;
    if (issue < ISSUES) all->touched[buffer][byte] = true;
  }
  if (carried) all->carries[buffer] = true;
}

// Bytes of a buffer at issue `now`: all that are live somewhere in the connected stretch around it.
static int64_t bytes_at(const brute *all, int buffer, int now) {
  bool any[ISSUES] = {false}, joined[ISSUES] = {false};
  for (int b = 0; b < BYTES; b++) {
    for (int t = 0; t < ISSUES; t++) {
      any[t] |= all->live[buffer][b][t];
      // Consecutive issues are one stretch only if some byte lives over both.
      if (t > 0) joined[t] |= all->live[buffer][b][t] && all->live[buffer][b][t - 1];
    }
  }
  if (!any[now] && !all->carries[buffer]) return 0;
  int first = now, last = now;
  while (first > 0 && joined[first]) first--;
  while (last + 1 < ISSUES && joined[last + 1]) last++;
  int64_t bytes = 0;
  for (int b = 0; b < BYTES; b++) {
    bool counts = all->carries[buffer] && all->touched[buffer][b];
    for (int t = first; t <= last; t++) counts |= all->live[buffer][b][t];
    bytes += counts;
  }
  return bytes;
}

static int64_t draw(uint64_t seed, uint64_t index, int64_t below) {
  uint32_t words[4];
  fsdp_random_words(seed, 3, index, words);
  return (int64_t)(words[0] % (uint32_t)below);
}

// A random trace. In a byte no lifetime is adjacent to the one before at the next issue: the brute force
// above, which keeps no lifetimes apart, could not tell them from one. So a buffer is accessed at every other
// issue only.
static int64_t random_events(uint64_t seed, fsdp_measure_event *events) {
  int64_t count = 0;
  for (int issue = 0; issue < ISSUES; issue++) {
    int64_t accesses = draw(seed, (uint64_t)(issue * 10), 4);
    for (int64_t a = 0; a < accesses; a++) {
      uint64_t key = (uint64_t)(issue * 10 + 1 + a) + 1000;
      int64_t begin = draw(seed, key + 1000, BYTES);
      int64_t end = begin + 1 + draw(seed, key + 2000, BYTES - begin);
      events[count++] = (fsdp_measure_event){.issue = issue,
                                             .buffer = (int)draw(seed, key + 3000, BUFFERS),
                                             .access = (fsdp_access)(draw(seed, key + 4000, 3) + 1),
                                             .begin = begin,
                                             .end = end};
    }
  }
  // Buffers lie apart, so that none collide.
  for (int64_t i = 0; i < count; i++) {
    events[i].begin += events[i].buffer * 100;
    events[i].end += events[i].buffer * 100;
  }
  return count;
}

TEST(random_traces_agree_with_brute_force) {
  for (uint64_t seed = 0; seed < 3000; seed++) {
    fsdp_measure_event events[4 * ISSUES], local[4 * ISSUES];
    int64_t count = random_events(seed, events);
    for (int64_t i = 0; i < count; i++) {
      // Every other issue: 0, 2, 4, ...
      events[i].issue *= 2;
      if (events[i].issue >= ISSUES) count = i;
    }
    memcpy(local, events, sizeof local);
    for (int64_t i = 0; i < count; i++)
      local[i].begin -= events[i].buffer * 100, local[i].end -= events[i].buffer * 100;
    brute *all = fsdp_alloc_zeroed(1, sizeof *all);
    for (int b = 0; b < BUFFERS; b++) {
      for (int byte = 0; byte < BYTES; byte++) live_of_byte(all, local, count, b, byte);
    }
    int64_t peak = 0, valley = 0;
    for (int t = 0; t < ISSUES; t++) {
      int64_t sum = 0;
      for (int b = 0; b < BUFFERS; b++) sum += bytes_at(all, b, t);
      if (sum > peak) peak = sum;
    }
    for (int b = 0; b < BUFFERS; b++) {
      for (int byte = 0; byte < BYTES; byte++) valley += all->carries[b] && all->touched[b][byte];
    }
    fsdp_measurement m = measured(events, count, ISSUES);
    assert_int_equal(m.peak_bytes[0], peak);
    assert_int_equal(m.valley_bytes[0], valley);
    free(all);
  }
}
