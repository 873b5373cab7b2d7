// Over which ranks a step's scalars are summed: counts and losses over those that have different tokens, the
// gradient's norm over all.
#include "runtime/plan/mesh/mesh.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

// How many sums there are of tensors of this name, all of them over `axes`.
static int count_sums(const fsdp_program *program, const char *name, fsdp_axis_set axes) {
  int count = 0;
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (instr->kind != FSDP_INSTR_ALL_REDUCE) continue;
    if (strcmp(program->tensors[program->operands[instr->first_operand].tensor].name, name) != 0) continue;
    assert_int_equal(program->comms[instr->comm].axes, axes);
    count++;
  }
  return count;
}

// The program that a plan's graph and units give if its tokens lie over `token_axes`.
static fsdp_program *schedule(const fsdp_plan *plan, fsdp_axis_set token_axes) {
  fsdp_plan_config of = plan->config;
  of.evaluation = true;
  fsdp_unit_state *unit_state;
  plan->graph->token_axes = token_axes;
  fsdp_program *program = fsdp_schedule(&of, plan->fates, plan->graph, plan->units, &unit_state);
  free(unit_state);
  return program;
}

TEST(test_sums) {
  for (int number = 0; number < 8; number++) {
    fsdp_plan_config config = harness_small_plan(1);
    fsdp_plan *plan;
    fsdp_error error;
    config.mesh = fsdp_mesh_of(2, 3);
    config.strategy = FSDP_HYBRID;
    config.micro_batches = number / 4 ? 3 : 1;
    config.cpu_offload = number % 2;
    if (fsdp_plan_create(&config, &plan, &error) != FSDP_OK) fail_msg("%s", error.message);
    fsdp_axis_set all = fsdp_mesh_all_axes(&config.mesh);
    fsdp_axis_set tokens = number / 2 % 2 ? fsdp_mesh_axes(&config.mesh, FSDP_AXIS_FSDP) : 0;
    assert_int_equal(count_sums(plan->program, "step.count", all), 1);
    assert_int_equal(count_sums(plan->program, "step.loss", all), 1);
    fsdp_program *program = schedule(plan, tokens);
    // An evaluation's count is of all ranks' targets already, its loss is not.
    assert_int_equal(count_sums(program, "step.count", tokens), tokens ? 1 : 0);
    assert_int_equal(count_sums(program, "step.loss", tokens), tokens ? 2 : 0);
    const char *norm = config.cpu_offload ? "step.norm_raised" : "step.norm_total";
    assert_int_equal(count_sums(program, norm, all), 1);
    fsdp_program_destroy(program);
    fsdp_plan_destroy(plan);
  }
}
