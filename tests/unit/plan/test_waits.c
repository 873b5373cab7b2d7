// Waits of programs small enough to know them by hand: which there must be, why, and which others imply.
#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/proof/sort.h"
#include "runtime/plan/proof/verify.h"
#include "runtime/plan/proof/waits.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

static int tensor(fsdp_program *program, fsdp_lifetime lifetime, int64_t bytes) {
  fsdp_tensor t = {.lifetime = lifetime, .unit = -1, .module = -1, .bytes = bytes};
  snprintf(t.name, sizeof t.name, "t%d", program->tensor_count);
  return fsdp_program_tensor(program, &t);
}

static fsdp_operand whole(const fsdp_program *program, int t, fsdp_access access) {
  return (fsdp_operand){.tensor = t, .access = access, .size_bytes = program->tensors[t].bytes};
}

static int issue_with_policy(fsdp_program *program, fsdp_stream stream, int policy, fsdp_operand a,
                             fsdp_operand b) {
  fsdp_instr instr = {.kind = FSDP_INSTR_OP,
                      .stream = stream,
                      .op = FSDP_OP_CAST,
                      .unit = -1,
                      .module = -1,
                      .policy = policy};
  fsdp_operand operands[2] = {a, b};
  return fsdp_program_instr(program, &instr, operands, b.access ? 2 : a.access ? 1 : 0);
}

static int issue(fsdp_program *program, fsdp_stream stream, fsdp_operand a, fsdp_operand b) {
  return issue_with_policy(program, stream, -1, a, b);
}

static const fsdp_operand nothing = {0};

// The wait of `position` on `awaited`, or NULL.
static const fsdp_wait *wait_on(const fsdp_program *program, int position, int awaited) {
  const fsdp_instr *instr = &program->instrs[position];
  for (int w = 0; w < instr->wait_count; w++)
    if (program->waits[instr->first_wait + w].position == awaited)
      return &program->waits[instr->first_wait + w];
  return NULL;
}

static void assert_waits(const fsdp_program *program, int position, int awaited, fsdp_wait_reason reason) {
  const fsdp_wait *wait = wait_on(program, position, awaited);
  assert_non_null(wait);
  assert_int_equal(wait->reason, reason);
}

// Ends the section if one is open, adds an empty update, sets lifetimes and addresses as given (NULL:
// planned), infers waits and verifies.
static void finish(fsdp_program *program, const int64_t *addresses) {
  if (program->sections[program->section_count - 1].end < 0) fsdp_program_end_section(program);
  if (program->sections[program->section_count - 1].kind < FSDP_SECTION_UPDATE) {
    fsdp_program_begin_section(program, FSDP_SECTION_UPDATE);
    fsdp_program_end_section(program);
  }
  fsdp_program_lifetimes(program);
  fsdp_memory_report report;
  fsdp_memory_plan(program, &(fsdp_memory_limits){.shared_bytes = 0}, &report);
  for (int t = 0; addresses && t < program->tensor_count; t++) {
    program->tensors[t].address = addresses[t];
    if (program->arena_bytes[0] < addresses[t] + program->tensors[t].bytes)
      program->arena_bytes[0] = addresses[t] + program->tensors[t].bytes;
  }
  fsdp_waits_infer(program);
  fsdp_violation violation;
  if (!fsdp_verify_accesses(program, &violation)) fail_msg("%s", violation.message);
}

TEST(test_data_and_seam) {
  fsdp_program *p = fsdp_program_create();
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  int t = tensor(p, FSDP_LIVE_SECTION, 64);
  int write = issue(p, FSDP_STREAM_GATHER, whole(p, t, FSDP_WRITE), nothing);
  int read = issue(p, FSDP_STREAM_COMPUTE, whole(p, t, FSDP_READ), nothing);
  finish(p, NULL);
  assert_int_equal(p->wait_count, 2);
  assert_waits(p, read, write, FSDP_WAIT_DATA);
  assert_waits(p, write, read, FSDP_WAIT_DATA); // the next step's write waits for this step's read
  fsdp_program_destroy(p);
}

