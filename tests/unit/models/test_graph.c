// Parameters of a graph made by hand: several per module, biases, transposed matrices, four dimensions, a
// tie, and the units over them.
#include "models/graph/graph.h"
#include "runtime/plan/mesh/units.h"
#include "tests/support/unit_test.h"

#include <string.h>

typedef struct model {
  fsdp_graph *graph;
  int root, embedding, blocks, attention[2], convolution, head;
} model;

// GPT-2's names and shapes with C = 4 and two blocks, and a convolution of four dimensions behind them.
static model make_model(void) {
  model m = {.graph = fsdp_graph_create(1, 8)};
  fsdp_graph *g = m.graph;
  g->block_class = "Block";
  m.root = fsdp_graph_module(g, -1, "", "Model", "");
  m.embedding = fsdp_graph_module(g, m.root, "wte", "Embedding", "10, 4");
  int table = fsdp_graph_param(g, m.embedding, &(fsdp_param){.name = "weight", .dims = 2, .shape = {10, 4}});
  m.blocks = fsdp_graph_module(g, m.root, "h", "ModuleList", "");
  for (int i = 0; i < 2; i++) {
    int block = fsdp_graph_module(g, m.blocks, i ? "1" : "0", "Block", "");
    m.attention[i] = fsdp_graph_module(g, block, "c_attn", "Conv1D", "nf=12, nx=4");
    fsdp_param weight = {.name = "weight",
                         .dims = 2,
                         .shape = {4, 12},
                         .transposed = true,
                         .block_count = 3,
                         .block_sizes = {4, 4, 4},
                         .init_deviation = 0.5f};
    fsdp_param bias = {.name = "bias", .dims = 1, .shape = {12}, .block_count = 2, .block_sizes = {5, 7}};
    fsdp_graph_param(g, m.attention[i], &weight);
    fsdp_graph_param(g, m.attention[i], &bias);
  }
  m.convolution = fsdp_graph_module(g, m.root, "conv", "Conv2d", "");
  fsdp_param kernel = {.name = "weight", .dims = 4, .shape = {2, 3, 5, 7}, .init_mean = 1};
  fsdp_graph_param(g, m.convolution, &kernel);
  m.head = fsdp_graph_module(g, m.root, "lm_head", "Linear", "");
  fsdp_graph_tie(g, m.head, "weight", table);
  fsdp_graph_input(g, FSDP_INPUT_TOKENS, 8);
  return m;
}

TEST(test_names_and_shapes) {
  model m = make_model();
  static const char *const names[] = {"wte.weight",        "h.0.c_attn.weight", "h.0.c_attn.bias",
                                      "h.1.c_attn.weight", "h.1.c_attn.bias",   "conv.weight"};
  static const int64_t numels[] = {40, 48, 12, 48, 12, 210};
  assert_int_equal(m.graph->param_count, 6);
  for (int p = 0; p < 6; p++) {
    const fsdp_param *param = &m.graph->params[p];
    assert_string_equal(param->name, names[p]);
    assert_int_equal(param->numel, numels[p]);
    assert_int_equal(m.graph->values[param->value].numel, numels[p]);
    assert_int_equal(m.graph->values[param->value].param, p);
    assert_true(param->trainable);
  }
  const fsdp_param *weight = &m.graph->params[3], *kernel = &m.graph->params[5];
  assert_true(weight->transposed && weight->block_count == 3 && weight->block_sizes[2] == 4);
  assert_true(weight->init_deviation == 0.5f && weight->module == m.attention[1]);
  assert_true(!kernel->transposed && kernel->dims == 4 && kernel->shape[3] == 7 && kernel->init_mean == 1);
  fsdp_graph_destroy(m.graph);
}

TEST(test_parameters_of_modules) {
  model m = make_model();
  const fsdp_module *attention = &m.graph->modules[m.attention[1]];
  assert_int_equal(attention->first_param, 3);
  assert_int_equal(attention->param_count, 2);
  assert_int_equal(m.graph->modules[m.head].param_count, 0);
  assert_int_equal(m.graph->modules[m.blocks].param_count, 0);
  assert_int_equal(fsdp_graph_param_of(m.graph, m.attention[0], "bias"), 2);
  assert_int_equal(fsdp_graph_param_of(m.graph, m.attention[1], "weight"), 3);
  assert_int_equal(fsdp_graph_param_of(m.graph, m.head, "weight"), 0); // the table that it is tied to
  assert_int_equal(fsdp_graph_param_of(m.graph, m.head, "bias"), -1);
  assert_int_equal(fsdp_graph_param_of(m.graph, m.root, "weight"), -1);
  assert_string_equal(m.graph->ties[0].name, "lm_head.weight");
  fsdp_graph_destroy(m.graph);
}

