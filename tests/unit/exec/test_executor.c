// The executor on a program made by hand: waits over streams and steps, results, evaluation, and the records
// that it keeps. Real plans run in test_strategies.c.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/exec/access_trace.h"
#include "runtime/exec/device_config.h"
#include "runtime/exec/session.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

// Every step adds its number of targets to a total that lives on the device, and publishes the total, as the
// loss, and the number, as the norm.
enum { TOTAL, COUNT, SCALARS, HOST_COUNT, RESULT }; // tensors
enum {
  FEED,
  RAISE,
  ADD,
  LOWER,
  PUBLISH,
  FEED_AGAIN,
  LOWER_AGAIN,
  AGAIN
}; // instructions; the last three evaluate

typedef struct sum_run {
  fsdp_plan plan;
  fsdp_session session;
  int64_t fed;
  uint64_t pauses[FSDP_STREAM_COUNT]; // made on each stream
  float published[2];                 // last: loss, norm
} sum_run;

static void add_tensor(fsdp_program *program, const char *name, fsdp_space space, int64_t bytes,
                       int64_t address) {
  fsdp_tensor tensor = {.space = space, .bytes = bytes, .unit = -1, .module = -1};
  snprintf(tensor.name, sizeof tensor.name, "%s", name);
  int index = fsdp_program_tensor(program, &tensor);
  program->tensors[index].address = address;
}

static fsdp_operand whole(const fsdp_program *program, int tensor, fsdp_access access) {
  return (fsdp_operand){
      .tensor = tensor, .dtype = FSDP_F32, .access = access, .size_bytes = program->tensors[tensor].bytes};
}

static void add_instr(fsdp_program *program, fsdp_instr_kind kind, fsdp_stream stream, fsdp_operand a,
                      const fsdp_operand *b) {
  fsdp_instr instr = {
      .kind = kind, .stream = stream, .op = FSDP_OP_ADD, .unit = -1, .module = -1, .policy = -1};
  fsdp_operand operands[2] = {a, b ? *b : a};
  fsdp_program_instr(program, &instr, operands, b ? 2 : 1);
}

static void add_instrs(fsdp_program *p) {
  fsdp_operand fed = whole(p, HOST_COUNT, FSDP_WRITE), raised = whole(p, COUNT, FSDP_WRITE);
  fsdp_operand total = whole(p, TOTAL, FSDP_UPDATE), result = whole(p, RESULT, FSDP_WRITE);
  fsdp_operand count = whole(p, HOST_COUNT, FSDP_READ);
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  add_instr(p, FSDP_INSTR_FEED_STEP, FSDP_STREAM_HOST, whole(p, SCALARS, FSDP_WRITE), &fed);
  add_instr(p, FSDP_INSTR_H2D, FSDP_STREAM_H2D, whole(p, HOST_COUNT, FSDP_READ), &raised);
  add_instr(p, FSDP_INSTR_OP, FSDP_STREAM_COMPUTE, whole(p, COUNT, FSDP_READ), &total);
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_UPDATE);
  add_instr(p, FSDP_INSTR_D2H, FSDP_STREAM_D2H, whole(p, TOTAL, FSDP_READ), &result);
  add_instr(p, FSDP_INSTR_PUBLISH, FSDP_STREAM_HOST, whole(p, RESULT, FSDP_READ), &count);
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_EVALUATION);
  add_instr(p, FSDP_INSTR_FEED_STEP, FSDP_STREAM_HOST, whole(p, SCALARS, FSDP_WRITE), &fed);
  add_instr(p, FSDP_INSTR_D2H, FSDP_STREAM_D2H, whole(p, TOTAL, FSDP_READ), &result);
  add_instr(p, FSDP_INSTR_PUBLISH, FSDP_STREAM_HOST, whole(p, RESULT, FSDP_READ), NULL);
  fsdp_program_end_section(p);
}

// Each wait by hand, including those on the step before.
static void add_waits(fsdp_program *program) {
  static const int waits[][3] = {
      [FEED] = {RAISE, -1},
      [RAISE] = {FEED, ADD, -1},
      [ADD] = {RAISE, LOWER, LOWER_AGAIN},
      [LOWER] = {ADD, PUBLISH, AGAIN},
      [PUBLISH] = {LOWER, -1},
      [FEED_AGAIN] = {RAISE, -1},
      [LOWER_AGAIN] = {ADD, PUBLISH, AGAIN},
      [AGAIN] = {LOWER_AGAIN, -1},
  };
  fsdp_wait list[24];
  int counts[8], count = 0;
  for (int i = 0; i < 8; i++) {
    counts[i] = 0;
    for (int w = 0; w < 3 && waits[i][w] >= 0; w++) {
      list[count++] = (fsdp_wait){.position = waits[i][w]};
      counts[i]++;
    }
  }
  fsdp_program_set_waits(program, list, counts);
}