TEST(test_reuse_of_an_address) {
  fsdp_program *p = fsdp_program_create();
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  int a = tensor(p, FSDP_LIVE_SECTION, 64), b = tensor(p, FSDP_LIVE_SECTION, 64);
  issue(p, FSDP_STREAM_COMPUTE, whole(p, a, FSDP_WRITE), nothing);
  int last_use = issue(p, FSDP_STREAM_REDUCE, whole(p, a, FSDP_READ), nothing);
  int reuse = issue(p, FSDP_STREAM_COMPUTE, whole(p, b, FSDP_WRITE), nothing);
  finish(p, (int64_t[]){0, 0});
  assert_waits(p, reuse, last_use, FSDP_WAIT_REUSE);
  finish(p, (int64_t[]){0, 64});
  assert_null(wait_on(p, reuse, last_use)); // apart, nothing stands between them
  fsdp_program_destroy(p);
}

TEST(test_implied_waits_are_left_out) {
  fsdp_program *p = fsdp_program_create();
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  int x = tensor(p, FSDP_LIVE_SECTION, 64), y = tensor(p, FSDP_LIVE_SECTION, 64);
  int first = issue(p, FSDP_STREAM_GATHER, whole(p, x, FSDP_WRITE), nothing);
  int second = issue(p, FSDP_STREAM_COMPUTE, whole(p, x, FSDP_READ), whole(p, y, FSDP_WRITE));
  int third = issue(p, FSDP_STREAM_REDUCE, whole(p, y, FSDP_READ), whole(p, x, FSDP_READ));
  int fourth = issue(p, FSDP_STREAM_REDUCE, whole(p, y, FSDP_UPDATE), nothing);
  finish(p, (int64_t[]){0, 64});
  assert_waits(p, second, first, FSDP_WAIT_DATA);
  assert_waits(p, third, second, FSDP_WAIT_DATA);
  assert_int_equal(p->instrs[third].wait_count, 1); // `first` comes before `second`
  assert_int_equal(p->instrs[fourth].wait_count, 0);
  // Over the seam: the next gather needs the last reader of x, which comes after everything else.
  assert_int_equal(p->instrs[first].wait_count, 1);
  assert_waits(p, first, third, FSDP_WAIT_DATA);
  fsdp_program_destroy(p);
}

TEST(test_middle_runs_into_itself) {
  fsdp_program *p = fsdp_program_create();
  p->micro_batches = 3;
  int sum = tensor(p, FSDP_LIVE_STEP, 64), positions[3][2];
  for (int i = 0; i < 3; i++) {
    fsdp_program_begin_section(p, (fsdp_section_kind)(FSDP_SECTION_FIRST + i));
    int t = tensor(p, FSDP_LIVE_SECTION, 64);
    positions[i][0] = issue(p, FSDP_STREAM_COMPUTE, whole(p, t, FSDP_WRITE), nothing);
    positions[i][1] = issue(p, FSDP_STREAM_REDUCE, whole(p, t, FSDP_READ),
                            whole(p, sum, i == 0 ? FSDP_WRITE : FSDP_UPDATE));
    if (i < 2) fsdp_program_end_section(p);
  }
  finish(p, (int64_t[]){0, 64, 64, 64});
  // The three temporaries share bytes, so each micro-batch waits for the one before.
  assert_waits(p, positions[1][0], positions[0][1], FSDP_WAIT_REUSE);
  assert_waits(p, positions[2][0], positions[1][1], FSDP_WAIT_REUSE);
  assert_waits(p, positions[0][0], positions[2][1], FSDP_WAIT_REUSE);
  assert_null(wait_on(p, positions[1][0], positions[1][1])); // one middle only, so never after itself
  p->micro_batches = 4;
  fsdp_waits_infer(p);
  assert_waits(p, positions[1][0], positions[1][1], FSDP_WAIT_DATA);
  assert_true(fsdp_verify_accesses(p, NULL));
  fsdp_program_destroy(p);
}

TEST(test_evaluation_seams) {
  fsdp_program *p = fsdp_program_create();
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  int t = tensor(p, FSDP_LIVE_SECTION, 64);
  int train = issue(p, FSDP_STREAM_COMPUTE, whole(p, t, FSDP_WRITE), nothing);
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_UPDATE);
  fsdp_program_end_section(p);
  fsdp_program_begin_section(p, FSDP_SECTION_EVALUATION);
  int e = tensor(p, FSDP_LIVE_SECTION, 64);
  int evaluate = issue(p, FSDP_STREAM_GATHER, whole(p, e, FSDP_WRITE), nothing);
  int evaluated = issue(p, FSDP_STREAM_REDUCE, whole(p, e, FSDP_READ), nothing);
  finish(p, (int64_t[]){0, 0});
  assert_waits(p, evaluate, train, FSDP_WAIT_REUSE);
  assert_waits(p, evaluate, evaluated, FSDP_WAIT_DATA); // evaluation after evaluation
  assert_waits(p, train, evaluated, FSDP_WAIT_REUSE);
  fsdp_program_destroy(p);
}

