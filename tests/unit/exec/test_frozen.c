// Parameters that do not train: no gradient, no reduction, no optimizer state, and nothing saved for them
// alone; the others' gradients are those of a run in which all train.
#include "models/family.h"
#include "runtime/plan/program/saved.h"
#include "tests/support/draws.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <string.h>

#define STEPS  2
#define TOKENS (STEPS * 8 * 12)

// Names of which a part is one of these do not train, or (but) only those do.
typedef struct frozen_set {
  const char *parts[4];
  bool but;
} frozen_set;

static const frozen_set sets[] = {
    {{"q_proj", "v_proj"}, true}, // of neighbouring products, two of three, as with adapters
    {{"embed_tokens", "lm_head"}, false},
    {{"norm"}, true},
    {{"norm", "q_proj"}, false},
    {{"lm_head"}, true},
    {{"layers.0"}, false},
    {{"layers.0.self_attn.k_proj"}, true},
    {{"mlp"}, false},
    {{"embed_tokens"}, true},
    {{"lm_head"}, false},
};
enum { HEAD = 9 }; // of the sets: the head alone is frozen
enum { SETS = sizeof sets / sizeof *sets, PLACES = 7 };

static const fsdp_family *base_family;
static const frozen_set *chosen;

static bool trains(const char *name) {
  bool named = false;
  for (int i = 0; i < 4 && chosen->parts[i]; i++) named |= strstr(name, chosen->parts[i]) != NULL;
  return named == chosen->but;
}

static void build(const fsdp_model_config *config, fsdp_graph *graph) {
  base_family->build(config, graph);
  for (int p = 0; p < graph->param_count; p++) graph->params[p].trainable = trains(graph->params[p].name);
}

// The family of `plan`, of which `set` does not train.
static void freeze(fsdp_plan_config *plan, fsdp_family *family, const frozen_set *set) {
  base_family = plan->model.family;
  *family = *base_family;
  family->build = build;
  plan->model.family = family;
  chosen = set;
}

// ---- Gradients and parameters

static double norm_of(const harness_result *result) {
  double sum = 0;
  for (int p = 0; p < result->param_count; p++)
    for (int64_t i = 0; trains(result->gradients[p].name) && i < result->gradients[p].numel; i++)
      sum += (double)result->gradients[p].values[i] * (double)result->gradients[p].values[i];
  return sqrt(sum);
}

// `all`: the same run, in which all parameters train; `still`: with a learning rate of zero.
static void check_run(const char *what, const harness_result *some, const harness_result *all,
                      const harness_result *still) {
  char message[256];
  if (some->failure[0] || all->failure[0]) fail_msg("%s: %s%s", what, some->failure, all->failure);
  if (!harness_memory_as_planned(some, message, sizeof message)) fail_msg("%s: %s", what, message);
  assert_true(some->loss[0] == all->loss[0]);
  for (int p = 0; p < some->param_count; p++) {
    const harness_tensor *gradient = &some->gradients[p];
    if (!trains(gradient->name)) {
      for (int64_t i = 0; i < gradient->numel; i++) assert_true(gradient->values[i] == 0);
      if (harness_difference(&some->parameters[p], &still->parameters[p]) != 0)
        fail_msg("%s: %s was changed", what, gradient->name);
      continue;
    }
    // fp32 sums, over joined products or single ones.
    double difference = harness_difference(gradient, &all->gradients[p]);
    if (!(difference <= 1e-5))
      fail_msg("%s: gradient of %s differs by %.2g", what, gradient->name, difference);
    if (harness_difference(&some->parameters[p], &still->parameters[p]) == 0)
      fail_msg("%s: %s did not change", what, gradient->name);
  }
  double norm = norm_of(some);
  assert_true(fabs((double)some->grad_norm[0] - norm) <= 1e-5 * norm);
}

static harness_config config_of(int place) {
  static const struct {
    fsdp_strategy strategy;
    int data, fsdp, tensor;
    bool offload, recompute;
    int micro_batches;
  } places[PLACES] = {{FSDP_FULL, 1, 1, 1, false, false, 1}, {FSDP_FULL, 1, 2, 1, false, true, 2},
                      {FSDP_NO, 2, 1, 1, false, false, 2},   {FSDP_HYBRID, 2, 2, 1, true, false, 1},
                      {FSDP_ZERO1, 1, 2, 1, false, true, 1}, {FSDP_GRAD_OP, 1, 2, 1, true, true, 2},
                      {FSDP_FULL, 1, 1, 2, false, false, 1}};
  harness_config config = {.plan = harness_small_plan(1), .steps = STEPS, .lr = 1e-2f, .seed = 5};
  fsdp_plan_config *plan = &config.plan;
  plan->strategy = places[place].strategy;
  plan->mesh = (fsdp_mesh){0};
  fsdp_mesh_add(&plan->mesh, "data", places[place].data);
  fsdp_mesh_add(&plan->mesh, "fsdp", places[place].fsdp);
  fsdp_mesh_add(&plan->mesh, "tensor", places[place].tensor);
  fsdp_mesh_complete(&plan->mesh);
  plan->cpu_offload = places[place].offload;
  if (places[place].recompute) plan->saving = fsdp_saving_of_blocks();
  plan->micro_batches = places[place].micro_batches;
  plan->batch = 4 / (places[place].data * places[place].fsdp * plan->micro_batches);
  plan->grad_clip = place % 2 ? 1.0f : 0;
  plan->check = true;
  plan->hyper.weight_decay = 0;
  config.spread = 0.02f;
  // Every sequence has every token: each rank reads all of a table that nothing updates.
  static int32_t tokens[TOKENS], targets[TOKENS];
  for (int i = 0; i < TOKENS; i++) tokens[i] = i % 8, targets[i] = i * 5 / 3 % 8;
  plan->model.vocab_size = 8;
  config.tokens = tokens, config.targets = targets;
  return config;
}

