// What `auto` recomputes and offloads: it fits, it takes no more than it must, and its step is the fastest of
// the choices that trying all of them finds.
#include "runtime/plan/search/evaluate.h"
#include "runtime/plan/search/saving_choice.h"
#include "tests/support/draws.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

#define LAYERS 6
#define RANKS  2

static fsdp_plan_config base_config(void) {
  return (fsdp_plan_config){.model = {.family = family_of_preset("tiny"),
                                      .vocab_size = 64,
                                      .hidden_size = 64,
                                      .intermediate_size = 192,
                                      .num_layers = LAYERS,
                                      .num_heads = 4,
                                      .num_kv_heads = 2,
                                      .head_dim = 16,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4},
                            .batch = 4,
                            .seq = 64,
                            .micro_batches = 1,
                            .mesh = fsdp_mesh_of(1, RANKS),
                            .wrap = {.kind = FSDP_WRAP_BLOCK},
                            .prefetch = 1,
                            .grad_clip = 1.0f,
                            .backend = fsdp_plan_backend_cpu()};
}

// Of a plan that is packed for `limit` bytes; 0: for no limit.
static int64_t arena_of(fsdp_plan_config config, const fsdp_saving *saving, int64_t limit) {
  fsdp_plan *plan = NULL;
  fsdp_error error = {0};
  config.saving = *saving;
  config.limits = (fsdp_memory_limits){.bytes = {limit}, .room_bytes = limit};
  if (fsdp_plan_create(&config, &plan, &error) != FSDP_OK) fail_msg("%s", error.message);
  int64_t arena = plan->memory.space[FSDP_SPACE_DEVICE].arena_bytes;
  fsdp_plan_destroy(plan);
  return arena;
}

static bool choose(int64_t limit, bool recompute, bool offload, fsdp_saving *saving) {
  const fsdp_memory_limits allowed = {.bytes = {limit}};
  const fsdp_saving_choice choice = {
      .recompute = recompute, .offload = offload, .allowed = &allowed, .ranks_per_node = RANKS};
  fsdp_plan_config config = base_config();
  fsdp_error error = {0};
  bool found = false;
  config.saving = *saving;
  if (fsdp_saving_choose(&choice, &config, &found, &error) != FSDP_OK) fail_msg("%s", error.message);
  *saving = config.saving;
  return found;
}

static fsdp_saving parse(const char *recomputed, const char *offloaded) {
  fsdp_saving saving = {0};
  assert_int_equal(fsdp_saving_parse(recomputed, "-", FSDP_FATE_RECOMPUTE, &saving, NULL), FSDP_OK);
  assert_int_equal(fsdp_saving_parse(offloaded, "-", FSDP_FATE_OFFLOAD, &saving, NULL), FSDP_OK);
  return saving;
}

// The seconds of a step on the nominal machine.
static double cost_of(const fsdp_saving *saving) {
  fsdp_plan_config config = base_config();
  fsdp_device_profile *profile = fsdp_device_profile_nominal(config.backend);
  fsdp_evaluator evaluator = {.profile = profile, .ranks_per_node = RANKS};
  fsdp_evaluation e;
  config.saving = *saving;
  assert_true(fsdp_evaluate(&evaluator, &config, FSDP_EVALUATE_PLAN, &e));
  fsdp_evaluator_release(&evaluator);
  fsdp_device_profile_destroy(profile);
  return e.step_s;
}

// Of every limit between keeping all and recomputing all: the choice fits; one layer less of a rule that
// takes a part of the layers does not; a lower limit costs no less, but for what plans wait for memory.
TEST(test_no_more_than_needed) {
  fsdp_saving none = {0}, all = fsdp_saving_of_blocks();
  int64_t most = arena_of(base_config(), &none, 0), least = arena_of(base_config(), &all, 0);
  double cost = 0;
  int partial = 0;
  assert_true(least < most);
  for (int i = 0; i <= 24; i += test_stride(4)) {
    int64_t limit = most - (most - least) * i / 24;
    fsdp_saving chosen = {0};
    assert_true(choose(limit, true, false, &chosen));
    assert_true(arena_of(base_config(), &chosen, limit) <= limit);
    assert_true(i > 0 || chosen.count == 0);
    assert_true(cost_of(&chosen) >= 0.99 * cost);
    cost = cost_of(&chosen);
    fsdp_saving_rule *last = &chosen.rules[0];
    int parts = 0;
    for (int r = 0; r < chosen.count; r++)
      if (chosen.rules[r].layers) last = &chosen.rules[r], parts++;
    if (parts != 1 || last->layers == 1) continue;
    last->layers--;
    assert_true(arena_of(base_config(), &chosen, limit) > limit);
    partial++;
  }
  assert_true(partial >= (test_sanitized() ? 1 : 5));
}