TEST(test_operands_that_move_with_the_rank) {
  fsdp_program *p = fsdp_program_create();
  fsdp_mesh_resize(&p->mesh, FSDP_AXIS_FSDP, 4);
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  int t = tensor(p, FSDP_LIVE_SECTION, 256);
  fsdp_operand slot = {.tensor = t, .access = FSDP_WRITE, .size_bytes = 64};
  slot.offset = fsdp_affine_of_place(&p->mesh, fsdp_mesh_axes(&p->mesh, "fsdp"), 0, 64);
  int cast = issue(p, FSDP_STREAM_COMPUTE, slot, nothing);
  slot.access = FSDP_READ;
  int gather = issue(p, FSDP_STREAM_GATHER, slot, whole(p, t, FSDP_WRITE));
  fsdp_operand last_slot = {.tensor = t, .access = FSDP_READ, .offset.base = 192, .size_bytes = 64};
  int read = issue(p, FSDP_STREAM_REDUCE, last_slot, nothing);
  finish(p, NULL);
  assert_waits(p, gather, cast, FSDP_WAIT_DATA);
  assert_waits(p, read, gather, FSDP_WAIT_DATA);
  // Rank 3's slot is what is read, so the list that all ranks share has the wait.
  assert_waits(p, cast, read, FSDP_WAIT_DATA);
  fsdp_program_destroy(p);
}

TEST(test_policies) {
  fsdp_program *p = fsdp_program_create();
  fsdp_program_begin_section(p, FSDP_SECTION_ONLY);
  int x = tensor(p, FSDP_LIVE_SECTION, 64), y = tensor(p, FSDP_LIVE_SECTION, 64);
  int compute = issue(p, FSDP_STREAM_COMPUTE, whole(p, x, FSDP_WRITE), nothing);
  int bounded = issue_with_policy(p, FSDP_STREAM_GATHER, compute, whole(p, y, FSDP_WRITE), nothing);
  int needed = issue_with_policy(p, FSDP_STREAM_REDUCE, compute, whole(p, x, FSDP_READ), nothing);
  int behind = issue_with_policy(p, FSDP_STREAM_GATHER, compute, whole(p, y, FSDP_READ), nothing);
  int same = issue_with_policy(p, FSDP_STREAM_COMPUTE, compute, nothing, nothing);
  finish(p, (int64_t[]){0, 64});
  assert_waits(p, bounded, compute, FSDP_WAIT_POLICY);
  assert_waits(p, needed, compute, FSDP_WAIT_DATA);  // the bytes ask for it already
  assert_int_equal(p->instrs[behind].wait_count, 0); // follows `bounded` on its stream
  assert_int_equal(p->instrs[same].wait_count, 0);
  fsdp_program_destroy(p);
}

// ---- The order of accessed bytes

// By key, then by where it was.
static int compare_records(const void *a, const void *b) {
  const fsdp_record *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->of < y->of ? -1 : x->of > y->of;
}

TEST(records_are_sorted_by_key_and_equal_ones_stay_in_order) {
  enum { COUNT = 3000 };
  static const int64_t far[] = {0, INT64_MIN, INT64_MAX, -1, 1};
  fsdp_record *sorted = fsdp_alloc(3 * COUNT * sizeof *sorted), *expected = sorted + 2 * COUNT;
  for (int shift = 0; shift < 64; shift += 7) { // many equal keys, then few
    for (int i = 0; i < COUNT; i++) {
      uint32_t words[4];
      fsdp_random_words(5, (uint64_t)shift, (uint64_t)i, words);
      const int64_t drawn = (int64_t)((uint64_t)words[0] << 32 | words[1]) >> (63 - shift);
      sorted[i] = expected[i] = (fsdp_record){i < 5 ? far[i] : drawn, &sorted[i]};
    }
    qsort(expected, COUNT, sizeof *expected, compare_records);
    const fsdp_record *found = fsdp_sort_records(sorted, sorted + COUNT, COUNT);
    for (int i = 0; i < COUNT; i++) {
      assert_true(found[i].key == expected[i].key);
      assert_ptr_equal(found[i].of, expected[i].of);
    }
  }
  assert_ptr_equal(fsdp_sort_records(sorted, sorted + COUNT, 0), sorted);
  free(sorted);
}