TEST(test_gradients) {
  for (int place = 0; place < PLACES; place++) {
    harness_config config = config_of(place), calm = config;
    calm.lr = 0;
    harness_result *all = harness_train(&config), *still = harness_train(&calm);
    for (int set = place % test_stride(3); set < SETS; set += test_stride(3)) {
      char what[64];
      fsdp_family family;
      harness_config frozen = config;
      freeze(&frozen.plan, &family, &sets[set]);
      snprintf(what, sizeof what, "place %d, set %d", place, set);
      harness_result *some = harness_train(&frozen);
      check_run(what, some, all, still);
      harness_free(some);
    }
    harness_free(all);
    harness_free(still);
  }
}

// ---- Bytes

// Master shards of everything; moments, gradients and reductions of what trains. No size has padding.
TEST(test_bytes) {
  enum { F = 4 };
  fsdp_plan_config config = harness_small_plan(F);
  config.model.vocab_size = 128;
  config.model.hidden_size = 64, config.model.head_dim = 16, config.model.intermediate_size = 192;
  for (int set = 0; set < SETS; set++) {
    fsdp_plan_config frozen = config;
    fsdp_family family;
    freeze(&frozen, &family, &sets[set]);
    fsdp_plan *plan = plan_of_config(&frozen);
    int64_t all = 0, trained = 0;
    for (int p = 0; p < plan->graph->param_count; p++) {
      const fsdp_param *param = &plan->graph->params[p];
      all += param->numel;
      if (trains(param->name)) trained += param->numel;
    }
    const int64_t *valley = plan->memory.space[FSDP_SPACE_DEVICE].valley_by_category;
    assert_true(plan->verified && trained > 0 && trained < all);
    assert_int_equal(valley[FSDP_CATEGORY_PARAMETERS], 4 * all / F);
    assert_int_equal(valley[FSDP_CATEGORY_OPTIMIZER], 8 * trained / F);
    assert_int_equal(plan->traffic.bytes[FSDP_REDUCE_SCATTER], 4 * trained / F * (F - 1));
    for (int t = 0; t < plan->program->tensor_count; t++) {
      const fsdp_tensor *tensor = &plan->program->tensors[t];
      if (tensor->category == FSDP_CATEGORY_GRADIENTS)
        assert_true(plan->units->units[tensor->unit].trainable);
    }
    fsdp_plan_destroy(plan);
  }
}

// Of the head, whose gradient would be the largest tensor, the product itself is left out.
TEST(test_head) {
  fsdp_plan_config config = harness_small_plan(1);
  fsdp_family family;
  fsdp_plan *whole = plan_of_config(&config);
  freeze(&config, &family, &sets[HEAD]);
  fsdp_plan *frozen = plan_of_config(&config);
  fsdp_plan *plans[] = {whole, frozen};
  int found[2] = {0};
  for (int p = 0; p < 2; p++)
    for (int i = 0; i < plans[p]->program->instr_count; i++) {
      const fsdp_instr *instr = &plans[p]->program->instrs[i];
      if (instr->kind != FSDP_INSTR_OP || instr->op != FSDP_OP_LINEAR_CROSS_ENTROPY_BACKWARD) continue;
      fsdp_op_product products[FSDP_OP_PRODUCTS_MAX];
      found[p] = fsdp_op_products(instr->op, &instr->attrs, products);
    }
  assert_int_equal(found[0], 3);
  assert_int_equal(found[1], 2);
  for (int t = 0; t < frozen->program->tensor_count; t++)
    if (strstr(frozen->program->tensors[t].name, "unread"))
      fail_msg("%s is written and not read", frozen->program->tensors[t].name);
  fsdp_plan_destroy(whole);
  fsdp_plan_destroy(frozen);
}

// Whether the backward reads a value of this name.
static bool is_saved(const fsdp_plan *plan, const char *name, int layer) {
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  bool found = false;
  for (int i = 0; i < saved.count; i++)
    found |=
        saved.values[i].layer == layer && strcmp(plan->graph->values[saved.values[i].value].name, name) == 0;
  fsdp_saved_release(&saved);
  return found;
}

// The input of a product is read for the weight's gradient alone. In front of the first parameter that trains
// there is no backward.
TEST(test_saved) {
  fsdp_plan_config config = harness_small_plan(1);
  fsdp_plan *whole = plan_of_config(&config);
  assert_true(is_saved(whole, "s", 1) && is_saved(whole, "gate_up", 1) && is_saved(whole, "lse", 0));
  fsdp_plan_destroy(whole);
  static const struct {
    frozen_set set;
    bool s1, gate_up1, lse1, lse0; // saved, by layer
  } cases[] = {{{{"mlp"}, false}, false, true, true, true},
               {{{"down_proj"}, true}, true, true, true, false},
               {{{"layers.1.mlp.down_proj"}, true}, true, false, false, false},
               {{{"layers.1"}, true}, true, true, true, false},
               {{{"lm_head"}, true}, false, false, false, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_plan_config frozen = config;
    fsdp_family family;
    freeze(&frozen, &family, &cases[i].set);
    fsdp_plan *plan = plan_of_config(&frozen);
    assert_int_equal(is_saved(plan, "s", 1), cases[i].s1);
    assert_int_equal(is_saved(plan, "gate_up", 1), cases[i].gate_up1);
    assert_int_equal(is_saved(plan, "lse", 1), cases[i].lse1);
    assert_int_equal(is_saved(plan, "lse", 0), cases[i].lse0);
    fsdp_plan_destroy(plan);
  }
}
