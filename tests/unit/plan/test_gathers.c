// How often nested units are gathered in a step, against counts worked out by hand.
#include "runtime/plan/plan.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <string.h>

static fsdp_plan *plan_of(int prefetch) {
  fsdp_plan_config config = {
      .model = model_of_json("{\"model_type\":\"gpt2\",\"vocab_size\":31,\"n_embd\":12,\"n_layer\":2,"
                             "\"n_head\":4,\"n_positions\":8}"),
      .batch = 1,
      .seq = 8,
      .micro_batches = 1,
      .strategy = FSDP_FULL,
      .mesh = fsdp_mesh_of(1, 4),
      .wrap = {.kind = FSDP_WRAP_MODULE, .classes = "GPT2Block,GPT2Attention"},
      .prefetch = prefetch,
      .backend = fsdp_plan_backend_cpu()};
  return plan_of_config(&config);
}

static int gathers_of(const fsdp_plan *plan, const char *path) {
  int found = 0;
  for (int i = 0; i < plan->program->instr_count; i++) {
    const fsdp_instr *instr = &plan->program->instrs[i];
    if (instr->kind != FSDP_INSTR_ALL_GATHER || instr->unit < 0) continue;
    found += strcmp(plan->units->units[instr->unit].path, path) == 0;
  }
  return found;
}

// A block's norms and products are used before and after its attention, which is a unit of its own:
//
//   forward  h.0  attn.0  h.0  h.1  attn.1  h.1 | backward  h.1  attn.1  h.1  h.0  attn.0  h.0
//   steps    0    1            2    3                       4    5            6    7
//
// A step's gathers are issued before the first use of the step `prefetch` before it. The second gather of h.1
// (step 4) would come before its last use in the forward, if it were issued with step 3 or 2, and that of
// attn.1 (step 5) with step 3 or 2: then the first is kept. Those of layer 0 come later in any case: the last
// use of h.0 is before step 2.
TEST(test_nested) {
  static const struct {
    int prefetch, h0, attn0, h1, attn1;
  } cases[] = {{0, 2, 2, 2, 2}, {1, 2, 2, 1, 2}, {2, 2, 2, 1, 1}, {3, 2, 2, 1, 1}, {4, 2, 2, 1, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_plan *plan = plan_of(cases[i].prefetch);
    assert_int_equal(gathers_of(plan, "transformer.h.0"), cases[i].h0);
    assert_int_equal(gathers_of(plan, "transformer.h.0.attn"), cases[i].attn0);
    assert_int_equal(gathers_of(plan, "transformer.h.1"), cases[i].h1);
    assert_int_equal(gathers_of(plan, "transformer.h.1.attn"), cases[i].attn1);
    fsdp_plan_destroy(plan);
  }
}
