// Completion of sharding files: whatever part of fsdp-tp's lines is given, the rest of them follows; what
// lines say stays.
#include "runtime/plan/sharding/seeds.h"

#include "models/model.h"
#include "runtime/base/check.h"
#include "runtime/plan/sharding/decisions.h"
#include "runtime/plan/sharding/partition.h"
#include "runtime/plan/sharding/sharding.h"
#include "runtime/plan/sharding/tensor_preset.h"
#include "tests/support/models.h"
#include "tests/support/random_program.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FSDP = 2, TENSOR = 4, BATCH = 2, SEQ = 32 };

// A model on fsdp=2, tensor=4, and the lines of a file for it.
typedef struct fixture {
  fsdp_model_config config;
  fsdp_graph *graph;
  fsdp_mesh mesh;
  fsdp_specs *preset; // what fsdp-tp says
  fsdp_shard_rule *rules;
  int rule_count;
  fsdp_specs *specs; // completed
  fsdp_propagation *propagation;
} fixture;

static fixture fixture_on(const char *model, int tensor) {
  fixture f = {.mesh = fsdp_mesh_of(1, FSDP)};
  fsdp_model_config config = model_of_preset(model);
  config.num_layers = 3;
  f.config = config;
  f.graph = fsdp_model_forward(&config, BATCH, SEQ);
  fsdp_mesh_resize(&f.mesh, FSDP_AXIS_TENSOR, tensor);
  f.preset = fsdp_specs_default(f.graph, &f.mesh);
  fsdp_tensor_preset(f.preset, f.graph, &f.mesh, false);
  f.rules = fsdp_alloc_zeroed((size_t)(f.graph->param_count + f.graph->module_count), sizeof *f.rules);
  return f;
}

static fixture fixture_of(const char *model) {
  return fixture_on(model, TENSOR);
}

static void fixture_clear(fixture *f) {
  fsdp_propagation_destroy(f->propagation);
  fsdp_specs_destroy(f->specs);
  f->propagation = NULL;
  f->specs = NULL;
  f->rule_count = 0;
}

static void fixture_free(fixture *f) {
  fixture_clear(f);
  fsdp_specs_destroy(f->preset);
  fsdp_graph_destroy(f->graph);
  free(f->rules);
}

static fsdp_shard_rule *add_rule(fixture *f, const char *name, int dims) {
  fsdp_shard_rule *rule = &f->rules[f->rule_count++];
  *rule = (fsdp_shard_rule){.output = -1, .dims = dims};
  snprintf(rule->name, sizeof rule->name, "%s", name);
  snprintf(rule->place, sizeof rule->place, "test:%d", f->rule_count);
  return rule;
}

static void put(fsdp_shard_rule *rule, int dim, const char *axis) {
  snprintf(rule->dim[dim].axes[rule->dim[dim].count++], sizeof rule->dim[0].axes[0], "%s", axis);
}

static void add_input(fixture *f) {
  put(add_rule(f, "input", 2), 0, FSDP_AXIS_FSDP);
}

// The dimension of a parameter that a spec cuts over tensor, -1: none.
static int cut_dim(const fixture *f, const fsdp_specs *specs, int param) {
  int tensor = fsdp_mesh_find(&f->mesh, FSDP_AXIS_TENSOR);
  for (int d = 0; d < specs->params[param].dims; d++)
    if (fsdp_dim_axis_set(&specs->params[param].dim[d], &f->mesh) >> tensor & 1) return d;
  return -1;
}

// The preset's line of a parameter, on tensor alone.
static void add_preset_line(fixture *f, int param) {
  int dim = cut_dim(f, f->preset, param);
  put(add_rule(f, f->graph->params[param].name, f->graph->params[param].dims), dim, FSDP_AXIS_TENSOR);
}

static bool resolve(fixture *f) {
  const fsdp_sharding sharding = {.rules = f->rules, .rule_count = f->rule_count};
  fsdp_error error = {0};
  if (fsdp_sharding_resolve(&sharding, f->graph, &f->mesh, &f->specs, &error)) fail_msg("%s", error.message);
  return fsdp_specs_are_open(f->specs, f->graph, &f->mesh);
}

