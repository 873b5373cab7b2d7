// Exposed communication of hand-made steps, against numbers worked out by hand.
#include "runtime/base/check.h"
#include "runtime/plan/price/exposure.h"
#include "runtime/plan/price/timeline.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdlib.h>

// Sums of a few numbers below 100 that are exact in binary.
#define assert_near(a, b) assert_true(fabs((a) - (b)) < 1e-12)

// An instruction with its waits, up to two positions; -1: none.
typedef struct row {
  fsdp_instr_kind kind;
  fsdp_stream stream;
  int unit;
  int waits[2];
} row;

typedef struct hand_made {
  fsdp_program *program;
  fsdp_timeline *timeline;
  fsdp_exposure_meter *meter;
} hand_made;

static void add_rows(fsdp_program *program, const row *rows, int count, fsdp_wait *waits, int *counts) {
  int wait_count = 0;
  for (int i = 0; i < program->instr_count; i++) wait_count += counts[i];
  for (int i = 0; i < count; i++) {
    fsdp_instr instr = {.kind = rows[i].kind,
                        .stream = rows[i].stream,
                        .op = FSDP_OP_RMSNORM,
                        .unit = rows[i].unit,
                        .module = -1,
                        .policy = -1,
                        .comm = -1};
    if (fsdp_instr_is_collective(&instr)) {
      const char *axis = rows[i].stream == FSDP_STREAM_REDUCE ? FSDP_AXIS_DATA : FSDP_AXIS_FSDP;
      instr.comm = fsdp_program_comm_add(program, fsdp_mesh_axes(&program->mesh, axis), rows[i].stream);
    }
    int position = fsdp_program_instr(program, &instr, NULL, 0);
    counts[position] = 0;
    for (int w = 0; w < 2; w++) {
      if (rows[i].waits[w] < 0) continue;
      waits[wait_count++] = (fsdp_wait){rows[i].waits[w], FSDP_WAIT_DATA};
      counts[position]++;
    }
  }
}

// A program on the mesh data=2, fsdp=2 of one micro-batch, or of two with the same instructions in both, and
// an update of its own.
static hand_made make(int micro_batches, const row *batch, int batch_count, const row *update,
                      int update_count) {
  hand_made made = {.program = fsdp_program_create()};
  fsdp_program *program = made.program;
  program->micro_batches = micro_batches;
  program->mesh = fsdp_mesh_of(2, 2);
  fsdp_wait waits[64];
  int counts[32];
  for (int b = 0; b < micro_batches; b++) {
    row moved[16];
    for (int i = 0; i < batch_count; i++) {
      moved[i] = batch[i];
      for (int w = 0; w < 2; w++)
        if (batch[i].waits[w] >= 0 && batch[i].waits[w] < batch_count) moved[i].waits[w] += b * batch_count;
    }
    fsdp_program_begin_section(program, micro_batches == 1 ? FSDP_SECTION_ONLY
                                        : b == 0           ? FSDP_SECTION_FIRST
                                                           : FSDP_SECTION_LAST);
    add_rows(program, moved, batch_count, waits, counts);
    fsdp_program_end_section(program);
  }
  fsdp_program_begin_section(program, FSDP_SECTION_UPDATE);
  add_rows(program, update, update_count, waits, counts);
  fsdp_program_end_section(program);
  fsdp_program_set_waits(program, waits, counts);
  made.timeline = fsdp_timeline_create(program, 1);
  made.meter = fsdp_exposure_meter_create(program);
  return made;
}

static void destroy(hand_made *made) {
  fsdp_exposure_meter_destroy(made->meter);
  fsdp_timeline_destroy(made->timeline);
  fsdp_program_destroy(made->program);
}

// The events of rank 1, and for each one of rank 0 that would spoil the result.
static void ran(hand_made *made, int64_t step, int run, int position, double begin_s, double end_s) {
  fsdp_timeline_append(made->timeline, &(fsdp_timeline_event){0, position, step, run, 0, 1000});
  fsdp_timeline_append(made->timeline, &(fsdp_timeline_event){1, position, step, run, begin_s, end_s});
}

