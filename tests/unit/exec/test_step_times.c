// Times of the newest steps: a device with queues, whose timestamps are given by hand, and the host's clock.
#include "runtime/exec/step_times.h"
#include "tests/support/unit_test.h"

#include <math.h>

// Seconds from nanoseconds and back, far from the clock's beginning.
#define assert_near(a, b) assert_true(fabs((a) - (b)) < 1e-6)

enum { GATHER, A, B, GATHER_C, C, COPY, PUBLISH, UPDATE, COUNT };

static const struct {
  fsdp_instr_kind kind;
  fsdp_stream stream;
  int wait;                // for the instruction; C is the backward
  double begin_ms, end_ms; // on the device's clock; of PUBLISH on the host's, both from the step's begin
} rows[COUNT] = {
    [GATHER] = {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, -1, 0, 3},
    [A] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, GATHER, 3, 5},
    [B] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, -1, 5.5, 8}, // launched late; not looked at unless traced
    [GATHER_C] = {FSDP_INSTR_ALL_GATHER, FSDP_STREAM_GATHER, -1, 3, 12},
    [C] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, GATHER_C, 13, 20},
    [COPY] = {FSDP_INSTR_D2H, FSDP_STREAM_D2H, C, 20, 21},
    [PUBLISH] = {FSDP_INSTR_PUBLISH, FSDP_STREAM_HOST, COPY, 21, 22},
    [UPDATE] = {FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, -1, 20, 30},
};

// The device: its clock is set by hand.
static double now_ms, slots_ms[256];
static int reserved, taken;

static void reserve(fsdp_device *device, int count) {
  reserved = count;
}
static void timestamp(fsdp_device *device, const fsdp_stream_context *context, int slot) {
  assert_true(slot >= 0 && slot < reserved);
  slots_ms[slot] = now_ms;
  taken++;
}
static double timestamp_ms(fsdp_device *device, int from, int to) {
  return slots_ms[to] - slots_ms[from];
}
static const fsdp_device_table table = {
    .enqueues = true, .reserve_timestamps = reserve, .timestamp = timestamp, .timestamp_ms = timestamp_ms};

static fsdp_program *make_program(bool communicates) {
  fsdp_program *program = fsdp_program_create();
  program->mesh = fsdp_mesh_of(1, 2);
  fsdp_wait waits[COUNT];
  int counts[COUNT] = {0}, wait_count = 0;
  fsdp_program_begin_section(program, FSDP_SECTION_ONLY);
  for (int i = 0; i < COUNT; i++) {
    if (i == UPDATE) {
      fsdp_program_end_section(program);
      fsdp_program_begin_section(program, FSDP_SECTION_UPDATE);
    }
    fsdp_instr instr = {.kind = rows[i].kind,
                        .stream = rows[i].stream,
                        .op = i == C ? FSDP_OP_RMSNORM_BACKWARD : FSDP_OP_RMSNORM,
                        .unit = -1,
                        .module = -1,
                        .policy = -1,
                        .comm = -1};
    if (fsdp_instr_is_collective(&instr)) {
      instr.comm = fsdp_program_comm_add(program, fsdp_mesh_all_axes(&program->mesh), rows[i].stream);
      if (!communicates) instr.kind = FSDP_INSTR_H2D;
    }
    fsdp_program_instr(program, &instr, NULL, 0);
    if (rows[i].wait >= 0) waits[wait_count++] = (fsdp_wait){rows[i].wait, FSDP_WAIT_DATA};
    counts[i] = rows[i].wait >= 0;
  }
  fsdp_program_end_section(program);
  fsdp_program_set_waits(program, waits, counts);
  return program;
}

// Runs a step that begins at `begin_ms` of the device's clock, which is `behind_ms` behind the host's; the
// host is woken `late_ms` after the copy.
static void run(fsdp_step_times *times, int64_t step, double begin_ms, double behind_ms, double late_ms) {
  for (int i = 0; i < COUNT; i++) {
    if (rows[i].stream == FSDP_STREAM_HOST) {
      double host_ms = begin_ms + behind_ms + late_ms;
      fsdp_step_times_record(times, step, i, (int64_t)((host_ms + rows[i].begin_ms) * 1e6),
                             (int64_t)((host_ms + rows[i].end_ms) * 1e6));
      continue;
    }
    fsdp_stream_context context = {.stream = rows[i].stream};
    now_ms = begin_ms + rows[i].begin_ms;
    fsdp_step_times_mark(times, step, i, &context, false);
    now_ms = begin_ms + rows[i].end_ms;
    fsdp_step_times_mark(times, step, i, &context, true);
  }
}

// From A's begin to B's end, C, UPDATE: in a queue or on threads.
static void assert_phases(const fsdp_step_times *times, int64_t step) {
  fsdp_step_sums sums;
  fsdp_step_times_sum(times, step, &sums);
  assert_near(sums.phase_ms[FSDP_PHASE_FORWARD], 5);
  assert_near(sums.phase_ms[FSDP_PHASE_BACKWARD], 7);
  assert_near(sums.phase_ms[FSDP_PHASE_UPDATE], 10);
  assert_near(sums.busy_ms[FSDP_STREAM_HOST], 1);
}

