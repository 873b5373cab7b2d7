// zero1: what every rank keeps whole is gathered after its update, in the order of the next forward, and who
// reads it waits for its own unit alone: at the seams to the next step, to an evaluation and from a load.
#include "runtime/plan/plan.h"
#include "runtime/plan/proof/verify.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

enum { OFFLOAD = 1, BF16 = 2, CLIPS = 4, ACCUMULATES = 8, MODES = 16, NONE = -1 };

static fsdp_plan *plan_of(int mode, int ranks) {
  fsdp_plan_config config = {.batch = 1,
                             .seq = 32,
                             .micro_batches = mode & ACCUMULATES ? 3 : 1,
                             .accumulate = FSDP_ACCUMULATE_LOCAL,
                             .strategy = FSDP_ZERO1,
                             .mesh = fsdp_mesh_of(1, ranks),
                             .wrap = {.kind = FSDP_WRAP_BLOCK},
                             .prefetch = 1,
                             .grad_clip = mode & CLIPS ? 1.0f : 0,
                             .cpu_offload = mode & OFFLOAD,
                             .param_dtype = mode & BF16 ? FSDP_BF16 : FSDP_F32,
                             .evaluation = true,
                             .backend = fsdp_plan_backend_cpu()};
  fsdp_error error = {0};
  fsdp_plan *plan = NULL;
  config.model = model_of_preset("tiny");
  if (fsdp_plan_create(&config, &plan, &error)) fail_msg("%s", error.message);
  return plan;
}

static const fsdp_section *section_of(const fsdp_plan *plan, fsdp_section_kind kind) {
  for (int s = 0; s < plan->program->section_count; s++)
    if (plan->program->sections[s].kind == kind) return &plan->program->sections[s];
  return NULL;
}

// The first position in a section that accesses a tensor so, on a stream (NONE: on any).
static int first_access(const fsdp_plan *plan, fsdp_section_kind kind, int tensor, fsdp_access access,
                        int stream) {
  const fsdp_program *program = plan->program;
  const fsdp_section *section = section_of(plan, kind);
  for (int i = section ? section->begin : 0; section && i < section->end; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (stream != NONE && (int)instr->stream != stream) continue;
    for (int o = 0; o < instr->operand_count; o++) {
      const fsdp_operand *operand = &program->operands[instr->first_operand + o];
      if (operand->tensor == tensor && (operand->access & access)) return i;
    }
  }
  return NONE;
}

static int gather_of(const fsdp_plan *plan, fsdp_section_kind kind, int u) {
  const fsdp_section *section = section_of(plan, kind);
  for (int i = section->begin; i < section->end; i++)
    if (plan->program->instrs[i].kind == FSDP_INSTR_ALL_GATHER && plan->program->instrs[i].unit == u)
      return i;
  return NONE;
}

static fsdp_section_kind first_section(const fsdp_plan *plan) {
  return plan->config.micro_batches > 1 ? FSDP_SECTION_FIRST : FSDP_SECTION_ONLY;
}

static int compute_of(const fsdp_plan *plan, fsdp_section_kind kind, int u) {
  return first_access(plan, kind, plan->unit_state[u].whole, FSDP_READ, FSDP_STREAM_COMPUTE);
}

