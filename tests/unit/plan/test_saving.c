// Rules of what layers save: their text, and the fate that they give each value of each layer, against a
// table written by hand. And the choice of the first layers, against every other choice of as many.
#include "runtime/base/check.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/program/saved.h"
#include "tests/support/models.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char RECOMPUTE[] = "--recompute (here)", OFFLOAD[] = "--offload-activations (there)";

static fsdp_status parse(const char *text, fsdp_fate fate, fsdp_saving *saving, fsdp_error *error) {
  return fsdp_saving_parse(text, fate == FSDP_FATE_OFFLOAD ? OFFLOAD : RECOMPUTE, fate, saving, error);
}

static fsdp_saving saving_of(const char *recomputed, const char *offloaded) {
  fsdp_saving saving = {0};
  fsdp_error error;
  if (parse(recomputed, FSDP_FATE_RECOMPUTE, &saving, &error) ||
      parse(offloaded, FSDP_FATE_OFFLOAD, &saving, &error))
    fail_msg("'%s' and '%s' are refused: %s", recomputed, offloaded, error.message);
  return saving;
}

// ---- Text

static void expect_rule(const fsdp_saving_rule *rule, const char *name, int layers) {
  assert_string_equal(rule->name, name);
  assert_int_equal(rule->layers, layers);
  assert_int_equal(rule->fate, FSDP_FATE_RECOMPUTE);
}

TEST(test_items) {
  static const char *const nothing[] = {"", "none", "off"};
  for (int i = 0; i < 3; i++) assert_int_equal(saving_of(nothing[i], nothing[i]).count, 0);
  fsdp_saving saving = saving_of("block,block:1, block@7,  linear:up_proj@2147483647,rmsnorm", "none");
  assert_int_equal(saving.count, 5);
  expect_rule(&saving.rules[0], "block", 0);
  expect_rule(&saving.rules[1], "block", 1);
  expect_rule(&saving.rules[2], "block", 7);
  expect_rule(&saving.rules[3], "linear:up_proj", 2147483647);
  expect_rule(&saving.rules[4], "rmsnorm", 0);
  saving = saving_of("swiglu@3", "attention,block_inputs@4");
  assert_int_equal(saving.count, 3);
  assert_int_equal(saving.rules[0].fate, FSDP_FATE_RECOMPUTE);
  for (int i = 1; i < 3; i++) assert_int_equal(saving.rules[i].fate, FSDP_FATE_OFFLOAD);
  saving = fsdp_saving_of_blocks();
  assert_int_equal(saving.count, 1);
  expect_rule(&saving.rules[0], "block", 0);
}

