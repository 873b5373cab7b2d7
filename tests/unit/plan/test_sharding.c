// Sharding rules: which rule holds for which name, what they mean to units, what is refused, and the text.
#include "runtime/plan/mesh/units.h"
#include "runtime/plan/sharding/sharding.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdlib.h>
#include <string.h>

enum { RULES_MAX = 12 };

typedef struct fixture {
  fsdp_graph *graph;
  fsdp_mesh mesh;
  fsdp_sharding sharding;
  fsdp_shard_rule rules[RULES_MAX];
  fsdp_specs *specs;
} fixture;

// "NAME[OUTPUT]: A,B C -": entries separated by spaces, "-" is null. The index is one digit, or absent.
static void add_rule(fixture *f, const char *text) {
  fsdp_shard_rule *rule = &f->rules[f->sharding.rule_count++];
  const char *colon = strstr(text, ": ");
  *rule = (fsdp_shard_rule){.output = -1};
  int length = (int)(colon - text);
  if (text[length - 1] == ']') {
    rule->output = text[length - 2] - '0';
    length -= 3;
  }
  snprintf(rule->name, sizeof rule->name, "%.*s", length, text);
  snprintf(rule->place, sizeof rule->place, "rule %d", f->sharding.rule_count);
  char entries[128], *rest = entries, *entry;
  snprintf(entries, sizeof entries, "%s", colon + 2);
  while ((entry = strsep(&rest, " "))) {
    fsdp_rule_dim *dim = &rule->dim[rule->dims++];
    char *axis;
    while (strcmp(entry, "-") != 0 && (axis = strsep(&entry, ",")) && *axis) {
      snprintf(dim->axes[dim->count++], sizeof dim->axes[0], "%s", axis);
      if (!entry) break;
    }
  }
}

static fixture make_of(const fsdp_model_config *config, const char *mesh, const char *const *rules) {
  fixture f = {.graph = fsdp_model_forward(config, 1, 4)};
  char copy[128], *rest = copy, *part;
  snprintf(copy, sizeof copy, "%s", mesh);
  while ((part = strsep(&rest, ","))) {
    char *size = strchr(part, '=');
    *size = 0;
    assert_true(fsdp_mesh_add(&f.mesh, part, atoi(size + 1)));
  }
  f.sharding.given = f.mesh;
  fsdp_mesh_complete(&f.mesh);
  for (int i = 0; rules && rules[i]; i++) add_rule(&f, rules[i]);
  return f;
}

static fixture make(const char *mesh, const char *const *rules) {
  const fsdp_model_config config = harness_small_plan(1).model;
  return make_of(&config, mesh, rules);
}

static fsdp_status resolve(fixture *f, fsdp_error *error) {
  f->sharding.rules = f->rules;
  return fsdp_sharding_resolve(&f->sharding, f->graph, &f->mesh, &f->specs, error);
}

static void destroy(fixture *f) {
  fsdp_specs_destroy(f->specs);
  fsdp_graph_destroy(f->graph);
}

static char *printed(fixture *f) {
  fsdp_error error = {0};
  if (resolve(f, &error)) fail_msg("%s", error.message);
  enum { BYTES = 1 << 14 };
  char *text = calloc(1, BYTES);
  FILE *out = fmemopen(text, BYTES, "w");
  fsdp_specs_print(f->specs, f->graph, &f->mesh, NULL, out);
  fclose(out);
  return text;
}

static void expect_lines(fixture *f, const char *const *lines) {
  char *text = printed(f);
  for (int i = 0; lines[i]; i++) {
    char line[160];
    snprintf(line, sizeof line, "%s\n", lines[i]);
    const char *at = strstr(text, line);
    if (!at || (at > text && at[-1] != '\n')) fail_msg("no line '%s' in:\n%s", lines[i], text);
  }
  free(text);
}

