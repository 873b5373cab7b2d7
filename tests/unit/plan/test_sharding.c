// Sharding rules: which rule holds for which name, what they mean to units, what is refused, and the text.
#include "runtime/plan/layout/placement.h"
#include "runtime/plan/layout/sharding.h"
#include "runtime/plan/layout/units.h"
#include "tests/support/harness.h"
#include "tests/support/models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RULES_MAX = 8 };

typedef struct fixture {
  fsdp_graph *graph;
  fsdp_mesh mesh;
  fsdp_sharding sharding;
  fsdp_shard_rule rules[RULES_MAX];
  fsdp_specs *specs;
} fixture;

// "NAME: A,B C -": entries separated by spaces, "-" is null.
static void add_rule(fixture *f, const char *text) {
  fsdp_shard_rule *rule = &f->rules[f->sharding.rule_count++];
  const char *colon = strstr(text, ": ");
  *rule = (fsdp_shard_rule){.output = -1};
  snprintf(rule->name, sizeof rule->name, "%.*s", (int)(colon - text), text);
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

static fixture make(const char *mesh, const char *const *rules) {
  fixture f = {0};
  fsdp_model_config config = harness_small_plan(1).model;
  f.graph = fsdp_model_graph(&config, 1, 4);
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
  fsdp_specs_print(f->specs, f->graph, &f->mesh, out);
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
static void test_rules_hold_for_names(void **state) {
  (void)state;
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
  // Rank r has coordinates (r / 3, r % 3); the batch is cut over fsdp first.
  fsdp_specs_write(f.specs, f.graph, &f.mesh);
  const fsdp_value *tokens = &f.graph->values[f.graph->tokens];
  assert_int_equal(tokens->shape[0], 6 * 4);
  for (int r = 0; r < 6; r++) {
    int parts;
    assert_int_equal(fsdp_placement_part(&tokens->placement, &f.mesh, 0, r, &parts), r % 3 * 2 + r / 3);
    assert_int_equal(parts, 6);
  }
  destroy(&f);
}

static void test_the_batch(void **state) {
  (void)state;
  fixture f = make("data=2,fsdp=2", (const char *const[]){"lm_head.weight: fsdp -", NULL});
  expect_lines(&f, (const char *const[]){"input: [[data, fsdp], null]", NULL}); // neither input nor an output
  destroy(&f);
  f = make("fsdp=2,x=2", (const char *const[]){"input: x,fsdp tensor", "model: x,fsdp - -", NULL});
  expect_lines(&f, (const char *const[]){"input: [[x, fsdp], tensor]", NULL});
  destroy(&f);
}

// hidden 32, intermediate 80, vocabulary 101, 16 columns of k.
static void test_presets(void **state) {
  (void)state;
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
static void test_default_as_rules(void **state) {
  (void)state;
  fixture f = make("data=2,fsdp=4", NULL);
  f.sharding.preset = FSDP_SHARDING_FSDP;
  fsdp_error error;
  assert_int_equal(resolve(&f, &error), FSDP_OK);
  fsdp_specs *plain = fsdp_specs_default(f.graph, &f.mesh);
  assert_memory_equal(&plain->input, &f.specs->input, sizeof plain->input);
  for (int p = 0; p < f.graph->param_count; p++)
    assert_memory_equal(&plain->params[p], &f.specs->params[p], sizeof *plain->params);
  for (int m = 0; m < f.graph->module_count; m++)
    assert_memory_equal(&plain->modules[m], &f.specs->modules[m], sizeof *plain->modules);
  fsdp_specs_destroy(plain);
  destroy(&f);
}

// A module whose parameters lie over different axes is several units, named apart.
static void test_units_of_one_module(void **state) {
  (void)state;
  fixture f =
      make("data=2,fsdp=3", (const char *const[]){"model.layers.*.self_attn.q_proj.weight: fsdp -",
                                                  "model.layers.*.mlp.up_proj.weight: - data,fsdp",
                                                  "model.layers.*.mlp.gate_proj.weight: fsdp data",
                                                  "model.norm.weight: data", "lm_head.weight: data -", NULL});
  fsdp_error error;
  fsdp_units *units;
  assert_int_equal(resolve(&f, &error), FSDP_OK);
  fsdp_specs_write(f.specs, f.graph, &f.mesh);
  const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_MODULE, .classes = "LlamaDecoderLayer"};
  assert_int_equal(fsdp_units_create(f.graph, &policy, &f.mesh, &units, &error), FSDP_OK);
  const struct {
    const char *path;
    int params, shards, replicas;
  } expected[] = {{"(replicated)", 1, 1, 6},
                  {"(data)", 2, 2, 3},
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

static void test_refusals(void **state) {
  (void)state;
  // What is asked and not built.
  REFUSED("fsdp=2,tensor=2", FSDP_ERR_INPUT, "lm_head.weight: tensor fsdp", "rule 1",
          "axis tensor of 2 ranks", "[tensor, fsdp]", "tensor=1");
  REFUSED("fsdp=2,tensor=2", FSDP_ERR_INPUT, "lm_head: fsdp - tensor", "dimension 2", "tensor of 2",
          "tensor=1");
  REFUSED("fsdp=2,context=2", FSDP_ERR_INPUT, "model.layers.*: fsdp context -", "dimension 1", "context=1");
  REFUSED("fsdp=2,context=2", FSDP_ERR_INPUT, "input: fsdp context", "dimension 1", "context=1");
  REFUSED("fsdp=2,data=2", FSDP_ERR_OPTION, "lm_head: fsdp - -", "axis data has 2 ranks", "data=1");
  expect_refused("data=2,fsdp=2", (const char *const[]){"input: data,fsdp -", "model: fsdp,data - -", NULL},
                 FSDP_ERR_INPUT,
                 (const char *const[]){"rule 2", "[[fsdp, data], null, null]", "[[data, fsdp]]", NULL});
  // What is wrong.
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
                            "\"model.layers.7.mlp\" (rule 3; did you mean model.layers.*.mlp?)",
                            "\"q\" (rule 4; nothing is near)", NULL});
  // More different sets of axes than a program's communicators are for.
  expect_refused("data=2,fsdp=2,x=2",
                 (const char *const[]){"input: data,fsdp,x -", "model.embed_tokens.weight: data -",
                                       "model.layers.*.mlp.up_proj.weight: fsdp -", "lm_head.weight: x -",
                                       "model.layers.*.mlp.gate_proj.weight: fsdp,x -",
                                       "model.norm.weight: data,x", NULL},
                 FSDP_ERR_INPUT, (const char *const[]){"more than 5 different sets", NULL});
}

// One output of a list, where there is only one tensor.
static void test_indices(void **state) {
  (void)state;
  fixture f = make("fsdp=2", (const char *const[]){"model.layers.*: fsdp - -", NULL});
  fsdp_error error;
  f.rules[0].output = 0;
  assert_int_equal(resolve(&f, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "\"model.layers.*[0]\": the index is out of range"));
  add_rule(&f, "model.layers.0: fsdp - -");
  assert_int_equal(resolve(&f, &error), FSDP_ERR_INPUT);
  assert_non_null(strstr(error.message, "one output of what \"model.layers.0\" (rule 2) names whole"));
  destroy(&f);
}

// The head of a tied model is its embedding: both names are known, and must agree.
static void test_tied(void **state) {
  (void)state;
  fixture f = make("data=2,fsdp=2", (const char *const[]){"lm_head.weight: - fsdp", NULL});
  fsdp_graph_destroy(f.graph);
  fsdp_model_config config = harness_small_plan(1).model;
  config.tie_word_embeddings = true;
  f.graph = fsdp_model_graph(&config, 1, 4);
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
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules_hold_for_names),
                                     cmocka_unit_test(test_the_batch),
                                     cmocka_unit_test(test_presets),
                                     cmocka_unit_test(test_default_as_rules),
                                     cmocka_unit_test(test_units_of_one_module),
                                     cmocka_unit_test(test_refusals),
                                     cmocka_unit_test(test_indices),
                                     cmocka_unit_test(test_tied)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