// Units of each policy, by the number of elements that they hold.
TEST(test_units_hold_every_parameter_of_a_module) {
  model m = make_model();
  const struct {
    fsdp_wrap_policy policy;
    int count;
    int64_t numels[5];
  } cases[] = {
      {{.kind = FSDP_WRAP_BLOCK}, 5, {0, 40, 60, 60, 210}}, // root, table, blocks, a child of the root
      {{.kind = FSDP_WRAP_SIZE, .numel = 60}, 4, {40, 60, 60, 210}},
      {{.kind = FSDP_WRAP_SIZE, .numel = 61}, 2, {160, 210}},
      {{.kind = FSDP_WRAP_MODULE, .classes = "Conv1D"}, 3, {250, 60, 60}},
      {{.kind = FSDP_WRAP_NONE}, 1, {370}},
  };
  fsdp_mesh mesh = fsdp_mesh_of(1, 2);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_units *units = NULL;
    fsdp_error error;
    assert_int_equal(fsdp_units_create(m.graph, &cases[i].policy, &mesh, &units, &error), FSDP_OK);
    assert_int_equal(units->count, cases[i].count);
    for (int u = 0; u < units->count; u++) assert_int_equal(units->units[u].numel, cases[i].numels[u]);
    fsdp_units_destroy(units);
  }
  fsdp_units *units = NULL;
  fsdp_error error;
  fsdp_wrap_policy unknown = {.kind = FSDP_WRAP_MODULE, .classes = "Conv1D,LayerNorm"};
  assert_int_equal(fsdp_units_create(m.graph, &unknown, &mesh, &units, &error), FSDP_ERR_OPTION);
  assert_non_null(strstr(error.message, "'LayerNorm'"));
  assert_non_null(strstr(error.message, "are Embedding, Block, Conv1D, Conv2d"));
  assert_null(strstr(error.message, "ModuleList"));
  fsdp_graph_destroy(m.graph);
}

// Whether `add` is stopped by an assertion on a fresh model.
typedef void addition(model *m);
static void add_to_fresh(void *add) {
  model m = make_model();
  (*(addition *const *)add)(&m);
}
static bool stops(addition *add) {
  return aborts(add_to_fresh, &add);
}

static void add_apart(model *m) {
  fsdp_graph_param(m->graph, m->embedding, &(fsdp_param){.name = "bias", .dims = 1, .shape = {4}});
}
static void add_wrong_blocks(model *m) {
  fsdp_param spec = {.name = "b", .dims = 1, .shape = {12}, .block_count = 2, .block_sizes = {5, 6}};
  fsdp_graph_param(m->graph, m->head, &spec);
}
static void add_transposed_blocks(model *m) {
  // The outputs of a transposed matrix are its columns.
  fsdp_param spec = {
      .name = "b", .dims = 2, .shape = {12, 4}, .transposed = true, .block_count = 1, .block_sizes = {12}};
  fsdp_graph_param(m->graph, m->head, &spec);
}
static void add_five_dimensions(model *m) {
  fsdp_graph_param(m->graph, m->head, &(fsdp_param){.name = "b", .dims = 5});
}
static void add_well(model *m) {
  fsdp_graph_param(m->graph, m->head, &(fsdp_param){.name = "bias", .dims = 1, .shape = {4}});
}

// The loss of the head over the table: no op uses the other parameters.
static void build_unused(model *m) {
  fsdp_graph *g = m->graph;
  const int64_t rows[2] = {8, 4};
  int table = g->params[0].value;
  int tokens = fsdp_graph_input(g, FSDP_INPUT_TOKENS, 8), loss = fsdp_graph_loss(g, "loss");
  int h = fsdp_graph_value(g, FSDP_VALUE_ACTIVATION, FSDP_VALUE_COMPUTE, 0, "h", 2, rows);
  fsdp_node *n = fsdp_graph_forward_node(g, FSDP_OP_EMBEDDING, m->embedding, -1);
  const int embedding[3] = {tokens, table, h}, head[5] = {h, table, tokens, loss, loss};
  for (int i = 0; i < 3; i++) fsdp_node_operand_add(n, embedding[i], i < 2 ? FSDP_READ : FSDP_WRITE);
  n = fsdp_graph_forward_node(g, FSDP_OP_LINEAR_CROSS_ENTROPY, m->head, -1);
  for (int i = 0; i < 5; i++) fsdp_node_operand_add(n, head[i], i < 4 ? FSDP_READ : FSDP_WRITE);
}
static void differentiate_unused(model *m) {
  build_unused(m);
  fsdp_graph_backward(m->graph);
}
static void differentiate_used(model *m) {
  build_unused(m);
  m->graph->param_count = 1; // the table alone
  fsdp_graph_backward(m->graph);
}

// An input is there once, however many ops read it; a model has those that it asked for.
TEST(test_inputs_and_losses) {
  model m = make_model();
  fsdp_graph *g = m.graph;
  const int tokens = g->inputs[FSDP_INPUT_TOKENS];
  assert_int_equal(fsdp_graph_input(g, FSDP_INPUT_TOKENS, 8), tokens);
  assert_string_equal(g->values[tokens].name, "tokens");
  assert_true(g->values[tokens].role == FSDP_VALUE_INPUT && g->values[tokens].numel == 8);
  assert_int_equal(g->inputs[FSDP_INPUT_TARGETS], -1);
  // Starts of documents alone are of whole sequences, whichever rows of them a rank has.
  const int starts = fsdp_graph_input(g, FSDP_INPUT_STARTS, 8);
  assert_string_equal(g->values[starts].name, "starts");
  assert_true(fsdp_graph_is_of_sequences(g, starts));
  assert_false(fsdp_graph_is_of_sequences(g, tokens));
  for (int i = 0; i < 3; i++) {
    const int loss = fsdp_graph_loss(g, "loss");
    assert_int_equal(g->losses[i], loss);
  }
  assert_int_equal(g->loss_count, 3);
  fsdp_graph_destroy(g);
}

TEST(test_misuse_is_stopped) {
  assert_true(stops(add_apart));
  assert_true(stops(add_wrong_blocks));
  assert_true(stops(add_transposed_blocks));
  assert_true(stops(add_five_dimensions));
  assert_false(stops(add_well));
  assert_true(stops(differentiate_unused));
  assert_false(stops(differentiate_used));
}
