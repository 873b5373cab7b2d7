// What the partition of a graph makes of a step: which collectives, over which axes and on which streams.
#include "runtime/plan/plan.h"
#include "runtime/plan/program/saved.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

static fsdp_plan *plan_on(int tensor, int context) {
  fsdp_plan_config config = harness_small_plan(1);
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, tensor);
  fsdp_mesh_resize(&config.mesh, FSDP_AXIS_CONTEXT, context);
  config.sequence_parallel = true;
  return plan_of_config(&config);
}

// The collectives of a kind on a stream, in all of a step; each must be over `axis` alone.
static int count(const fsdp_plan *plan, fsdp_stream stream, fsdp_instr_kind kind, const char *axis) {
  const fsdp_program *program = plan->program;
  int found = 0;
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    if (instr->stream != stream || !fsdp_instr_is_collective(instr)) continue;
    assert_int_equal(program->comms[instr->comm].axes, fsdp_mesh_axes(&program->mesh, axis));
    found += instr->kind == kind;
  }
  return found;
}

// Keys and values of all positions are gathered for a layer's forward and again for its backward, and their
// gradients scattered.
TEST(test_context) {
  const int tensors[] = {1, 2};
  for (int i = 0; i < 2; i++) {
    fsdp_plan *plan = plan_on(tensors[i], 2);
    int layers = plan->graph->block_count;
    assert_int_equal(count(plan, FSDP_STREAM_CONTEXT, FSDP_INSTR_ALL_GATHER, "context"), 2 * layers);
    assert_int_equal(count(plan, FSDP_STREAM_CONTEXT, FSDP_INSTR_REDUCE_SCATTER, "context"), layers);
    assert_int_equal(count(plan, FSDP_STREAM_CONTEXT, FSDP_INSTR_ALL_REDUCE, "context"), 0);
    fsdp_plan_destroy(plan);
  }
}

// With pieces of the sequence on the tensor axis, a layer gathers before its two products that are cut by
// columns and scatters after the two that are cut by rows; its backward gathers the gradients of the latter's
// outputs and scatters those of the former's inputs. Besides, the embedding's output is scattered and its
// gradient gathered, the head's input is gathered and its gradient scattered, and the head's statistics are
// gathered.
TEST(test_pieces) {
  fsdp_plan *plan = plan_on(2, 1);
  int layers = plan->graph->block_count;
  assert_int_equal(count(plan, FSDP_STREAM_TENSOR, FSDP_INSTR_REDUCE_SCATTER, "tensor"), 4 * layers + 2);
  assert_int_equal(count(plan, FSDP_STREAM_TENSOR, FSDP_INSTR_ALL_GATHER, "tensor"), 4 * layers + 3);
  assert_int_equal(count(plan, FSDP_STREAM_TENSOR, FSDP_INSTR_ALL_REDUCE, "tensor"), 0);
  fsdp_plan_destroy(plan);
}

// While the gradients of a layer's two products that are cut by columns are scattered, those of their weights
// are computed: they come next in the list.
TEST(test_gradients_behind_the_scatter) {
  fsdp_plan *plan = plan_on(2, 1);
  const fsdp_program *program = plan->program;
  int found = 0;
  for (int i = 0; i + 2 < program->instr_count; i++) {
    const fsdp_instr *product = &program->instrs[i], *scatter = product + 1, *next = product + 2;
    if (product->kind != FSDP_INSTR_OP || product->op != FSDP_OP_LINEAR_BACKWARD_INPUT) continue;
    if (scatter->kind != FSDP_INSTR_REDUCE_SCATTER || scatter->stream != FSDP_STREAM_TENSOR) continue;
    assert_int_equal(next->kind, FSDP_INSTR_OP);
    assert_int_equal(next->op, FSDP_OP_LINEAR_BACKWARD_WEIGHT);
    assert_int_equal(next->module, product->module);
    found++;
  }
  assert_int_equal(found, 2 * plan->graph->block_count);
  fsdp_plan_destroy(plan);
}

// Where a rule cuts the residual stream by columns, a sum is an op of its own. Those that enter a layer are
// still known as its input, or recomputing the layers would recompute them too.
TEST(test_residual_in_columns) {
  fsdp_shard_rule rules[] = {
      {.name = "input", .place = "test:1", .output = -1, .dims = 2, .dim = {{.count = 1, .axes = {"fsdp"}}}},
      {.name = "model.layers.*",
       .place = "test:2",
       .output = -1,
       .dims = 3,
       .dim = {{.count = 1, .axes = {"fsdp"}}, {0}, {.count = 1, .axes = {"tensor"}}}}};
  const fsdp_sharding sharding = {.rules = rules, .rule_count = 2};
  for (int ruled = 0; ruled < 2; ruled++) {
    fsdp_plan_config config = harness_small_plan(2);
    fsdp_mesh_resize(&config.mesh, FSDP_AXIS_TENSOR, 2);
    config.saving = fsdp_saving_of_blocks();
    if (ruled) config.sharding = &sharding;
    fsdp_plan *plan = plan_of_config(&config);
    fsdp_saved saved = fsdp_saved_create(plan->graph);
    int inputs = 0;
    for (int i = 0; i < saved.count; i++) inputs += saved.values[i].is_layer_input;
    assert_in_range(inputs, plan->graph->block_count - 1, plan->graph->block_count);
    // Each belongs to the layer that it enters, whoever makes it; the first may be no saved value.
    for (int i = 0, layer = plan->graph->block_count - inputs; i < saved.count; i++)
      if (saved.values[i].is_layer_input) assert_int_equal(saved.values[i].layer, layer++);
    fsdp_saved_release(&saved);
    fsdp_plan_destroy(plan);
  }
}
