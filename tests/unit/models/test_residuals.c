// Which sums of the residual stream a plan lets gemms make.
#include "models/family.h"
#include "runtime/plan/plan.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

static fsdp_plan *plan_of(fsdp_plan_config config) {
  fsdp_plan *plan = plan_of_config(&config);
  assert_true(plan->verified);
  return plan;
}

// Launches of an op in the forward of the first section.
static int count_in_forward(const fsdp_program *program, fsdp_op_kind kind) {
  const fsdp_section *section = &program->sections[0];
  const int end = fsdp_program_backward_begin(program, section);
  int count = 0;
  for (int i = section->begin; i < end; i++)
    count += program->instrs[i].kind == FSDP_INSTR_OP && program->instrs[i].op == kind;
  return count;
}

// The gemms of a layer's attention and MLP add the residual unless their sums are partial, over ranks that
// cut their inputs, or come in pieces of the rows; then the norm adds it.
TEST(test_residuals_by_gemms) {
  const struct {
    int tensor, context;
    bool sequence_parallel, by_gemm;
  } cases[] = {{1, 1, false, true}, {1, 2, false, true}, {2, 1, false, false}, {2, 1, true, false}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fsdp_plan_config config = even_plan_config();
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, cases[c].tensor);
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_CONTEXT, cases[c].context);
    config.sequence_parallel = cases[c].sequence_parallel;
    fsdp_plan *plan = plan_of(config);
    const fsdp_program *program = plan->program;
    const int sums = 2 * (int)config.model.num_layers, moved = cases[c].by_gemm ? sums : 0;
    assert_int_equal(count_in_forward(program, FSDP_OP_LINEAR_ADD), moved);
    assert_int_equal(count_in_forward(program, FSDP_OP_ADD_RMSNORM), sums - moved);
    assert_int_equal(count_in_forward(program, FSDP_OP_RMSNORM), 1 + moved);
    fsdp_plan_destroy(plan);
  }
}

// What the last layer's gemm sums is kept with the layers' inputs: recomputed blocks repeat the gemm of
// attention alone.
TEST(test_last_sum_is_kept) {
  fsdp_plan_config config = even_plan_config();
  config.saving = fsdp_saving_of_blocks();
  fsdp_plan *plan = plan_of(config);
  const fsdp_program *program = plan->program;
  int sums = 0;
  for (int i = program->sections[0].begin; i < program->sections[0].end; i++)
    sums += program->instrs[i].kind == FSDP_INSTR_OP && program->instrs[i].op == FSDP_OP_LINEAR_ADD;
  assert_int_equal(sums, 3 * (int)config.model.num_layers);
  fsdp_plan_destroy(plan);
}