static void complete(fixture *f) {
  fsdp_error error = {0};
  assert_true(resolve(f));
  if (fsdp_specs_complete(f->specs, f->graph, &f->mesh, FSDP_F32, &f->propagation, &error))
    fail_msg("%s", error.message);
}

static void expect_preset(const fixture *f, const char *what) {
  for (int p = 0; p < f->graph->param_count; p++) {
    int found = cut_dim(f, f->specs, p), expected = cut_dim(f, f->preset, p);
    if (found != expected)
      fail_msg("%s: %s is cut in dimension %d, not %d", what, f->graph->params[p].name, found, expected);
  }
}

static const char *const models[] = {"tiny", "gpt2", "qwen2.5-7b", "qwen3-8b", "llama3-8b"};
enum { MODELS = sizeof models / sizeof *models };

// Any lines of the preset: one, a few, most.
TEST(test_any_part) {
  random_source random = {.seed = 31};
  int completed = 0;
  for (int m = 0; m < MODELS; m++) {
    fixture f = fixture_of(models[m]);
    for (int n = 0; n < 100; n++) {
      char what[2048] = "";
      size_t used = 0;
      add_input(&f);
      int one_in = random_int(&random, 1, 3 * f.graph->param_count);
      for (int p = 0; p < f.graph->param_count; p++) {
        if (cut_dim(&f, f.preset, p) < 0 || random_int(&random, 1, one_in) > 2) continue;
        add_preset_line(&f, p);
        if (used < sizeof what)
          used += (size_t)snprintf(what + used, sizeof what - used, "%s ", f.graph->params[p].name);
      }
      if (f.rule_count > 1 && f.rule_count < 8) {
        complete(&f);
        expect_preset(&f, what);
        assert_int_equal(f.propagation->moved_count, 0);
        completed++;
      }
      fixture_clear(&f);
    }
    fixture_free(&f);
  }
  print_message("%d parts of fsdp-tp become all of it\n", completed);
  assert_true(completed > 30 * MODELS);
}

// The residual stream of every layer in columns, and nothing else.
TEST(test_residual) {
  for (int m = 0; m < MODELS; m++) {
    fixture f = fixture_of(models[m]);
    add_input(&f);
    fsdp_shard_rule *rule = add_rule(&f, m == 1 ? "transformer.h.*" : "model.layers.*", 3);
    put(rule, 0, FSDP_AXIS_FSDP);
    put(rule, 2, FSDP_AXIS_TENSOR);
    complete(&f);
    expect_preset(&f, models[m]);
    fixture_free(&f);
  }
}

static int param_of(const fixture *f, const char *name) {
  for (int p = 0; p < f->graph->param_count; p++)
    if (!strcmp(f->graph->params[p].name, name)) return p;
  fail_msg("no weight %s", name);
  return -1;
}

static const fsdp_operator_strategy *strategy_of(const fixture *f, const char *name) {
  for (int o = 0; o < f->propagation->flow->operator_count; o++)
    if (!strcmp(f->propagation->flow->operators[o].names[0], name)) return &f->propagation->operators[o];
  fail_msg("no operator %s", name);
  return NULL;
}

// What a line says stays, also that a weight is whole; who decided is said.
TEST(test_lines_stay) {
  fixture f = fixture_of("tiny");
  add_input(&f);
  add_rule(&f, "model.layers.1.self_attn.o_proj.weight", 2);
  put(add_rule(&f, "model.layers.*.mlp.down_proj.weight", 2), 1, FSDP_AXIS_TENSOR);
  complete(&f);
  assert_int_equal(cut_dim(&f, f.specs, param_of(&f, "model.layers.1.self_attn.o_proj.weight")), -1);
  assert_int_equal(cut_dim(&f, f.specs, param_of(&f, "model.layers.2.self_attn.o_proj.weight")), 1);
  assert_int_equal(cut_dim(&f, f.specs, param_of(&f, "model.norm.weight")), -1);
  const fsdp_operator_strategy *whole = strategy_of(&f, "model.layers.1.self_attn.o_proj");
  assert_int_equal(whole->decision, FSDP_DECIDED_GIVEN);
  assert_string_equal(whole->place, "test:2");
  const fsdp_operator_strategy *follows = strategy_of(&f, "model.layers.2.self_attn.q_proj");
  assert_int_equal(follows->decision, FSDP_DECIDED_FORWARD);
  assert_string_equal(f.propagation->flow->operators[follows->from].names[0],
                      "model.layers.2.input_layernorm");
  assert_int_equal(strategy_of(&f, "model.layers.0.self_attn.q_proj")->decision, FSDP_DECIDED_BACKWARD);
  // Weights that follow are replicated over the batch's axes.
  const fsdp_spec *q = &f.specs->params[param_of(&f, "model.layers.2.self_attn.q_proj.weight")];
  assert_string_equal(q->place, FSDP_COMPLETED_PLACE);
  assert_int_equal(fsdp_spec_axes(q, &f.mesh), 1u << fsdp_mesh_find(&f.mesh, FSDP_AXIS_TENSOR));
  fixture_free(&f);
}