// An integer wins over `*` wherever the rules stand; what no rule names is replicated; the batch follows the
// first output's rule.
TEST(test_rules_hold_for_names) {
  fixture f =
      make("data=2,fsdp=3",
           (const char *const[]){"model.layers.1.mlp.up_proj.weight: - data",
                                 "model.layers.*.mlp.up_proj.weight: fsdp -", "lm_head.weight: 1,0 -",
                                 "lm_head: fsdp,data - tensor", "model.layers.0: fsdp,data - -", NULL});
  expect_lines(&f, (const char *const[]){
                       "input: [[fsdp, data], null]", "model.layers.0.mlp.up_proj.weight: [fsdp, null]",
                       "model.layers.1.mlp.up_proj.weight: [null, data]",
                       "model.layers.*.mlp.down_proj.weight: [null, null]",
                       "lm_head.weight: [[fsdp, data], null]", "model.norm.weight: [null]",
                       "lm_head: [[fsdp, data], null, tensor]", "model.layers.*: [[fsdp, data], null, null]",
                       "'': [[fsdp, data], null, null]", NULL});
  // Who asked, for messages and for whoever may place what nobody asked for.
  assert_string_equal(f.specs->outputs[0][0].place, "");
  int head = f.graph->module_count - 1; // the last in state-dict order
  assert_string_equal(f.specs->outputs[head][0].place, "rule 4");
  assert_int_equal(f.specs->outputs[head][0].source, FSDP_SPEC_GIVEN);
  assert_int_equal(f.specs->outputs[0][0].source, FSDP_SPEC_DEFAULT);
  // Rank r has coordinates (r / 3, r % 3); the batch is cut over fsdp first.
  place_by_specs(f.graph, f.specs, &f.mesh);
  const fsdp_value *tokens = &f.graph->values[f.graph->inputs[FSDP_INPUT_TOKENS]];
  assert_int_equal(tokens->shape[0], 6 * 4);
  for (int r = 0; r < 6; r++) {
    int parts;
    assert_int_equal(fsdp_dim_axes_part(&f.specs->input.dim[0], &f.mesh, r, &parts), r % 3 * 2 + r / 3);
    assert_int_equal(parts, 6);
  }
  destroy(&f);
}

TEST(test_the_batch) {
  fixture f = make("data=2,fsdp=2", (const char *const[]){"lm_head.weight: fsdp -", NULL});
  expect_lines(&f, (const char *const[]){"input: [[data, fsdp], null]", NULL}); // neither input nor an output
  destroy(&f);
  f = make("fsdp=2,x=2", (const char *const[]){"input: x,fsdp tensor", "model: x,fsdp - -", NULL});
  expect_lines(&f, (const char *const[]){"input: [[x, fsdp], tensor]", NULL});
  destroy(&f);
}

// hidden 32, intermediate 80, vocabulary 101, 16 columns of k.
TEST(test_presets) {
  fixture f = make("x=2,fsdp=2", NULL);
  f.sharding.preset = FSDP_SHARDING_FSDPV2;
  snprintf(f.sharding.data_axis, sizeof f.sharding.data_axis, "x");
  expect_lines(&f,
               (const char *const[]){"input: [[x, fsdp], null]", "lm_head.weight: [fsdp, null]",
                                     "model.layers.*.self_attn.q_proj.weight: [fsdp, null]",
                                     "model.layers.*.self_attn.k_proj.weight: [null, fsdp]",
                                     "model.layers.*.mlp.down_proj.weight: [null, fsdp]",
                                     "model.norm.weight: [fsdp]", "model: [[x, fsdp], null, null]", NULL});
  destroy(&f);
  f = make("data=2,fsdp=2", (const char *const[]){"model.norm.weight: -", NULL});
  f.sharding.preset = FSDP_SHARDING_FSDP;
  expect_lines(&f, (const char *const[]){"input: [[data, fsdp], null]", "lm_head.weight: [fsdp, null]",
                                         "model.layers.*.self_attn.k_proj.weight: [fsdp, null]",
                                         "model.norm.weight: [null]", NULL});
  destroy(&f);
}

// What a default prints are the same placements as rules.
TEST(test_default_as_rules) {
  fixture f = make("data=2,fsdp=4", NULL);
  f.sharding.preset = FSDP_SHARDING_FSDP;
  fsdp_error error;
  assert_int_equal(resolve(&f, &error), FSDP_OK);
  fsdp_specs *plain = fsdp_specs_default(f.graph, &f.mesh);
  assert_memory_equal(&plain->input, &f.specs->input, sizeof plain->input);
  for (int p = 0; p < f.graph->param_count; p++) {
    assert_memory_equal(plain->params[p].dim, f.specs->params[p].dim, sizeof plain->params->dim);
    assert_int_equal(plain->params[p].source, FSDP_SPEC_DEFAULT);
    assert_int_equal(f.specs->params[p].source, FSDP_SPEC_PRESET); // nothing is left to propagation
    assert_string_equal(f.specs->params[p].place, "--sharding fsdp");
  }
  for (int m = 0; m < f.graph->module_count; m++)
    assert_memory_equal(plain->outputs[m], f.specs->outputs[m], sizeof *plain->outputs);
  fsdp_specs_destroy(plain);
  destroy(&f);
}