// Of rank 1's step in the timeline.
static void measure_step(const hand_made *made, int64_t step, fsdp_exposure *exposure) {
  const fsdp_issue_order *order = fsdp_exposure_meter_order(made->meter);
  fsdp_instr_time *times[3];
  for (int slot = 0; slot < 3; slot++) {
    times[slot] = fsdp_alloc((size_t)order->count * sizeof *times[slot]);
    for (int64_t k = 0; k < order->count; k++) times[slot][k] = FSDP_INSTR_TIME_NONE;
  }
  for (int64_t e = 0; e < made->timeline->count; e++) {
    const fsdp_timeline_event *event = &made->timeline->events[e];
    int64_t slot = event->step - step + 1;
    if (event->rank != 1 || slot < 0 || slot > 2) continue;
    times[slot][fsdp_issue_order_place(order, event->run, event->position)] =
        (fsdp_instr_time){event->begin_s, event->end_s};
  }
  fsdp_exposure_measure(made->meter, (const fsdp_instr_time *const[3]){times[0], times[1], times[2]},
                        exposure);
  for (int slot = 0; slot < 3; slot++) free(times[slot]);
}

static fsdp_exposure measure(hand_made *made, int64_t step) {
  fsdp_exposure exposure;
  measure_step(made, step, &exposure);
  assert_near(exposure.step_s, exposure.end_s - exposure.begin_s);
  assert_near(exposure.work_s + exposure.comm_s + exposure.h2d_s + exposure.d2h_s + exposure.other_s,
              exposure.step_s);
  double by_axes = 0, by_unit = 0;
  for (int a = 0; a < 1 << FSDP_MESH_AXES_MAX; a++) by_axes += exposure.comm_axes_s[a];
  for (int u = 0; u <= exposure.unit_count; u++) by_unit += exposure.comm_unit_s[u];
  assert_near(by_axes, exposure.comm_s);
  assert_near(by_unit, exposure.comm_s);
  return exposure;
}

#define NONE                                                                                                 \
  { -1, -1 }

enum { COPY, CAST, GATHER, GATHER_NEXT, FIRST, SECOND, REDUCE, BATCH_COUNT };

static const row batch[BATCH_COUNT] = {
    [COPY] = {FSDP_INSTR_H2D, FSDP_STREAM_H2D, 0, NONE},
    [CAST] = {FSDP_INSTR_OP, FSDP_STREAM_GATHER, 0, {COPY, -1}},
    [GATHER] = {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, 0, NONE},
    [GATHER_NEXT] = {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, 1, NONE},
    [FIRST] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, 0, {GATHER, -1}},
    [SECOND] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, 1, {GATHER_NEXT, -1}},
    [REDUCE] = {FSDP_INSTR_ALL_REDUCE, FSDP_STREAM_REDUCE, -1, {SECOND, -1}},
};
static const row update[] = {
    {FSDP_INSTR_D2H, FSDP_STREAM_D2H, 0, {REDUCE, -1}},
    {FSDP_INSTR_OP, FSDP_STREAM_HOST, 0, {BATCH_COUNT, -1}},
};