// Each is refused with the option and the item.
TEST(test_bad_items) {
  static const struct {
    const char *text, *item;
  } cases[] = {
      {",", "''"},
      {"rmsnorm,", "''"},
      {",rmsnorm", "'rmsnorm'"},
      {"rmsnorm,,swiglu", "''"},
      {"rmsnorm@", "'rmsnorm@'"},
      {"rmsnorm@0", "'rmsnorm@0'"},
      {"rmsnorm@-1", "'rmsnorm@-1'"},
      {"rmsnorm@+1", "'rmsnorm@+1'"},
      {"rmsnorm@ 1", "'rmsnorm@ 1'"},
      {"rmsnorm@1x", "'rmsnorm@1x'"},
      {"rmsnorm@1@2", "'rmsnorm@1@2'"},
      {"rmsnorm@2147483648", "'rmsnorm@2147483648'"},
      {"rmsnorm@99999999999999999999", "'rmsnorm@99999999999999999999'"},
      {"@1", "'@1'"},
      {"swiglu,block:", "'block:'"},
      {"block:0", "'block:0'"},
      {"block:mlp", "'block:mlp'"},
      {"linear:", "'linear:'"},
      {":up_proj", "':up_proj'"},
      {"linear:up:proj", "'linear:up:proj'"},
      {"linear:up-proj", "'linear:up-proj'"},
      {"rms norm", "'rms norm'"},
      {"rmsnorm;swiglu", "'rmsnorm;swiglu'"},
      {"rmsnorm ,swiglu", "'rmsnorm '"},
      {"rmsnorm\n", "'rmsnorm?'"}, // a message is one line
      {"auto,rmsnorm", "'auto'"},
      {"rmsnorm,none", "'none'"},
      {"a23456789012345678901234567890123456789012345678901234567890abcd", "'a2345678901234567890"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    for (int fate = FSDP_FATE_RECOMPUTE; fate <= FSDP_FATE_OFFLOAD; fate++) {
      fsdp_saving saving = {0};
      fsdp_error error = {0};
      const char *option = fate == FSDP_FATE_OFFLOAD ? OFFLOAD : RECOMPUTE;
      if (parse(cases[i].text, (fsdp_fate)fate, &saving, &error) != FSDP_ERR_OPTION)
        fail_msg("'%s' is not refused", cases[i].text);
      bool named = strstr(error.message, cases[i].item) || i == 2; // the first item is the empty one
      if (strncmp(error.message, option, strlen(option)) != 0 || !named)
        fail_msg("'%s': %s", cases[i].text, error.message);
    }
  }
  // A name of 63 bytes is the longest.
  fsdp_saving saving = saving_of("a23456789012345678901234567890123456789012345678901234567890abc", "none");
  assert_int_equal(strlen(saving.rules[0].name), FSDP_SAVING_NAME_BYTES - 1);
}

TEST(test_too_many_items) {
  char text[256] = "";
  for (int i = 0; i < FSDP_SAVING_RULES_MAX; i++) sprintf(text + strlen(text), "%sn%d", i ? "," : "", i);
  fsdp_saving saving = saving_of(text, "none");
  assert_int_equal(saving.count, FSDP_SAVING_RULES_MAX);
  fsdp_error error;
  assert_int_equal(parse("one", FSDP_FATE_OFFLOAD, &saving, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "more than 24 items"));
}

static void random_name(random_source *random, char *out, int length) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  for (int i = 0; i < length; i++) out[i] = letters[random_int(random, 0, (int)sizeof letters - 2)];
  out[length] = 0;
}

static fsdp_saving_rule random_rule(random_source *random) {
  fsdp_saving_rule rule = {.fate = random_int(random, 0, 1) ? FSDP_FATE_RECOMPUTE : FSDP_FATE_OFFLOAD};
  int kind = random_int(random, 0, 3), length = random_int(random, 1, 31);
  snprintf(rule.name, sizeof rule.name, "block");
  if (kind > 0) random_name(random, rule.name, length);
  if (kind > 1) {
    rule.name[length] = ':';
    random_name(random, rule.name + length + 1, random_int(random, 1, 31));
  }
  if (random_int(random, 0, 1)) rule.layers = random_int(random, 1, 2147483647);
  return rule;
}

// What is printed parses to the same rules, however long they are.
TEST(test_printed_rules_parse) {
  for (int seed = 0; seed < 2000; seed++) {
    random_source random = {.seed = (uint64_t)seed};
    fsdp_saving saving = {.count = random_int(&random, 0, FSDP_SAVING_RULES_MAX)}, again = {0};
    for (int i = 0; i < saving.count; i++) saving.rules[i] = random_rule(&random);
    for (int fate = FSDP_FATE_RECOMPUTE; fate <= FSDP_FATE_OFFLOAD; fate++) {
      char text[FSDP_SAVING_TEXT_BYTES];
      fsdp_error error;
      fsdp_saving_print(&saving, (fsdp_fate)fate, text);
      if (parse(text, (fsdp_fate)fate, &again, &error)) fail_msg("%s: %s", text, error.message);
    }
    assert_int_equal(again.count, saving.count);
    int next = 0; // of `again`: first what is recomputed, then what is offloaded, each in its order
    for (int fate = FSDP_FATE_RECOMPUTE; fate <= FSDP_FATE_OFFLOAD; fate++) {
      for (int i = 0; i < saving.count; i++) {
        if ((int)saving.rules[i].fate != fate) continue;
        assert_string_equal(again.rules[next].name, saving.rules[i].name);
        assert_int_equal(again.rules[next].layers, saving.rules[i].layers);
        assert_int_equal((int)again.rules[next++].fate, fate);
      }
    }
  }
}

// ---- Fates

enum { LAYERS = 3, VALUES = 11 };

static fsdp_graph *small_graph(void) {
  fsdp_model_config model = model_of_preset("tiny");
  model.num_layers = LAYERS;
  return fsdp_model_graph(&model, 1, 8);
}