// All sets of what a layer saves, recomputed in all layers or in half of them: none that fits is cheaper by
// more than what one layer of one value costs.
TEST(test_cheapest) {
  static const char *const names[] = {"rmsnorm", "linear:q_proj", "attention", "linear:gate_proj", "swiglu"};
  enum { NAMES = sizeof names / sizeof *names, CHOICES = 3 * 3 * 3 * 3 * 3 };
  int64_t arenas[CHOICES];
  double costs[CHOICES];
  for (int c = 0; c < CHOICES; c++) {
    fsdp_saving saving = {0};
    for (int n = 0, digits = c; n < NAMES; n++, digits /= 3) {
      fsdp_saving_rule rule = {.fate = FSDP_FATE_RECOMPUTE, .layers = digits % 3 == 1 ? LAYERS / 2 : 0};
      strcpy(rule.name, names[n]);
      if (digits % 3) saving.rules[saving.count++] = rule;
    }
    arenas[c] = arena_of(base_config(), &saving, 0);
    costs[c] = cost_of(&saving);
  }
  fsdp_saving all = fsdp_saving_of_blocks(), none = {0};
  int64_t most = arena_of(base_config(), &none, 0), least = arena_of(base_config(), &all, 0);
  double layer = (cost_of(&all) - cost_of(&none)) / LAYERS;
  for (int i = 1; i < 16; i += test_stride(5)) {
    int64_t limit = most - (most - least) * i / 16;
    fsdp_saving chosen = {0};
    assert_true(choose(limit, true, false, &chosen));
    double cost = cost_of(&chosen);
    for (int c = 0; c < CHOICES; c++)
      if (arenas[c] <= limit && costs[c] + layer < cost)
        fail_msg("limit %lld: choice %d takes %.9g s, auto %.9g", (long long)limit, c, costs[c], cost);
  }
}

TEST(test_rules_that_stay) {
  fsdp_saving none = {0}, offloaded = parse("none", "attention,block_inputs@3");
  int64_t limit = arena_of(base_config(), &offloaded, 0) - 20000;
  fsdp_saving chosen = offloaded;
  assert_true(choose(limit, true, false, &chosen));
  char text[FSDP_SAVING_TEXT_BYTES];
  assert_string_equal(fsdp_saving_print(&chosen, FSDP_FATE_OFFLOAD, text), "attention,block_inputs@3");
  assert_string_not_equal(fsdp_saving_print(&chosen, FSDP_FATE_RECOMPUTE, text), "none");
  assert_null(strstr(text, "attention"));
  // Rules of whole layers, and of more layers than drafts have, stay too.
  static const char *const given[] = {"block:5", "rmsnorm@5", "rmsnorm,swiglu"};
  for (int i = 0; i < 3; i++) {
    const char *rest = i < 2 ? "attention,block_inputs" : "attention,block_inputs,residual,linear"; // all
    fsdp_saving recomputed = parse(given[i], "none"), both = parse(given[i], rest);
    chosen = recomputed;
    limit = arena_of(base_config(), &both, 0);
    assert_true(limit < arena_of(base_config(), &recomputed, 0));
    assert_true(choose(limit, false, true, &chosen));
    assert_string_equal(fsdp_saving_print(&chosen, FSDP_FATE_RECOMPUTE, text), given[i]);
    assert_true(arena_of(base_config(), &chosen, limit) <= limit);
  }
  // What enters a layer can only be offloaded; all that can be, is, if the limit is out of reach.
  chosen = none;
  assert_false(choose(1, false, true, &chosen));
  assert_non_null(strstr(fsdp_saving_print(&chosen, FSDP_FATE_OFFLOAD, text), "block_inputs"));
  assert_string_equal(fsdp_saving_print(&chosen, FSDP_FATE_RECOMPUTE, text), "none");
}

// Under any limit between nothing and all that layers save on the host, also of values that are cheap to
// compute again, if that is not open.
TEST(test_offloads_what_it_must) {
  fsdp_saving none = {0}, all = parse("none", "block_inputs,residual,rmsnorm,linear,attention,swiglu");
  int64_t most = arena_of(base_config(), &none, 0), least = arena_of(base_config(), &all, 0);
  for (int i = 1; i <= 8; i++) {
    int64_t limit = most - (most - least) * i / 8;
    fsdp_saving chosen = {0};
    assert_true(choose(limit, false, true, &chosen));
    assert_true(chosen.count > 0 && arena_of(base_config(), &chosen, limit) <= limit);
  }
}

// Of a model whose first layer has no experts too.
TEST(test_names_of_all_layers) {
  fsdp_plan_config config = base_config();
  config.model = model_of_preset("tiny-glm4-moe");
  config.model.num_layers = LAYERS;
  fsdp_saving none = {0}, block = fsdp_saving_of_blocks();
  int64_t most = arena_of(config, &none, 0), least = arena_of(config, &block, 0);
  const fsdp_memory_limits allowed = {.bytes = {(most + least) / 2}};
  const fsdp_saving_choice choice = {.recompute = true, .allowed = &allowed, .ranks_per_node = RANKS};
  char text[FSDP_SAVING_TEXT_BYTES];
  bool found;
  assert_int_equal(fsdp_saving_choose(&choice, &config, &found, NULL), FSDP_OK);
  assert_true(found);
  fsdp_saving_print(&config.saving, FSDP_FATE_RECOMPUTE, text);
  if (!strstr(text, "expert")) fail_msg("%s", text);
}

TEST(test_refusals) {
  const fsdp_memory_limits allowed = {.bytes = {1}};
  fsdp_plan_config config = base_config();
  fsdp_device_profile *profile = fsdp_device_profile_nominal(config.backend);
  fsdp_saving_choice choice = {.offload = true, .allowed = &allowed, .ranks_per_node = RANKS};
  fsdp_error error;
  bool found;
  config.saving = parse("nosuch", "none");
  assert_int_equal(fsdp_saving_choose(&choice, &config, &found, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "nosuch"));
  config.saving = parse("none", "none");
  choice.profile = profile;
  profile->down_rate = 0;
  assert_int_equal(fsdp_saving_choose(&choice, &config, &found, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "copy_gbps"));
  fsdp_device_profile_destroy(profile);
}