// One step alone, with one gap of every kind.
TEST(test_one_step) {
  hand_made made = make(1, batch, BATCH_COUNT, update, 2);
  ran(&made, 5, 0, COPY, 1, 2);
  ran(&made, 5, 0, CAST, 2.25, 2.5);
  ran(&made, 5, 0, GATHER, 2.5, 4);
  ran(&made, 5, 0, GATHER_NEXT, 4, 10);
  ran(&made, 5, 0, FIRST, 4.5, 8);  // behind the gather, late by half a second
  ran(&made, 5, 0, SECOND, 10, 13); // exposes [8, 10] of the gather of unit 1
  ran(&made, 5, 0, REDUCE, 13, 14); // exposed whole
  ran(&made, 5, 1, BATCH_COUNT, 14.5, 16.5);
  ran(&made, 5, 1, BATCH_COUNT + 1, 17, 20);
  fsdp_exposure exposure = measure(&made, 5);
  assert_near(exposure.begin_s, 1);
  assert_near(exposure.end_s, 20);
  assert_near(exposure.work_s, 3.5 + 3 + 3);
  assert_near(exposure.comm_s, 1.5 + 2 + 1);
  assert_near(exposure.h2d_s, 1);
  assert_near(exposure.d2h_s, 2);
  assert_near(exposure.other_s, 0.25 + 0.25 + 0.5 + 0.5 + 0.5);
  assert_int_equal(exposure.unit_count, 2);
  assert_near(exposure.comm_unit_s[0], 1);
  assert_near(exposure.comm_unit_s[1], 1.5);
  assert_near(exposure.comm_unit_s[2], 2);
  const fsdp_mesh *mesh = &made.program->mesh;
  assert_near(exposure.comm_axes_s[fsdp_mesh_axes(mesh, FSDP_AXIS_FSDP)], 3.5);
  assert_near(exposure.comm_axes_s[fsdp_mesh_axes(mesh, FSDP_AXIS_DATA)], 1);
  destroy(&made);
}

// A gap's cause is the awaited instruction that ended last, and only within the gap: a collective that runs
// beside it explains nothing.
TEST(test_cause) {
  enum { EARLY, LATE, BESIDE, BEFORE, AFTER };
  const row rows[] = {
      [EARLY] = {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, 0, NONE},
      [LATE] = {FSDP_INSTR_ALL_REDUCE, FSDP_STREAM_REDUCE, 1, NONE},
      [BESIDE] = {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_TENSOR, 2, NONE},
      [BEFORE] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, 0, NONE},
      [AFTER] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, 0, {EARLY, LATE}},
  };
  hand_made made = make(1, rows, 5, NULL, 0);
  ran(&made, 1, 0, EARLY, 0, 5);
  ran(&made, 1, 0, LATE, 5.5, 7);
  ran(&made, 1, 0, BESIDE, 0, 8);
  ran(&made, 1, 0, BEFORE, 0, 4);
  ran(&made, 1, 0, AFTER, 8, 9);
  fsdp_exposure exposure = measure(&made, 1);
  assert_near(exposure.comm_s, 1.5);
  assert_near(exposure.comm_unit_s[2], 1.5);
  assert_near(exposure.other_s, 4 - 1.5);
  destroy(&made);
}

// Steps end to end: a wait means the latest issue before, in an earlier section or the step before; the delay
// of a step's first work is that step's; work of the next step ends a gap of this one.
TEST(test_steps) {
  // a waits for the update's gather of the step before.
  enum { A, B, SECOND_A, SECOND_B, AGAIN, TAIL };
  const row rows[] = {
      [A] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, 0, {AGAIN, -1}},
      [B] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, 0, NONE},
  };
  const row rest[] = {
      {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, 0, {SECOND_B, -1}},
      {FSDP_INSTR_OP, FSDP_STREAM_HOST, 0, {B, -1}},
  };
  hand_made made = make(2, rows, 2, rest, 2);
  for (int step = 1; step <= 3; step++) {
    double t = 20 * step;
    ran(&made, step, 0, A, t + 1, t + 4);
    ran(&made, step, 0, B, t + 4, t + 6);
    ran(&made, step, 1, SECOND_A, t + 6, t + 8);
    ran(&made, step, 1, SECOND_B, t + 8, t + 10);
    ran(&made, step, 2, AGAIN, t + 10, t + 20);
    ran(&made, step, 2, TAIL, t + 12, t + 22); // until the next step's first second of work
  }
  fsdp_exposure exposure = measure(&made, 2);
  assert_near(exposure.begin_s, 42);
  assert_near(exposure.end_s, 62);
  assert_near(exposure.work_s, 18); // [42, 50] and [52, 62]
  assert_near(exposure.comm_s, 0);  // the gather began behind the work that the tail awaits
  assert_near(exposure.other_s, 2);
  destroy(&made);

  // The same with a tail that ends early: the next step's first work waits for the gather.
  made = make(2, rows, 2, rest, 2);
  for (int step = 1; step <= 3; step++) {
    double t = 20 * step;
    ran(&made, step, 0, A, t + 1, t + 4);
    ran(&made, step, 0, B, t + 4, t + 6);
    ran(&made, step, 1, SECOND_A, t + 6, t + 8);
    ran(&made, step, 1, SECOND_B, t + 8, t + 10);
    ran(&made, step, 2, AGAIN, t + 10, t + 20.5);
    ran(&made, step, 2, TAIL, t + 10, t + 15);
  }
  exposure = measure(&made, 2);
  assert_near(exposure.begin_s, 35);
  assert_near(exposure.step_s, 20);
  assert_near(exposure.comm_s, 5.5);
  assert_near(exposure.other_s, 0.5);
  assert_near(exposure.work_s, 14);
  exposure = measure(&made, 1); // nothing is known of the step before: from its own first event
  assert_near(exposure.begin_s, 21);
  assert_near(exposure.comm_s, 0);
  destroy(&made);

  // An offloaded update of the step before outlasts all recorded work of this one: nothing is left of it.
  made = make(1, rows + 1, 1, (const row[]){{FSDP_INSTR_OP, FSDP_STREAM_HOST, 0, {0, -1}}}, 1);
  ran(&made, 1, 0, 0, 1, 2);
  ran(&made, 1, 1, 1, 2, 9);
  ran(&made, 2, 0, 0, 3, 4);
  exposure = measure(&made, 2);
  assert_near(exposure.begin_s, 4);
  assert_near(exposure.step_s, 0);
  assert_near(exposure.work_s, 0);
  destroy(&made);
}