// What a layer of Llama saves: what enters it, then what its ops make.
static const struct {
  const char *module, *name;
} layer_values[VALUES] = {
    {"input_layernorm", "h"},
    {"input_layernorm", "y"},
    {"input_layernorm", "rstd"},
    {"self_attn.q_proj", "qkv"},
    {"self_attn", "o"},
    {"self_attn", "lse"},
    {"post_attention_layernorm", "h"},
    {"post_attention_layernorm", "y"},
    {"post_attention_layernorm", "rstd"},
    {"mlp.gate_proj", "gate_up"},
    {"mlp", "s"},
};

static int value_named(const fsdp_graph *graph, const char *path, const char *name) {
  for (int v = 0; v < graph->value_count; v++) {
    char module[FSDP_NAME_BYTES];
    if (graph->values[v].role != FSDP_VALUE_ACTIVATION || strcmp(graph->values[v].name, name) != 0) continue;
    fsdp_graph_module_path(graph, graph->values[v].module, module);
    if (strcmp(module, path) == 0) return v;
  }
  fail_msg("no value %s.%s", path, name);
  return -1;
}

static int layer_value(const fsdp_graph *graph, int layer, int index) {
  char path[FSDP_NAME_BYTES];
  if (layer == 0 && index == 0) return value_named(graph, "model.embed_tokens", "h");
  snprintf(path, sizeof path, "model.layers.%d.%s", layer, layer_values[index].module);
  return value_named(graph, path, layer_values[index].name);
}

// Letters of a layer's values: K kept, R recomputed, O offloaded.
static void expect_fates(const fsdp_graph *graph, const fsdp_fate *fates, const char *const *expected,
                         const char *rules) {
  int saved = 0, found = 0;
  for (int layer = 0; layer < LAYERS; layer++) {
    char letters[VALUES + 1] = "";
    for (int i = 0; i < VALUES; i++) letters[i] = "-KRO"[fates[layer_value(graph, layer, i)]];
    if (strcmp(letters, expected[layer]) != 0)
      fail_msg("%s: layer %d is %s, expected %s", rules, layer, letters, expected[layer]);
    saved += VALUES;
  }
  for (int v = 0; v < graph->value_count; v++) found += fates[v] != FSDP_FATE_NONE;
  assert_int_equal(found, saved); // and nothing else
}

#define ALL_KEPT "KKKKKKKKKKK"
#define EACH(a)                                                                                              \
  { a, a, a }
#define FIRST(a)                                                                                             \
  { a, ALL_KEPT, ALL_KEPT }
#define FIRST_TWO(a)                                                                                         \
  { a, a, ALL_KEPT }