// A module whose parameters lie over different axes is several units, named apart.
TEST(test_units_of_one_module) {
  fixture f =
      make("data=2,fsdp=3", (const char *const[]){"model.layers.*.self_attn.q_proj.weight: fsdp -",
                                                  "model.layers.*.mlp.up_proj.weight: - data,fsdp",
                                                  "model.layers.*.mlp.gate_proj.weight: fsdp data",
                                                  "model.norm.weight: data", "lm_head.weight: data -", NULL});
  fsdp_error error;
  fsdp_units *units;
  assert_int_equal(resolve(&f, &error), FSDP_OK);
  place_by_specs(f.graph, f.specs, &f.mesh);
  const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_MODULE, .classes = "LlamaDecoderLayer"};
  assert_int_equal(fsdp_units_create(f.graph, &policy, &f.mesh, &units, &error), FSDP_OK);
  const struct {
    const char *path;
    int params, shards, replicas;
  } expected[] = {{"(root) (replicated)", 1, 1, 6},
                  {"(root) (data)", 2, 2, 3},
                  {"model.layers.0 (fsdp)", 1, 3, 2},
                  {"model.layers.0 (replicated)", 6, 1, 6},
                  {"model.layers.0 (data+fsdp)", 2, 6, 1}};
  assert_int_equal(units->count, 2 + 2 * 3);
  for (size_t u = 0; u < sizeof expected / sizeof *expected; u++) {
    const fsdp_unit *unit = &units->units[u];
    assert_string_equal(unit->path, expected[u].path);
    assert_int_equal(unit->param_count, expected[u].params);
    assert_int_equal(unit->shard_count, expected[u].shards);
    assert_int_equal(unit->replica_count, expected[u].replicas);
    assert_true(unit->norm_weight == 1.0f / (float)expected[u].replicas);
    assert_int_equal(unit->padded_numel, unit->shard_numel * unit->shard_count);
  }
  int64_t numel = 0;
  for (int u = 0; u < units->count; u++) numel += units->units[u].numel;
  const fsdp_model_config config = harness_small_plan(1).model;
  assert_int_equal(numel, fsdp_model_parameter_count(&config));
  fsdp_units_destroy(units);
  destroy(&f);
}

static void expect_refused(const char *mesh, const char *const *rules, fsdp_status status,
                           const char *const *parts) {
  fixture f = make(mesh, rules);
  fsdp_error error = {0};
  assert_int_equal(resolve(&f, &error), status);
  for (int i = 0; parts[i]; i++)
    if (!strstr(error.message, parts[i])) fail_msg("no '%s' in: %s", parts[i], error.message);
  destroy(&f);
}

#define REFUSED(mesh, status, rule, ...)                                                                     \
  expect_refused(mesh, (const char *const[]){rule, NULL}, status, (const char *const[]){__VA_ARGS__, NULL})

TEST(test_refusals) {
  REFUSED("fsdp=2,data=2", FSDP_ERR_OPTION, "lm_head: fsdp - -", "axis data has 2 ranks",
          "input: [[..., data], null]", "data=1");
  REFUSED("fsdp=2", FSDP_ERR_INPUT, "lm_head.weight: 1 -", "mesh index 1", "fsdp, numbered from 0");
  REFUSED("fsdp=2", FSDP_ERR_INPUT, "lm_head.weight: model -", "no axis \"model\"", "tensor");
  REFUSED("fsdp=2", FSDP_ERR_INPUT, "lm_head.weight: fsdp fsdp", "axis fsdp twice");
  REFUSED("fsdp=2", FSDP_ERR_INPUT, "lm_head.weight: fsdp", "1 entry", "2 dimensions");
  REFUSED("fsdp=2", FSDP_ERR_INPUT, "lm_head: fsdp -", "2 entries", "3 dimensions");
  expect_refused(
      "fsdp=2",
      (const char *const[]){"model.layers.*.self_attn.o_proj_weight: fsdp -", "lm_head.weight: fsdp -",
                            "model.layers.7.mlp: fsdp - -", "q: fsdp", NULL},
      FSDP_ERR_INPUT,
      (const char *const[]){"o_proj_weight\" (rule 1; did you mean model.layers.*.self_attn.o_proj."
                            "weight?)",
                            "\"model.layers.7.mlp\" (rule 3; the model has model.layers.0 to model.layers.1)",
                            "\"q\" (rule 4; nothing is near)", NULL});
  fixture f = make("fsdp=2,tensor=2,x=2", NULL);
  fsdp_error error = {0};
  f.sharding.preset = FSDP_SHARDING_FSDP;
  assert_int_equal(resolve(&f, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "axis tensor has 2 ranks, over which nothing lies"));
  assert_non_null(strstr(error.message, "--sharding fsdp-tp"));
  f.sharding.preset = FSDP_SHARDING_FSDP_TP;
  assert_int_equal(resolve(&f, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "axis x has 2 ranks"));
  assert_non_null(strstr(error.message, "--extra-data-axis x"));
  destroy(&f);
}

