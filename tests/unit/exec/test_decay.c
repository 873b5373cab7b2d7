// Weight decay on matrices alone. AdamW's decay adds to what the moments do, so after the first step, whose
// gradients do not depend on it, each matrix has the bits of a run that decays everything, and every norm and
// bias those of a run that decays nothing, wherever shards begin and end.
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/unit_test.h"

#include <string.h>

// Under fsdp=5,tensor=2 shards begin inside a row of a matrix cut by columns.
static const struct {
  fsdp_strategy strategy;
  int data, fsdp, tensor;
  bool offload, bf16;
  fsdp_wrap_kind wrap;
} places[] = {
    {FSDP_FULL, 1, 1, 1, false, false, FSDP_WRAP_NONE}, {FSDP_FULL, 1, 3, 1, false, false, FSDP_WRAP_BLOCK},
    {FSDP_FULL, 1, 5, 2, false, true, FSDP_WRAP_NONE},  {FSDP_HYBRID, 2, 2, 1, true, false, FSDP_WRAP_BLOCK},
    {FSDP_ZERO1, 1, 2, 1, false, true, FSDP_WRAP_NONE}, {FSDP_NO, 2, 1, 1, false, false, FSDP_WRAP_BLOCK}};
enum { PLACES = sizeof places / sizeof *places };

static harness_result *train(int place, float weight_decay, fsdp_decay decay) {
  harness_config config = {.plan = harness_small_plan(1),
                           .steps = 1,
                           .lr = 1e-1f,
                           .seed = 7,
                           .gradient_step = -1,
                           .spread = 0.02f};
  fsdp_plan_config *plan = &config.plan;
  plan->strategy = places[place].strategy;
  plan->mesh = fsdp_mesh_of(places[place].data, places[place].fsdp);
  fsdp_mesh_resize(&plan->mesh, FSDP_AXIS_TENSOR, places[place].tensor);
  plan->wrap.kind = places[place].wrap;
  plan->cpu_offload = places[place].offload;
  if (places[place].bf16) plan->master_dtype = plan->moment_dtype = FSDP_BF16;
  plan->grad_clip = place % 2 ? 1.0f : 0;
  plan->hyper.weight_decay = weight_decay;
  plan->hyper.decay = decay;
  harness_result *result = harness_train(&config);
  assert_string_equal(result->failure, "");
  return result;
}

static bool same(const harness_tensor *a, const harness_tensor *b) {
  assert_string_equal(a->name, b->name);
  return memcmp(a->values, b->values, (size_t)a->numel * sizeof *a->values) == 0;
}

TEST(test_matrices) {
  for (int place = 0; place < PLACES; place += test_stride(2)) {
    harness_result *all = train(place, 0.5f, FSDP_DECAY_ALL), *none = train(place, 0, FSDP_DECAY_ALL);
    harness_result *some = train(place, 0.5f, FSDP_DECAY_MATRICES);
    int matrices = 0;
    for (int p = 0; p < some->param_count; p++) {
      const bool matrix = some->plan->graph->params[p].dims == 2;
      const harness_tensor *expected = matrix ? &all->parameters[p] : &none->parameters[p];
      matrices += matrix;
      if (!same(&some->parameters[p], expected))
        fail_msg("place %d: %s %s", place, expected->name, matrix ? "does not decay" : "decays");
      assert_false(same(&all->parameters[p], &none->parameters[p]));
    }
    assert_true(matrices > 0 && matrices < some->param_count);
    harness_free(all), harness_free(none), harness_free(some);
  }
}