TEST(test_gathers_in_the_order_of_the_forward) {
  for (int mode = 0; mode < MODES; mode++) {
    fsdp_plan *plan = plan_of(mode, 4);
    const fsdp_section *update = section_of(plan, FSDP_SECTION_UPDATE);
    int gathers = 0, last_read = NONE;
    for (int i = update->begin; i < update->end; i++) {
      const fsdp_instr *instr = &plan->program->instrs[i];
      if (instr->kind != FSDP_INSTR_ALL_GATHER) continue;
      assert_int_equal(instr->stream, FSDP_STREAM_GATHER);
      int read = compute_of(plan, first_section(plan), instr->unit);
      assert_true(read > last_read);
      last_read = read;
      int master = plan->unit_state[instr->unit].slot[FSDP_SLOT_MASTER];
      fsdp_section_kind with_update = mode & CLIPS         ? FSDP_SECTION_UPDATE
                                      : mode & ACCUMULATES ? FSDP_SECTION_LAST
                                                           : FSDP_SECTION_ONLY;
      int updated = first_access(plan, with_update, master, FSDP_WRITE, NONE);
      assert_true(updated != NONE && updated < i);
      gathers++;
    }
    assert_int_equal(gathers, plan->units->count);
    // Nothing else gathers in a step or in an evaluation.
    for (int i = 0; i < update->begin; i++)
      assert_true(plan->program->instrs[i].kind != FSDP_INSTR_ALL_GATHER);
    const fsdp_section *evaluation = section_of(plan, FSDP_SECTION_EVALUATION);
    for (int i = evaluation->begin; i < evaluation->end; i++)
      assert_true(plan->program->instrs[i].kind != FSDP_INSTR_ALL_GATHER);
    fsdp_plan_destroy(plan);
  }
}

// That `position` waits for `awaited`, and would race with it otherwise.
static void expect_wait(fsdp_plan *plan, int position, int awaited) {
  fsdp_program *program = plan->program;
  fsdp_instr *instr = &program->instrs[position];
  fsdp_wait *waits = &program->waits[instr->first_wait], *last = &waits[instr->wait_count - 1];
  int found = 0;
  while (found < instr->wait_count && waits[found].position != awaited) found++;
  assert_true(found < instr->wait_count);
  assert_int_equal(waits[found].reason, FSDP_WAIT_DATA);
  fsdp_wait removed = waits[found];
  waits[found] = *last;
  *last = removed;
  instr->wait_count--;
  fsdp_violation violation;
  assert_false(fsdp_verify(program, &violation));
  assert_int_equal(violation.kind, FSDP_VIOLATION_RACE);
  instr->wait_count++;
}

TEST(test_readers_wait_for_their_own_unit) {
  for (int mode = 0; mode < MODES; mode++) {
    fsdp_plan *plan = plan_of(mode, 3);
    const fsdp_program *program = plan->program;
    const fsdp_section_kind readers[] = {first_section(plan), FSDP_SECTION_EVALUATION};
    const fsdp_section_kind writers[] = {FSDP_SECTION_UPDATE, FSDP_SECTION_EXCHANGE};
    for (int u = 0; u < plan->units->count; u++)
      for (int r = 0; r < 2; r++)
        for (int w = 0; w < 2; w++) {
          int reader = compute_of(plan, readers[r], u), gather = gather_of(plan, writers[w], u);
          expect_wait(plan, reader, gather);
          // Of the gathers it waits for its own, and so for those before it; for none behind it.
          const fsdp_instr *instr = &program->instrs[reader];
          for (int i = 0; i < instr->wait_count; i++) {
            int awaited = program->waits[instr->first_wait + i].position;
            bool gathers = program->instrs[awaited].kind == FSDP_INSTR_ALL_GATHER;
            assert_true(!gathers || program->instrs[awaited].unit == u);
          }
        }
    fsdp_plan_destroy(plan);
  }
}

// One rank holds all of a unit: in one dtype it computes with the masters, in two with a copy, as under `no`.
TEST(test_one_rank_keeps_nothing_twice) {
  for (int mode = 0; mode < MODES; mode++) {
    fsdp_plan *plan = plan_of(mode, 1);
    for (int u = 0; u < plan->units->count; u++) {
      assert_int_equal(plan->unit_state[u].whole >= 0, (mode & OFFLOAD) != 0);
      assert_int_equal(plan->unit_state[u].copy >= 0, !(mode & OFFLOAD) && (mode & BF16));
    }
    for (int i = 0; i < plan->program->instr_count; i++)
      assert_false(fsdp_instr_is_collective(&plan->program->instrs[i]));
    fsdp_plan_destroy(plan);
  }
}