// Of the three weights that one product reads, any one's line may differ from the others'.
TEST(test_lines_of_one_product) {
  static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
  for (int differs = 0; differs < 3; differs++) {
    fixture f = fixture_of("tiny");
    fsdp_error error = {0};
    char name[64], says[128];
    add_input(&f);
    for (int i = 0; i < 3; i++) {
      snprintf(name, sizeof name, "model.layers.1.self_attn.%s.weight", names[i]);
      put(add_rule(&f, name, 2), i == differs, FSDP_AXIS_TENSOR);
    }
    resolve(&f);
    fsdp_status status = fsdp_specs_complete(f.specs, f.graph, &f.mesh, FSDP_F32, &f.propagation, &error);
    assert_int_equal(status, FSDP_ERR_INPUT);
    snprintf(says, sizeof says, "model.layers.1.self_attn.%s.weight is cut otherwise than",
             names[differs ? differs : 1]);
    assert_non_null(strstr(error.message, says));
    fixture_free(&f);
  }
}

// A product whose outputs a line stores whole is not cut in them; stored in columns, it makes them so.
TEST(test_outputs_are_tried_first) {
  for (int columns = 0; columns < 2; columns++) {
    fixture f = fixture_of("tiny");
    add_input(&f);
    put(add_rule(&f, "model.layers.*.self_attn.o_proj.weight", 2), 1, FSDP_AXIS_TENSOR);
    fsdp_shard_rule *gate = add_rule(&f, "model.layers.*.mlp.gate_proj", 3);
    fsdp_shard_rule *up = add_rule(&f, "model.layers.*.mlp.up_proj", 3);
    put(gate, 0, FSDP_AXIS_FSDP);
    put(up, 0, FSDP_AXIS_FSDP);
    if (columns) put(gate, 2, FSDP_AXIS_TENSOR);
    if (columns) put(up, 2, FSDP_AXIS_TENSOR);
    complete(&f);
    assert_int_equal(cut_dim(&f, f.specs, param_of(&f, "model.layers.1.mlp.gate_proj.weight")),
                     columns ? 0 : -1);
    const fsdp_operator_strategy *product = strategy_of(&f, "model.layers.1.mlp.gate_proj");
    assert_int_equal(product->decision, columns ? FSDP_DECIDED_GIVEN : FSDP_DECIDED_FORWARD);
    fixture_free(&f);
  }
}

// Nothing is open where all matrices have lines, or where all axes cut the input.
TEST(test_nothing_open) {
  fixture f = fixture_of("tiny");
  add_input(&f);
  for (int p = 0; p < f.graph->param_count; p++)
    if (f.graph->params[p].dims == 2) add_preset_line(&f, p);
  assert_false(resolve(&f));
  fixture_clear(&f);
  fsdp_shard_rule *input = add_rule(&f, "input", 2);
  put(input, 0, FSDP_AXIS_FSDP);
  put(input, 0, FSDP_AXIS_TENSOR);
  assert_false(resolve(&f));
  fixture_free(&f);
}

// ---- What is decided is what propagation says

