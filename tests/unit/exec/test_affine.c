// What depends on the rank, end to end: an embedding whose table is cut over a named axis of odd size, with
// padded rows at its end. Each rank looks up what it holds; the sum over the axis is the whole table's rows.
#include "runtime/base/check.h"
#include "runtime/exec/session.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/proof/verify.h"
#include "runtime/plan/proof/waits.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

// 10 rows over 3 ranks: 4 each, the last with 2 of padding. Two replicas see different tokens.
enum { ROWS = 10, HELD = 4, CUT = 3, REPLICAS = 2, RANKS = CUT * REPLICAS, N = 12, C = 5 };
enum { WEIGHT, H, TOKENS, HOST_TOKENS, HOST_TARGETS, SCALARS, HOST_COUNT, RESULT, OWN, TENSORS };

static float table(int64_t row, int64_t column) {
  return (float)(1 + row * C + column);
}

static int32_t token(int replica, int n) {
  return (n * 7 + replica * 3) % ROWS;
}

static fsdp_operand whole(const fsdp_program *p, int tensor, fsdp_access access) {
  bool is_int = tensor == TOKENS || tensor == HOST_TOKENS || tensor == HOST_TARGETS;
  return (fsdp_operand){.tensor = tensor,
                        .dtype = is_int ? FSDP_I32 : FSDP_F32,
                        .access = access,
                        .size_bytes = p->tensors[tensor].bytes};
}

static fsdp_instr *add(fsdp_program *p, fsdp_instr instr, const fsdp_operand *operands, int count) {
  instr.unit = instr.module = instr.policy = -1;
  return &p->instrs[fsdp_program_instr(p, &instr, operands, count)];
}

static void add_tensors(fsdp_program *p) {
  const struct {
    const char *name;
    fsdp_space space;
    int64_t numel;
  } tensors[TENSORS] = {
      {"weight", FSDP_SPACE_DEVICE, HELD * C}, {"h", FSDP_SPACE_DEVICE, N * C},
      {"tokens", FSDP_SPACE_DEVICE, N},        {"host_tokens", FSDP_SPACE_HOST, N},
      {"host_targets", FSDP_SPACE_HOST, N},    {"scalars", FSDP_SPACE_HOST, FSDP_SCALAR_COUNT},
      {"host_count", FSDP_SPACE_HOST, 1},      {"result", FSDP_SPACE_HOST, 1},
      {"own", FSDP_SPACE_DEVICE, CUT}};
  for (int t = 0; t < TENSORS; t++) {
    bool stays = t == WEIGHT || t == H || t == OWN;
    fsdp_tensor tensor = {.space = tensors[t].space,
                          .lifetime = stays ? FSDP_LIVE_ALWAYS : FSDP_LIVE_STEP,
                          .unit = -1,
                          .module = -1,
                          .bytes = 4 * tensors[t].numel};
    snprintf(tensor.name, sizeof tensor.name, "%s", tensors[t].name);
    fsdp_program_tensor(p, &tensor);
  }
}

static fsdp_program *make_program(void) {
  fsdp_program *p = fsdp_program_create();
  p->mesh = (fsdp_mesh){0};
  FSDP_CHECK(fsdp_mesh_add(&p->mesh, "tensor", CUT) && fsdp_mesh_add(&p->mesh, "data", REPLICAS), "mesh");
  fsdp_mesh_complete(&p->mesh);
  fsdp_axis_set cut = fsdp_mesh_axes(&p->mesh, "tensor");
  add_tensors(p);
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  add(p, (fsdp_instr){.kind = FSDP_INSTR_FEED_STEP, .stream = FSDP_STREAM_HOST},
      (fsdp_operand[]){whole(p, SCALARS, FSDP_WRITE), whole(p, HOST_COUNT, FSDP_WRITE)}, 2);
  add(p, (fsdp_instr){.kind = FSDP_INSTR_FEED_BATCH, .stream = FSDP_STREAM_HOST},
      (fsdp_operand[]){whole(p, HOST_TOKENS, FSDP_WRITE), whole(p, HOST_TARGETS, FSDP_WRITE)}, 2);
  add(p, (fsdp_instr){.kind = FSDP_INSTR_H2D, .stream = FSDP_STREAM_H2D},
      (fsdp_operand[]){whole(p, HOST_TOKENS, FSDP_READ), whole(p, TOKENS, FSDP_WRITE)}, 2);
  fsdp_instr *lookup = add(
      p, (fsdp_instr){.kind = FSDP_INSTR_OP, .op = FSDP_OP_EMBEDDING, .stream = FSDP_STREAM_COMPUTE},
      (fsdp_operand[]){whole(p, TOKENS, FSDP_READ), whole(p, WEIGHT, FSDP_READ), whole(p, H, FSDP_WRITE)}, 3);
  lookup->attrs = (fsdp_op_attrs){.batch = 1, .seq = N, .channels = C, .vocabulary = HELD, .extent = ROWS};
  lookup->first_index = fsdp_affine_of_place(&p->mesh, cut, 0, HELD);
  add(p,
      (fsdp_instr){.kind = FSDP_INSTR_ALL_REDUCE,
                   .stream = FSDP_STREAM_REDUCE,
                   .comm = fsdp_program_comm_add(p, cut, FSDP_STREAM_REDUCE)},
      (fsdp_operand[]){whole(p, H, FSDP_UPDATE)}, 1);
  // Every rank's slot of `own` becomes 0.
  fsdp_operand own = whole(p, OWN, FSDP_WRITE);
  own.offset = fsdp_affine_of_place(&p->mesh, cut, 0, 4);
  own.size_bytes = 4;
  add(p, (fsdp_instr){.kind = FSDP_INSTR_OP, .op = FSDP_OP_ZERO, .stream = FSDP_STREAM_COMPUTE}, &own, 1);
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_UPDATE);
  fsdp_operand first = whole(p, H, FSDP_READ);
  first.size_bytes = 4;
  add(p, (fsdp_instr){.kind = FSDP_INSTR_D2H, .stream = FSDP_STREAM_D2H},
      (fsdp_operand[]){first, whole(p, RESULT, FSDP_WRITE)}, 2);
  add(p, (fsdp_instr){.kind = FSDP_INSTR_PUBLISH, .stream = FSDP_STREAM_HOST},
      (fsdp_operand[]){whole(p, RESULT, FSDP_READ)}, 1);
  fsdp_program_end_section(p);
  fsdp_program_lifetimes(p);
  fsdp_memory_report report;
  fsdp_memory_plan(p, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
  fsdp_waits_infer(p);
  fsdp_violation violation;
  if (!fsdp_verify_accesses(p, &violation)) fail_msg("%s", violation.message);
  return p;
}