// As many different sets of axes as a program has communicators for. Axes of the batch and others count
// apart.
TEST(test_sets_of_axes) {
  static const char *const rules[] = {"input: data,fsdp,x -",
                                      "model.embed_tokens.weight: data -",
                                      "model.layers.*.mlp.up_proj.weight: fsdp -",
                                      "lm_head.weight: x -",
                                      "model.layers.*.mlp.gate_proj.weight: fsdp,x -",
                                      "model.norm.weight: data,x",
                                      "model.layers.*.mlp.down_proj.weight: - tensor",
                                      "model.layers.*.self_attn.q_proj.weight: fsdp tensor",
                                      "model.layers.*.self_attn.k_proj.weight: fsdp,tensor -",
                                      NULL,
                                      NULL};
  fixture f = make("data=2,fsdp=2,x=2,tensor=2", rules);
  fsdp_error error = {0};
  if (resolve(&f, &error)) fail_msg("%s", error.message);
  destroy(&f);
  const char *more[11];
  memcpy(more, rules, sizeof rules);
  more[9] = "model.layers.*.self_attn.v_proj.weight: data,fsdp -";
  expect_refused("data=2,fsdp=2,x=2,tensor=2", more, FSDP_ERR_INPUT,
                 (const char *const[]){"more than 8 different sets", NULL});
}

// Any axis on any dimension. Only those that cut the input cut a weight flat.
TEST(test_axes_outside_the_batch) {
  fixture f = make("fsdp=2,tensor=3,context=2",
                   (const char *const[]){"input: fsdp context", "lm_head.weight: context tensor,fsdp",
                                         "model.norm.weight: tensor", "lm_head: - context fsdp,tensor",
                                         "model.layers.*: fsdp tensor,context -", NULL});
  expect_lines(
      &f, (const char *const[]){"input: [fsdp, context]", "lm_head.weight: [context, [tensor, fsdp]]",
                                "model.norm.weight: [tensor]", "lm_head: [null, context, [fsdp, tensor]]",
                                "model.layers.*: [fsdp, [tensor, context], null]",
                                "model: [fsdp, context, null]", "'': [fsdp, context, null]", NULL});
  destroy(&f);
}

// One output of a list, where there is only one tensor.
TEST(test_indices) {
  fixture f = make("fsdp=2", (const char *const[]){"model.layers.*: fsdp - -", NULL});
  fsdp_error error;
  f.rules[0].output = 0;
  assert_int_equal(resolve(&f, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "\"model.layers.*[0]\": the index is out of range"));
  assert_non_null(strstr(error.message, "model.layers.0 is one tensor, not a list"));
  destroy(&f);
  f = make("fsdp=2", (const char *const[]){"model.layers.0: fsdp - -", "model.layers.*[0]: fsdp - -", NULL});
  assert_int_equal(resolve(&f, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "one output of what \"model.layers.0\" (rule 1) names whole"));
  destroy(&f);
  REFUSED("fsdp=2", FSDP_ERR_INPUT, "lm_head.weight[0]: fsdp -", "lm_head.weight is one tensor");
}

// A graph whose decoder layers return the hidden states, a loss of their router and its logits, as a mixture
// of experts does.
static fixture make_with_outputs(const char *const *rules) {
  fixture f = make("fsdp=2,tensor=2", rules);
  for (int m = 0; m < f.graph->module_count; m++) {
    if (strcmp(f.graph->modules[m].class_name, f.graph->block_class) != 0) continue;
    fsdp_graph_module_output(f.graph, m, 1);
    fsdp_graph_module_output(f.graph, m, 3);
  }
  return f;
}