static void feed_step(void *context, float scalars[FSDP_SCALAR_COUNT], float *target_count) {
  sum_run *run = context;
  FSDP_CHECK(scalars[FSDP_SCALAR_ONE] == 1.0f, "the factor one is not set");
  *target_count = (float)++run->fed;
}

static void publish(void *context, float loss, float grad_norm) {
  sum_run *run = context;
  run->published[0] = loss, run->published[1] = grad_norm;
}

// Streams lag by random times, so that a wait that is missing or wrong shows.
static void pause_randomly(void *context, const fsdp_instr *instr, const fsdp_view *operands) {
  sum_run *run = context;
  uint32_t words[4];
  fsdp_random_words(5, (uint64_t)instr->stream, run->pauses[instr->stream]++, words);
  if (words[0] % 4 == 0) nanosleep(&(struct timespec){.tv_nsec = words[1] % 300000}, NULL);
}

static sum_run *create_run(int64_t host_count_address) {
  sum_run *run = fsdp_alloc_zeroed(1, sizeof *run);
  fsdp_program *program = fsdp_program_create();
  run->plan.program = program;
  program->micro_batches = 1;
  program->mesh = fsdp_mesh_of(1, 1);
  program->arena_bytes[FSDP_SPACE_DEVICE] = program->arena_bytes[FSDP_SPACE_HOST] = 256;
  add_tensor(program, "total", FSDP_SPACE_DEVICE, 4, 0);
  add_tensor(program, "count", FSDP_SPACE_DEVICE, 4, 64);
  add_tensor(program, "scalars", FSDP_SPACE_HOST, 4 * FSDP_SCALAR_COUNT, 0);
  add_tensor(program, "host_count", FSDP_SPACE_HOST, 4, host_count_address);
  add_tensor(program, "result", FSDP_SPACE_HOST, 4, 128);
  add_instrs(program);
  add_waits(program);
  fsdp_error error;
  fsdp_status status = fsdp_session_create(&(fsdp_session_config){.plan = &run->plan,
                                                                  .threads = 1,
                                                                  .callbacks = {.context = run,
                                                                                .feed_step = feed_step,
                                                                                .publish = publish,
                                                                                .observe = pause_randomly},
                                                                  .measure = true,
                                                                  .profile = true},
                                           &run->session, &error);
  assert_int_equal(status, FSDP_OK);
  fsdp_device *device = run->session.device;
  device->table->clear(device, device->arenas.memory[FSDP_SPACE_DEVICE], 4); // the total
  return run;
}

static void destroy_run(sum_run *run) {
  fsdp_session_destroy(&run->session);
  fsdp_program_destroy(run->plan.program);
  free(run);
}

TEST(steps_follow_each_other) {
  sum_run *run = create_run(64);
  float total = 0, evaluated;
  for (int step = 1; step <= 200; step++) {
    fsdp_step_result result;
    fsdp_executor_run_step(run->session.executor, &result);
    total += (float)run->fed;
    assert_int_equal(result.step, step);
    assert_true(result.loss == total);
    assert_true(result.grad_norm == (float)run->fed);
    assert_true(run->published[0] == total && run->published[1] == (float)run->fed);
    if (step % 10 != 0) continue;
    // Feeds a number too, but adds it to nothing.
    fsdp_executor_run_evaluation(run->session.executor, &evaluated);
    assert_true(evaluated == total);
    assert_true(run->published[0] == total && isnan(run->published[1]));
  }
  assert_true(*(float *)fsdp_executor_tensor(run->session.executor, TOTAL) == total);
  destroy_run(run);
}

TEST(figures_are_measured) {
  sum_run *run = create_run(64);
  fsdp_step_result result;
  fsdp_step_stats stats;
  char message[256] = "";
  for (int step = 1; step <= 3; step++) fsdp_executor_run_step(run->session.executor, &result);
  for (int step = 2; step <= 3; step++) {
    assert_true(fsdp_executor_step_stats(run->session.executor, step, &stats, message, (int)sizeof message));
    assert_int_equal(stats.memory.valley_bytes[FSDP_SPACE_DEVICE], 4);
    assert_int_equal(stats.memory.peak_bytes[FSDP_SPACE_DEVICE], 8);
    assert_int_equal(stats.memory.valley_bytes[FSDP_SPACE_HOST], 0);
    assert_int_equal(stats.memory.peak_bytes[FSDP_SPACE_HOST], 4 * FSDP_SCALAR_COUNT + 4);
    assert_true(stats.sums.busy_ms[FSDP_STREAM_COMPUTE] > 0);
    assert_true(stats.sums.busy_ms[FSDP_STREAM_GATHER] == 0);
  }
  destroy_run(run);
}