// The order of issue by a list of two whole steps: what is issued last before an instruction, and what its
// stream runs before it.
TEST(test_issue_order) {
  enum { STEP_MAX = 64 };
  fsdp_program *program = fsdp_program_create();
  program->micro_batches = 5;
  const fsdp_section_kind kinds[] = {FSDP_SECTION_FIRST, FSDP_SECTION_MIDDLE, FSDP_SECTION_LAST,
                                     FSDP_SECTION_UPDATE, FSDP_SECTION_EVALUATION};
  for (int s = 0; s < 5; s++) {
    fsdp_program_begin_section(program, kinds[s]);
    for (int i = 0; i < s + 2; i++) {
      const fsdp_instr instr = {.stream = (fsdp_stream)(i % 3), .unit = -1, .module = -1, .policy = -1};
      fsdp_program_instr(program, &instr, NULL, 0);
    }
    fsdp_program_end_section(program);
  }
  int runs[8], positions[2 * STEP_MAX], count = 0;
  int run_count = fsdp_program_step_order(program, runs);
  fsdp_issue_order *order = fsdp_issue_order_create(program);
  for (int step = 0; step < 2; step++) {
    for (int r = 0; r < run_count; r++) {
      const fsdp_section *section = &program->sections[runs[r]];
      for (int i = section->begin; i < section->end; i++, count++) {
        positions[count] = i;
        assert_int_equal(fsdp_issue_order_place(order, r, i), count - step * order->count);
      }
    }
  }
  int step_count = (int)order->count;
  assert_int_equal(count, 2 * step_count);
  for (int at = step_count; at < count; at++) {
    fsdp_stream stream = program->instrs[positions[at]].stream;
    int before = at - 1;
    while (program->instrs[positions[before]].stream != stream) before--;
    fsdp_issue found = fsdp_issue_order_previous(order, at - step_count);
    assert_int_equal(step_count * (1 - found.steps_back) + found.place, before);
    for (int awaited = 0; awaited < program->instr_count; awaited++) {
      int last = at - 1;
      while (last >= 0 && positions[last] != awaited) last--;
      bool any = fsdp_issue_order_latest(order, at - step_count, awaited, &found);
      assert_int_equal(any, last >= 0);
      if (any) assert_int_equal(step_count * (1 - found.steps_back) + found.place, last);
    }
  }
  fsdp_issue_order_destroy(order);
  fsdp_program_destroy(program);
}