// Lines of some weights, cut as usual or otherwise, and, maybe, of the residual stream and of norms.
static void draw_lines(fixture *f, random_source *random) {
  int usual = random_int(random, 0, 3), all = random_int(random, 0, 3) == 0;
  add_input(f);
  for (int p = 0; p < f->graph->param_count; p++) {
    int dim = cut_dim(f, f->preset, p), kind = random_int(random, 0, 5);
    if (dim < 0 || (!all && random_int(random, 0, 2))) continue;
    fsdp_shard_rule *rule = add_rule(f, f->graph->params[p].name, f->graph->params[p].dims);
    if (usual || kind < 3) put(rule, dim, FSDP_AXIS_TENSOR);
    if (!usual && kind == 3 && rule->dims > 1) put(rule, !dim, FSDP_AXIS_TENSOR);
  }
  static const char *const outputs[] = {"model.layers.*", "model.layers.*.input_layernorm",
                                        "model.layers.*.post_attention_layernorm", "model.norm"};
  int stored = random_int(random, 0, 3);
  for (int i = 0; i < (stored ? 4 : 0); i++) {
    if (i && random_int(random, 0, 2)) continue;
    fsdp_shard_rule *rule = add_rule(f, outputs[i], 3);
    put(rule, 0, FSDP_AXIS_FSDP);
    // A norm makes whole rows, or pieces of them.
    if (stored < 3 && !(i && stored == 2)) put(rule, stored, FSDP_AXIS_TENSOR);
  }
}

// Whether an op does what propagation says: on all its letters the same axes of the mesh. All ops have the
// batch.
static void compare_op(const fixture *f, int op, const fsdp_decisions *decisions) {
  const fsdp_operator *o = &f->propagation->flow->operators[op];
  char name[FSDP_OPERATOR_TEXT];
  fsdp_operator_print(f->propagation->flow, op, name);
  for (int l = 0; l < o->letter_count; l++) {
    fsdp_axis_set says = fsdp_operator_axes(o, &f->propagation->operators[op], l), expected = 0;
    for (int a = 0; a < f->propagation->mesh.count; a++)
      if (says >> a & 1) expected |= 1u << f->propagation->mesh.axis[a];
    fsdp_axis_set does = fsdp_strategy_axes(&decisions->ops[op].strategy, o->letters[l].name);
    if (o->letters[l].name == 'b') does |= decisions->batch;
    if (does != expected) fail_msg("%s: %c over axes %x, not %x", name, o->letters[l].name, does, expected);
  }
}

// SwiGLU has the columns that gate and up make, even where none of them has a line.
static void compare_columns(const fixture *f, const fsdp_decisions *decisions) {
  for (int n = 1; n < f->graph->forward_count; n++) {
    if (f->graph->forward[n].kind != FSDP_OP_SWIGLU) continue;
    assert_int_equal(f->graph->forward[n - 1].weight_count, 2);
    assert_int_equal(fsdp_strategy_axes(&decisions->ops[n].strategy, 'f'),
                     fsdp_strategy_axes(&decisions->ops[n - 1].strategy, 'o'));
  }
}

TEST(test_ops_follow) {
  random_source random = {.seed = 77};
  int compared = 0, refused = 0, open = 0;
  for (int n = 0; n < 400; n++) {
    fixture f = fixture_on("tiny", 2);
    fsdp_error error = {0};
    draw_lines(&f, &random);
    open += resolve(&f); // else it is what is decided of weights that all have lines
    fsdp_decisions *decisions = NULL;
    fsdp_status status = fsdp_specs_complete(f.specs, f.graph, &f.mesh, FSDP_F32, &f.propagation, &error);
    if (status) {
      if (!strstr(error.message, "is cut otherwise than") &&
          !strstr(error.message, "needs this dimension whole"))
        fail_msg("%s", error.message);
    } else {
      const fsdp_factored_mesh axes = fsdp_factored_mesh_of(f.specs, f.graph, &f.mesh);
      fsdp_rows rows;
      status = fsdp_decisions_make(f.graph, f.specs, &f.mesh, &axes, &decisions, &error);
      if (!status) compare_columns(&f, decisions);
      if (!status) status = fsdp_partition(f.graph, f.specs, &f.mesh, &axes, &rows, &error);
    }
    for (int o = 0; !status && o < f.propagation->flow->operator_count; o++) compare_op(&f, o, decisions);
    compared += !status;
    refused += status != FSDP_OK;
    fsdp_decisions_destroy(decisions);
    fixture_free(&f);
  }
  print_message("%d graphs do what propagation says; %d files are refused; %d left weights open\n", compared,
                refused, open);
  assert_true(compared > 200 && open > 200 && open < 360);
}