static const struct {
  const char *recomputed, *offloaded;
  int ahead;
  const char *expected[LAYERS];
} resolved[] = {
    {"none", "none", 1, EACH(ALL_KEPT)},
    // One rule
    {"block", "none", 1, EACH("KRRRRRRRRRR")},
    {"block:3", "none", 1, EACH("KRRRRRRRRRR")},
    {"block:2", "none", 1, FIRST_TWO("KRRRRRRRRRR")},
    {"rmsnorm", "none", 1, EACH("KRRKKKKRRKK")},
    {"rmsnorm:post_attention_layernorm@1", "none", 1, FIRST("KKKKKKKRRKK")},
    {"attention@2", "none", 1, FIRST_TWO("KKKKRRKKKKK")},
    {"linear", "none", 1, EACH("KKKRKKKKKRK")},
    {"linear:q_proj", "none", 1, EACH("KKKRKKKKKKK")},
    {"linear:v_proj@1", "none", 1, FIRST("KKKRKKKKKKK")},
    {"linear:up_proj", "none", 1, EACH("KKKKKKKKKRK")},
    {"swiglu:mlp", "none", 1, EACH("KKKKKKKKKKR")},
    {"none", "block_inputs", 0, EACH("OKKKKKKKKKK")},
    {"none", "block_inputs@1", 0, FIRST("OKKKKKKKKKK")},
    {"none", "block", 0, EACH("KOOOOOOOOOO")},
    {"none", "residual", 0, EACH("OKKKKKOKKKK")},
    {"none", "residual:post_attention_layernorm@2", 0, FIRST_TWO("KKKKKKOKKKK")},
    // A sum without its norm is repeated with it; what enters a layer is not repeated.
    {"residual", "none", 0, EACH("KKKKKKRRRKK")},
    {"residual@1", "none", 0, FIRST("KKKKKKRRRKK")},
    {"residual", "rmsnorm", 0, EACH("KOOKKKRRRKK")},
    {"rmsnorm", "residual", 0, EACH("ORRKKKORRKK")},
    // What comes back `ahead` layers early is not offloaded in the last so many.
    {"none", "block_inputs", 1, FIRST_TWO("OKKKKKKKKKK")},
    {"none", "block_inputs", 2, FIRST("OKKKKKKKKKK")},
    {"none", "block_inputs", 3, EACH(ALL_KEPT)},
    {"none", "block,block_inputs", 9, EACH(ALL_KEPT)},
    {"none", "attention@1", 2, FIRST("KKKKOOKKKKK")},
    {"block", "block_inputs", 1, {"ORRRRRRRRRR", "ORRRRRRRRRR", "KRRRRRRRRRR"}},
    // Recomputing by name comes before offloading, and that before recomputing the block.
    {"block", "attention", 1, {"KRRROORRRRR", "KRRROORRRRR", "KRRRKKRRRRR"}},
    {"block", "block", 0, EACH("KOOOOOOOOOO")},
    {"attention@1", "attention", 0, {"KKKKRRKKKKK", "KKKKOOKKKKK", "KKKKOOKKKKK"}},
    {"attention@2", "attention@1", 0, FIRST_TWO("KKKKRRKKKKK")},
    {"rmsnorm", "block", 0, EACH("KRROOOORROO")},
    {"swiglu@1", "residual,block:2", 1, {"OOOOOOOOOOR", "OOOOOOOOOOO", ALL_KEPT}},
    {"linear:gate_proj@1", "linear", 0, {"KKKOKKKKKRK", "KKKOKKKKKOK", "KKKOKKKKKOK"}},
};

TEST(test_fates) {
  fsdp_graph *graph = small_graph();
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  for (size_t i = 0; i < sizeof resolved / sizeof *resolved; i++) {
    fsdp_saving saving = saving_of(resolved[i].recomputed, resolved[i].offloaded);
    fsdp_error error;
    char rules[256];
    snprintf(rules, sizeof rules, "%s, offloaded %s, %d ahead", resolved[i].recomputed, resolved[i].offloaded,
             resolved[i].ahead);
    if (fsdp_saving_resolve(&saving, graph, resolved[i].ahead, fates, &error))
      fail_msg("%s: %s", rules, error.message);
    expect_fates(graph, fates, resolved[i].expected, rules);
  }
  free(fates);
  fsdp_graph_destroy(graph);
}

// Whole layers are recomputed, but not what their routers chose: of an op that chooses there are as many
// instructions as of one that counts choices, which only a forward has, and of the experts' products twice as
// many.
TEST(test_choices_are_kept) {
  static const char *const presets[] = {"tiny-mixtral", "tiny-glm4-moe"};
  for (int i = 0; i < 2; i++) {
    fsdp_plan_config config = {.batch = 1,
                               .seq = 16,
                               .micro_batches = 3,
                               .strategy = FSDP_FULL,
                               .mesh = fsdp_mesh_of(1, 2),
                               .wrap = {.kind = FSDP_WRAP_BLOCK},
                               .prefetch = 1,
                               .grad_clip = 1,
                               .saving = fsdp_saving_of_blocks(),
                               .backend = fsdp_plan_backend_cpu()};
    fsdp_plan *plan;
    fsdp_error error;
    int chosen = 0, counted = 0, products = 0;
    config.model = model_of_preset(presets[i]);
    assert_int_equal(fsdp_plan_create(&config, &plan, &error), FSDP_OK);
    for (int n = 0; n < plan->program->instr_count; n++) {
      const fsdp_instr *instr = &plan->program->instrs[n];
      if (instr->kind != FSDP_INSTR_OP) continue;
      chosen += fsdp_op_has(instr->op, FSDP_TRAIT_CHOOSES);
      counted += instr->op == FSDP_OP_ROUTE_COUNTS;
      products += instr->op == FSDP_OP_EXPERT_UP;
    }
    assert_true(counted >= 6 && chosen == counted && products == 2 * counted);
    fsdp_plan_destroy(plan);
  }
  fsdp_saving saving = {0};
  fsdp_error error;
  fsdp_model_config model;
  fsdp_fate fates[4096];
  model = model_of_preset("tiny-mixtral");
  fsdp_graph *graph = fsdp_model_graph(&model, 1, 8);
  assert_true(graph->value_count <= 4096);
  assert_int_equal(parse("route", FSDP_FATE_RECOMPUTE, &saving, &error), FSDP_OK);
  assert_int_equal(fsdp_saving_resolve(&saving, graph, 0, fates, &error), FSDP_ERR_OPTION);
  fsdp_graph_destroy(graph);
}