// The part of a step that a program with collectives exposes, from the few timestamps that it needs.
TEST(test_few_timestamps) {
  fsdp_program *program = make_program(true);
  fsdp_device device = {.table = &table};
  fsdp_step_times *times =
      fsdp_step_times_create(&(fsdp_step_times_config){.program = program, .device = &device});
  fsdp_exposure exposure;
  for (int64_t step = 1; step <= 7; step++) {
    taken = 0;
    run(times, step, 1000 + 40 * (double)step, 500, 0.25);
    assert_int_equal(taken, 2 + 2 + 2 + 6); // both gathers, the copy; A's begin, B's end, C, UPDATE
    assert_phases(times, step);
    fsdp_step_times_measure(times, step, &exposure);
    // The first gather, and the second from 8 to 12; then a millisecond without a cause.
    assert_near(exposure.comm_s, 7e-3);
    assert_near(exposure.work_s, 5e-3 + 17e-3); // what B waited for its launch is within its stretch
    // A step begins where the one before ended.
    assert_near(exposure.step_s, step == 1 ? 30e-3 : 40e-3);
    assert_near(exposure.other_s, step == 1 ? 1e-3 : 11e-3);
  }
  assert_int_equal(reserved, 3 * 12);
  fsdp_step_times_measure(times, 6, &exposure); // after step 7 has run
  assert_near(exposure.comm_s, 7e-3);
  int64_t origin_ns;
  assert_null(fsdp_step_times_timeline(times, &origin_ns));
  fsdp_step_times_destroy(times);
  fsdp_program_destroy(program);
}

// Traced steps have every instruction, on the clock that the best woken step of them shows.
TEST(test_traced_steps) {
  const double late_ms[] = {0, 0.5, 3, 1, 7, 7};
  fsdp_program *program = make_program(true);
  fsdp_device device = {.table = &table};
  fsdp_step_times *times = fsdp_step_times_create(
      &(fsdp_step_times_config){.program = program, .device = &device, .traced = {2, 4}, .rank = 3});
  for (int64_t step = 1; step <= 5; step++) {
    fsdp_exposure exposure;
    taken = 0;
    run(times, step, 40 * (double)step, 500, late_ms[step]);
    assert_int_equal(taken, step >= 2 && step <= 4 ? 2 * (COUNT - 1) : 12);
    assert_phases(times, step);
    fsdp_step_times_measure(times, step, &exposure);
    fsdp_step_times_measure(times, step, &exposure);
    assert_near(exposure.comm_s, 7e-3);
  }
  int64_t origin_ns;
  const fsdp_timeline *timeline = fsdp_step_times_timeline(times, &origin_ns);
  assert_int_equal(timeline->count, 3 * COUNT);
  for (int64_t e = 0; e < timeline->count; e++) {
    const fsdp_timeline_event *event = &timeline->events[e];
    int i = event->position;
    assert_true(event->rank == 3 && event->step == 2 + e / COUNT && i == (int)(e % COUNT));
    assert_int_equal(event->run, i == UPDATE);
    double begin_ms = 40 * (double)event->step + 500; // step 3 was the best woken: one millisecond late
    begin_ms += rows[i].stream == FSDP_STREAM_HOST ? late_ms[event->step] : 1;
    double origin_s = (double)origin_ns * 1e-9;
    assert_near(origin_s + event->begin_s, (begin_ms + rows[i].begin_ms) * 1e-3);
    assert_near(origin_s + event->end_s, (begin_ms + rows[i].end_ms) * 1e-3);
  }
  assert_ptr_equal(fsdp_step_times_timeline(times, &origin_ns), timeline);
  assert_near((double)origin_ns * 1e-9 + timeline->events[0].begin_s, 0.581);
  fsdp_step_times_destroy(times);
  fsdp_program_destroy(program);
}

// Without collectives phases alone are timed.
TEST(test_no_collectives) {
  fsdp_program *program = make_program(false);
  fsdp_device device = {.table = &table};
  taken = 0;
  fsdp_step_times *times =
      fsdp_step_times_create(&(fsdp_step_times_config){.program = program, .device = &device});
  fsdp_exposure exposure;
  run(times, 1, 0, 0, 0);
  assert_phases(times, 1);
  fsdp_step_times_measure(times, 1, &exposure);
  assert_true(taken == 6 && reserved == 3 * 6 && exposure.comm_s == 0 && exposure.step_s == 0);
  fsdp_step_times_destroy(times);
  fsdp_program_destroy(program);
}

// On threads every instruction is timed: busy times by stream and by op.
TEST(test_threads) {
  static const fsdp_device_table threads = {.enqueues = false};
  fsdp_program *program = make_program(true);
  fsdp_device device = {.table = &threads};
  fsdp_step_times *times =
      fsdp_step_times_create(&(fsdp_step_times_config){.program = program, .device = &device});
  for (int64_t step = 1; step <= 4; step++) {
    for (int i = 0; i < COUNT; i++) // odd steps take twice as long
      fsdp_step_times_record(times, step, i, (int64_t)(rows[i].begin_ms * 1e6) << step % 2,
                             (int64_t)(rows[i].end_ms * 1e6) << step % 2);
  }
  assert_phases(times, 4);
  fsdp_step_sums sums;
  fsdp_step_times_sum(times, 4, &sums);
  assert_near(sums.busy_ms[FSDP_STREAM_GATHER], 3 + 9);
  assert_near(sums.busy_ms[FSDP_STREAM_COMPUTE], 2 + 2.5 + 7 + 10);
  assert_near(sums.op_ms[FSDP_OP_RMSNORM], 2 + 2.5 + 10);
  assert_near(sums.op_ms[FSDP_OP_RMSNORM_BACKWARD], 7);
  fsdp_step_times_sum(times, 3, &sums);
  assert_near(sums.phase_ms[FSDP_PHASE_UPDATE], 20);
  fsdp_step_times_destroy(times);
  fsdp_program_destroy(program);
}