static void expect_outputs_refused(const char *const *rules, const char *part) {
  fixture f = make_with_outputs(rules);
  fsdp_error error = {0};
  assert_int_equal(resolve(&f, &error), FSDP_ERR_INPUT);
  if (!strstr(error.message, part)) fail_msg("no '%s' in: %s", part, error.message);
  destroy(&f);
}

TEST(test_several_outputs) {
  fixture f = make_with_outputs((const char *const[]){"model.layers.*[0]: fsdp - tensor",
                                                      "model.layers.0[2]: fsdp tensor -",
                                                      "model.layers.1[1]: tensor", "input: fsdp -", NULL});
  static const char *const lines[] = {"model.layers.*[0]: [fsdp, null, tensor]",
                                      "model.layers.0[1]: [null]",
                                      "model.layers.1[1]: [tensor]",
                                      "model.layers.0[2]: [fsdp, tensor, null]",
                                      "model.layers.1[2]: [fsdp, null, null]",
                                      "model.layers.*.mlp: [fsdp, null, null]",
                                      NULL};
  expect_lines(&f, lines);
  destroy(&f);
  // A name without an index is all outputs, each of which must have its dimensions.
  f = make_with_outputs((const char *const[]){"model.layers.1[0]: fsdp - -", "model.layers.1[1]: tensor",
                                              "model.layers.1[2]: - - -", "lm_head: fsdp - -", NULL});
  fsdp_error error = {0};
  if (resolve(&f, &error)) fail_msg("%s", error.message);
  destroy(&f);
  expect_outputs_refused((const char *const[]){"model.layers.*: fsdp - -", NULL},
                         "1 dimension: write one entry for each, or name one of its outputs");
  expect_outputs_refused((const char *const[]){"model.layers.*[1]: fsdp - -", NULL}, "1 dimension");
  expect_outputs_refused((const char *const[]){"model.layers.*[3]: fsdp - -", NULL},
                         "model.layers.0 has the outputs [0] to [2]");
  expect_outputs_refused(
      (const char *const[]){"model.layers.*[1]: -", "model.layers.1: fsdp - -", NULL},
      "\"model.layers.*[1]\" names one output of what \"model.layers.1\" (rule 2) names whole");
  expect_outputs_refused((const char *const[]){"model.layers[0]: fsdp - -", NULL}, "no weight or module");
}

// The whole model returns several tensors: the name is empty, so that its line begins with the index.
TEST(test_outputs_of_the_model) {
  fixture f = make("fsdp=2", (const char *const[]){"[0]: - - fsdp", NULL});
  fsdp_graph_module_output(f.graph, 0, 0);
  expect_lines(&f, (const char *const[]){"'[0]': [null, null, fsdp]", "'[1]': []", NULL});
  destroy(&f);
}

// The head of a tied model is its embedding: both names are known, and must agree.
TEST(test_tied) {
  fixture f = make("data=2,fsdp=2", (const char *const[]){"lm_head.weight: - fsdp", NULL});
  fsdp_graph_destroy(f.graph);
  fsdp_model_config config = harness_small_plan(1).model;
  config.tie_word_embeddings = true;
  f.graph = fsdp_model_forward(&config, 1, 4);
  expect_lines(&f, (const char *const[]){"model.embed_tokens.weight: [null, fsdp]", NULL});
  fsdp_specs_destroy(f.specs);
  f.specs = NULL;
  add_rule(&f, "model.embed_tokens.weight: fsdp -");
  expect_lines(&f, (const char *const[]){"model.embed_tokens.weight: [fsdp, null]", NULL});
  fsdp_specs_destroy(f.specs);
  f.specs = NULL;
  snprintf(f.rules[1].dim[0].axes[0], sizeof f.rules[1].dim[0].axes[0], "data");
  fsdp_error error;
  assert_int_equal(resolve(&f, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "one tied weight"));
  destroy(&f);
  // Of an axis that is not the batch's, the dimension matters too.
  static const char *const heads[] = {"lm_head.weight: tensor fsdp", "lm_head.weight: fsdp tensor",
                                      "lm_head.weight: tensor,fsdp -"};
  for (int i = 0; i < 3; i++) {
    f = make_of(&config, "fsdp=2,tensor=2",
                (const char *const[]){"model.embed_tokens.weight: tensor fsdp", heads[i], NULL});
    assert_int_equal(resolve(&f, &error), i == 1 ? FSDP_ERR_INPUT : FSDP_OK);
    destroy(&f);
  }
}