typedef struct rank_run {
  const fsdp_plan *plan;
  fsdp_inproc *inproc;
  int rank, replica, place;
  float h[N * C], own[CUT];
  pthread_t thread;
} rank_run;

static void feed_step(void *context, float scalars[FSDP_SCALAR_COUNT], float *count) {
  (void)context, (void)scalars;
  *count = N;
}

static void feed_batch(void *context, int32_t *const inputs[FSDP_INPUT_COUNT]) {
  const rank_run *run = context;
  for (int n = 0; n < N; n++)
    inputs[FSDP_INPUT_TOKENS][n] = token(run->replica, n), inputs[FSDP_INPUT_TARGETS][n] = 0;
}

static void *run_rank(void *argument) {
  rank_run *run = argument;
  fsdp_session_config config = {
      .plan = run->plan,
      .inproc = run->inproc,
      .rank = run->rank,
      .threads = 1,
      .callbacks = {.context = run, .feed_step = feed_step, .feed_batch = feed_batch},
      .measure = true};
  fsdp_error error;
  fsdp_session session;
  FSDP_CHECK(fsdp_session_create(&config, &session, &error) == FSDP_OK, "%s", error.message);
  fsdp_executor *executor = session.executor;
  float *weight = fsdp_executor_tensor(executor, WEIGHT), *own = fsdp_executor_tensor(executor, OWN);
  for (int i = 0; i < HELD * C; i++) {
    int row = run->place * HELD + i / C;
    weight[i] = row < ROWS ? table(row, i % C) : NAN; // padding is never read
  }
  for (int i = 0; i < CUT; i++) own[i] = 1;
  fsdp_step_result result;
  fsdp_executor_run_step(executor, &result);
  fsdp_executor_drain(executor);
  fsdp_step_stats stats;
  char message[256] = "";
  bool clean = fsdp_executor_step_stats(executor, 1, &stats, message, (int)sizeof message);
  FSDP_CHECK(clean, "%s", message);
  memcpy(run->h, fsdp_executor_tensor(executor, H), sizeof run->h);
  memcpy(run->own, own, sizeof run->own);
  fsdp_session_destroy(&session);
  return NULL;
}

static void test_table_over_an_axis(void **state) {
  (void)state;
  fsdp_graph *graph = fsdp_graph_create(1, N);
  fsdp_graph_input(graph, FSDP_INPUT_TOKENS, N);
  fsdp_graph_input(graph, FSDP_INPUT_TARGETS, N);
  fsdp_plan plan = {.program = make_program(), .graph = graph, .gemm_workspace = -1};
  fsdp_inproc *inproc = fsdp_session_inproc(&plan);
  rank_run runs[RANKS];
  for (int r = 0; r < RANKS; r++) {
    // tensor before data: the last axis is the fastest.
    runs[r] = (rank_run){
        .plan = &plan, .inproc = inproc, .rank = r, .replica = r % REPLICAS, .place = r / REPLICAS};
    assert_int_equal(pthread_create(&runs[r].thread, NULL, run_rank, &runs[r]), 0);
  }
  for (int r = 0; r < RANKS; r++) pthread_join(runs[r].thread, NULL);
  for (int r = 0; r < RANKS; r++) {
    for (int i = 0; i < N * C; i++) assert_true(runs[r].h[i] == table(token(runs[r].replica, i / C), i % C));
    for (int i = 0; i < CUT; i++) assert_true(runs[r].own[i] == (i == runs[r].place ? 0 : 1));
  }
  fsdp_inproc_destroy(inproc);
  fsdp_program_destroy(plan.program);
  fsdp_graph_destroy(graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_table_over_an_axis)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