TEST(test_refused_rules) {
  static const struct {
    const char *recomputed, *offloaded, *parts[3];
  } cases[] = {
      {"attention,attention", "none", {RECOMPUTE, "names attention twice"}},
      {"block,block:2", "none", {RECOMPUTE, "names block twice"}},
      {"none", "residual@1,residual@1", {OFFLOAD, "names residual twice"}},
      {"swiglu", "rmsnorm,swiglu", {RECOMPUTE, OFFLOAD, "both name swiglu"}},
      {"swiglu", "swiglu@1", {RECOMPUTE, OFFLOAD, "both name swiglu"}},
      {"block:4", "none", {RECOMPUTE, "block in 4 layers", "the model has 3"}},
      {"none", "block_inputs@2147483647", {OFFLOAD, "block_inputs in 2147483647 layers", "the model has 3"}},
      {"block_inputs", "none", {RECOMPUTE, "block_inputs", "--offload-activations block_inputs"}},
      {"residual:input_layernorm", "none", {RECOMPUTE, "'residual:input_layernorm'"}},
      {"atention", "none", {RECOMPUTE, "'atention'", "did you mean attention?"}},
      {"none", "linear:upproj", {OFFLOAD, "'linear:upproj'", "did you mean linear:up_proj?"}},
      {"none", "gelu", {OFFLOAD, "'gelu'", "block_inputs, residual, rmsnorm, linear, attention, swiglu"}},
      {"linear:down_proj", "none", {RECOMPUTE, "'linear:down_proj'"}}, // no backward reads what it makes
      {"block:2@3", "none", {RECOMPUTE, "'block:2'"}},
      {"rmsnorm:norm", "none", {RECOMPUTE, "'rmsnorm:norm'"}}, // of the model, not of a layer
  };
  fsdp_graph *graph = small_graph();
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_saving saving = saving_of(cases[i].recomputed, cases[i].offloaded);
    fsdp_error error = {0};
    if (fsdp_saving_resolve(&saving, graph, 1, fates, &error) != FSDP_ERR_OPTION)
      fail_msg("%s, offloaded %s: not refused", cases[i].recomputed, cases[i].offloaded);
    for (int p = 0; p < 3 && cases[i].parts[p]; p++)
      if (!strstr(error.message, cases[i].parts[p]))
        fail_msg("\"%s\" lacks \"%s\"", error.message, cases[i].parts[p]);
  }
  free(fates);
  fsdp_graph_destroy(graph);
}

// ---- The first layers

enum { CHOICE_LAYERS = 5, WHOLE_STEP = CHOICE_LAYERS };

// The greatest numbers of the device's bytes: while each layer's backward runs, and of the whole step.
typedef struct needed_bytes {
  int64_t bytes[CHOICE_LAYERS + 1];
} needed_bytes;

static int layer_of(const fsdp_graph *graph, const fsdp_instr *instr) {
  char path[FSDP_NAME_BYTES] = "";
  int layer = -1;
  if (instr->module >= 0) fsdp_graph_module_path(graph, instr->module, path);
  return sscanf(path, "model.layers.%d.", &layer) == 1 ? layer : -1;
}

static needed_bytes measure(const fsdp_program *program, const fsdp_graph *graph) {
  needed_bytes needed = {{0}};
  int64_t *live_bytes = fsdp_memory_live(program, FSDP_SPACE_DEVICE, false);
  bool is_backward = false;
  for (int i = 0; i < program->instr_count; i++) {
    const fsdp_instr *instr = &program->instrs[i];
    int64_t live = live_bytes[i];
    if (live > needed.bytes[WHOLE_STEP]) needed.bytes[WHOLE_STEP] = live;
    if (instr->kind != FSDP_INSTR_OP) continue;
    int layer = layer_of(graph, instr);
    is_backward = is_backward || fsdp_op_phase_of(instr->op) == FSDP_OP_IN_BACKWARD;
    if (is_backward && layer >= 0 && live > needed.bytes[layer]) needed.bytes[layer] = live;
  }
  free(live_bytes);
  return needed;
}

