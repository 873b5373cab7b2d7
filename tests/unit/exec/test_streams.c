// Which streams instructions are on, over random configurations: by what a stream may hold, and not by what
// the passes say of it.
#include "runtime/plan/plan.h"
#include "tests/support/cases.h"
#include "tests/support/draws.h"
#include "tests/support/models.h"
#include "tests/support/random_plan.h"
#include "tests/support/unit_test.h"

static int configs(void) {
  return test_draws(200, 40);
}

// A stream of collectives has the GPU's highest priority, so its ops go before products. The only ones there
// are what a collective on the same stream sends, or, in a group of one rank, what stands in its place: casts
// of gathers.
static bool may_go_first(const fsdp_program *program, int position) {
  const fsdp_instr *instr = &program->instrs[position];
  if (instr->op == FSDP_OP_POISON) return true;
  const fsdp_operand *to = &program->operands[instr->first_operand + 1];
  return instr->stream == FSDP_STREAM_GATHER && instr->op == FSDP_OP_CAST &&
         (program->tensors[to->tensor].category == FSDP_CATEGORY_GATHERED ||
          program->tensors[to->tensor].category == FSDP_CATEGORY_PARAMETERS);
}

static void check_instr(const fsdp_program *program, int position, bool snapshot, int *ops, int *copies) {
  const fsdp_instr *instr = &program->instrs[position];
  if (instr->kind == FSDP_INSTR_OP && fsdp_stream_communicates(instr->stream) &&
      !may_go_first(program, position))
    fail_msg("position %d: %s on stream %s", position, fsdp_op_name(instr->op),
             fsdp_stream_name(instr->stream));
  assert_int_equal(fsdp_instr_is_collective(instr) && !fsdp_stream_communicates(instr->stream), false);
  assert_int_equal(instr->stream == FSDP_STREAM_SNAPSHOT, snapshot);
  *ops += instr->stream == FSDP_STREAM_SHARD;
  *copies += snapshot;
}

TEST(test_streams) {
  int ops = 0, copies = 0;
  for (int seed = cases_begin(configs()); cases_run(__func__, seed); seed++) {
    random_source random = {.seed = 80000 + (uint64_t)seed};
    fsdp_plan_config config = random_plan_config(&random);
    fsdp_plan *plan = plan_of_config(&config);
    const fsdp_program *program = plan->program;
    for (int s = 0; s < program->section_count; s++) {
      const fsdp_section *section = &program->sections[s];
      for (int i = section->begin; i < section->end; i++)
        check_instr(program, i, section->kind == FSDP_SECTION_SNAPSHOT, &ops, &copies);
    }
    fsdp_plan_destroy(plan);
  }
  assert_true(ops > configs());
  assert_true(copies > configs());
}