// The count that is fed lies on the scalars that are fed.
TEST(collisions_are_reported) {
  sum_run *run = create_run(0);
  fsdp_step_result result;
  fsdp_step_stats stats;
  char message[256] = "";
  fsdp_executor_run_step(run->session.executor, &result);
  assert_false(fsdp_executor_step_stats(run->session.executor, 1, &stats, message, (int)sizeof message));
  assert_non_null(strstr(message, "buffers 2 and 3 both need byte 0 of space 1"));
  destroy_run(run);
}

// What a kernel reports outside its operands, or writes where it should read, is an error that names the
// instruction.
TEST(touches_are_checked) {
  sum_run *run = create_run(64);
  fsdp_access_trace *trace = fsdp_access_trace_create(run->plan.program, run->session.device, -1);
  unsigned char *arena = run->session.device->arenas.memory[FSDP_SPACE_DEVICE];
  const fsdp_view views[2] = {{arena + 64, 1, FSDP_F32, FSDP_READ}, {arena, 1, FSDP_F32, FSDP_UPDATE}};
  static const struct {
    int64_t offset, bytes;
    fsdp_access access;
    const char *expected;
  } cases[] = {
      {64, 4, FSDP_READ, NULL},
      {0, 4, FSDP_UPDATE, NULL},
      {2, 4, FSDP_READ, "instruction 2 (add on compute) accesses bytes outside its operands: 4 bytes"},
      {128, 1, FSDP_READ, "accesses bytes outside its operands"},
      {64, 4, FSDP_WRITE, "instruction 2 (add on compute) writes an operand that it should only read"}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fsdp_access_trace_begin_step(trace, 1);
    fsdp_access_recorder *recorder = fsdp_access_trace_instr(trace, 1, 0, ADD, views);
    recorder->range(recorder, arena + cases[c].offset, cases[c].bytes, cases[c].access);
    fsdp_measurement measurement;
    char message[512] = "";
    bool clean = fsdp_access_trace_measure(trace, 1, 1, &measurement, message, (int)sizeof message);
    assert_int_equal(clean, cases[c].expected == NULL);
    if (cases[c].expected) assert_non_null(strstr(message, cases[c].expected));
  }
  // Of several the first is named.
  fsdp_access_trace_begin_step(trace, 1);
  fsdp_access_recorder *recorder = fsdp_access_trace_instr(trace, 1, 0, ADD, views);
  recorder->range(recorder, arena + 64, 4, FSDP_WRITE);
  recorder->range(recorder, arena + 128, 1, FSDP_READ);
  fsdp_measurement measurement;
  char message[512] = "";
  assert_false(fsdp_access_trace_measure(trace, 1, 1, &measurement, message, (int)sizeof message));
  assert_non_null(strstr(message, "writes an operand that it should only read: 4 bytes"));
  fsdp_access_trace_destroy(trace);
  destroy_run(run);
}

// A stream that only casts gets few of a rank's threads, which the others need: memory is what limits it.
TEST(casts_have_few_threads) {
  fsdp_program *program = fsdp_program_create();
  add_tensor(program, "number", FSDP_SPACE_DEVICE, 4, 0);
  fsdp_program_begin_section(program, FSDP_SECTION_FIRST);
  const fsdp_stream streams[] = {FSDP_STREAM_GATHER, FSDP_STREAM_SHARD, FSDP_STREAM_COMPUTE,
                                 FSDP_STREAM_HOST};
  for (int i = 0; i < 4; i++)
    add_instr(program, FSDP_INSTR_OP, streams[i], whole(program, 0, FSDP_READ), NULL);
  fsdp_program_end_section(program);
  for (int threads = 1; threads <= 64; threads *= 4) {
    fsdp_device_config config = {.shared = NULL};
    fsdp_device_configure(program, threads, &config);
    assert_int_equal(config.stream_threads[FSDP_STREAM_COMPUTE], threads);
    assert_int_equal(config.stream_threads[FSDP_STREAM_HOST], threads);
    assert_int_equal(config.stream_threads[FSDP_STREAM_GATHER], threads < 4 ? threads : 4);
    assert_int_equal(config.stream_threads[FSDP_STREAM_SHARD], threads < 4 ? threads : 4);
  }
  fsdp_program_destroy(program);
}

static void *create_trace(void *program) {
  fsdp_access_trace_destroy(fsdp_access_trace_create(program, NULL, -1));
  return NULL;
}

// The order of a step's sections is as long as its micro-batches are many: it is not on the stack.
TEST(many_micro_batches) {
  fsdp_program *program = fsdp_program_create();
  program->micro_batches = 300000;
  for (int kind = FSDP_SECTION_FIRST; kind <= FSDP_SECTION_UPDATE; kind++) {
    fsdp_program_begin_section(program, (fsdp_section_kind)kind);
    fsdp_program_end_section(program);
  }
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  assert_int_equal(pthread_attr_setstacksize(&attributes, (size_t)512 << 10), 0);
  assert_int_equal(pthread_create(&thread, &attributes, create_trace, program), 0);
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attributes);
  fsdp_program_destroy(program);
}