static needed_bytes needed_with(const fsdp_plan *plan, const fsdp_fate *fates) {
  fsdp_unit_state *unit_state;
  fsdp_program *program = fsdp_schedule(&plan->config, fates, plan->graph, plan->units, &unit_state);
  fsdp_program_lifetimes(program);
  needed_bytes needed = measure(program, plan->graph);
  fsdp_program_destroy(program);
  free(unit_state);
  return needed;
}

// Fates of the values that `saving` names in the layers of `set`, each as in a model that has it everywhere.
static void fates_of_set(const fsdp_plan *plan, const fsdp_saved *saved, const fsdp_saving *saving,
                         unsigned set, fsdp_fate *fates) {
  assert_int_equal(fsdp_saving_resolve(saving, plan->graph, 0, fates, NULL), FSDP_OK);
  for (int i = 0; i < saved->count; i++)
    if (!(set >> saved->values[i].layer & 1)) fates[saved->values[i].value] = FSDP_FATE_KEEP;
}

// Of all sets of as many layers, the first ones need least, at every time.
static void check_first_layers(const fsdp_plan *plan, const char *recomputed, const char *offloaded) {
  int layers = CHOICE_LAYERS - (strcmp(offloaded, "none") ? plan->config.prefetch : 0);
  fsdp_saving saving = saving_of(recomputed, offloaded);
  fsdp_saved saved = fsdp_saved_create(plan->graph);
  fsdp_fate *fates = fsdp_alloc((size_t)plan->graph->value_count * sizeof *fates);
  needed_bytes least[CHOICE_LAYERS + 1], first[CHOICE_LAYERS + 1];
  memset(least, 127, sizeof least);
  for (unsigned set = 0; set < 1u << layers; set++) {
    int k = __builtin_popcount(set);
    fates_of_set(plan, &saved, &saving, set, fates);
    needed_bytes needed = needed_with(plan, fates);
    for (int i = 0; i <= WHOLE_STEP; i++)
      if (needed.bytes[i] < least[k].bytes[i]) least[k].bytes[i] = needed.bytes[i];
    if (set == (1u << k) - 1) first[k] = needed;
  }
  for (int k = 0; k <= layers; k++)
    for (int i = 0; i <= WHOLE_STEP; i++)
      if (first[k].bytes[i] != least[k].bytes[i])
        fail_msg(
            "%s, offloaded %s, prefetch %d: the first %d layers need %lld bytes in layer %d, others %lld",
            recomputed, offloaded, plan->config.prefetch, k, (long long)first[k].bytes[i], i,
            (long long)least[k].bytes[i]);
  if (first[1].bytes[WHOLE_STEP] >= first[0].bytes[WHOLE_STEP])
    fail_msg("%s, offloaded %s: no memory is saved", recomputed, offloaded);
  fsdp_saved_release(&saved);
  free(fates);
}

TEST(test_first_layers_need_least) {
  static const char *const rules[][2] = {{"block", "none"},          {"rmsnorm,swiglu", "none"},
                                         {"linear:up_proj", "none"}, {"none", "block"},
                                         {"none", "residual"},       {"rmsnorm,swiglu", "linear,attention"},
                                         {"block", "block_inputs"}};
  for (int prefetch = 0; prefetch <= 2; prefetch++) {
    fsdp_plan_config config = {.batch = 4,
                               .seq = 64,
                               .micro_batches = 1,
                               .mesh = fsdp_mesh_of(1, 4),
                               .wrap = {.kind = FSDP_WRAP_BLOCK},
                               .prefetch = prefetch,
                               .grad_clip = 1.0f,
                               .backend = fsdp_plan_backend_cpu()};
    config.model = model_of_preset("tiny");
    config.model.num_layers = CHOICE_LAYERS;
    fsdp_plan *plan = NULL;
    assert_int_equal(fsdp_plan_create(&config, &plan, NULL), FSDP_OK);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
      check_first_layers(plan, rules[i][0], rules[i][1]);
    fsdp_plan_destroy(plan);
  }
}
