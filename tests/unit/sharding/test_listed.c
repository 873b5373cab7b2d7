// Lists of operators as graphs, kind by kind, and the dataflow of these and of a model.
#include "runtime/plan/sharding/listed.h"

#include "models/model.h"
#include "runtime/plan/sharding/dataflow.h"
#include "tests/support/models.h"
#include "tests/support/random_network.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Adds the letters of an operand's dimensions, a dot where there is none, behind a space.
static void print_letters(const fsdp_dataflow *flow, const fsdp_operator *o, int i, char *out) {
  size_t used = strlen(out);
  if (used) out[used++] = ' ';
  for (int d = 0; d < flow->tensors[o->operands[i].tensor].dims; d++) {
    const int letter = o->operands[i].letter[d];
    out[used++] = letter < 0 ? '.' : o->letters[letter].name;
  }
  out[used] = 0;
}

// b + x w, of which b has one row: an input, a parameter, and a value for each operator.
TEST(test_list) {
  fsdp_graph *g = fsdp_listed_create();
  const int x = network_add_tensor(g, "x", FSDP_VALUE_INPUT, 16, 32);
  const int w = network_add_tensor(g, "w", FSDP_VALUE_PARAM, 32, 64);
  const int b = network_add_tensor(g, "b", FSDP_VALUE_INPUT, 1, 64);
  char letters[16] = "";
  const int fc = network_add_operator(g, "matmul", "fc", x, w);
  network_add_operator(g, "add", "sum", b, fc);
  assert_int_equal(g->forward_count, 2);
  assert_int_equal(g->param_count, 1);
  assert_string_equal(g->params[0].name, "w");
  assert_int_equal(fsdp_listed_find(g, "fc"), fc);
  assert_int_equal(g->values[fc].role, FSDP_VALUE_ACTIVATION);
  assert_int_equal(g->values[fc].numel, 16 * 64);
  assert_int_equal(g->forward[1].operands[1].value, fc);
  assert_int_equal(fsdp_node_letters(&g->forward[0])->operand_count, 3);

  fsdp_dataflow *flow = network_of_listed(g);
  assert_int_equal(flow->operator_count, 2);
  for (int i = 0; i < 3; i++) print_letters(flow, &flow->operators[1], i, letters);
  assert_string_equal(letters, ".q pq pq");
  assert_string_equal(flow->operators[1].kind, "add");
  assert_int_equal(flow->operators[1].letters[0].name, 'p'); // dimension by dimension, not operand by operand
  assert_int_equal(flow->tensors[network_find(flow, "fc")].maker, 0);
  assert_true(network_find(flow, "sum") >= 0); // nothing reads it, and it is made
  fsdp_dataflow_destroy(flow);
}

// Each kind of operator, written as "[16,32] [32,64]" and so on, with the letters and the shape that it makes
// of them; what must be whole.
static const struct {
  const char *kind, *shapes;
  fsdp_listed_operator spec; // attributes
  const char *letters;       // of inputs and output; a dot: none
  const char *whole, *made;
} kind_cases[] = {
    {"matmul", "[6,4] [4,5]", {0}, "ni io no", "", "[6,5]"},
    {"matmul", "[6,4] [5,4]", {.transposed = true}, "ni oi no", "", "[6,5]"},
    {"matmul", "[3,2,6,4] [4,5]", {0}, "pqni io pqno", "", "[3,2,6,5]"},
    {"matmul", "[3,2,6,4] [3,2,4,5]", {0}, "pqni pqio pqno", "", "[3,2,6,5]"},
    {"matmul", "[3,6,4] [3,5,4]", {.transposed = true}, "pni poi pno", "", "[3,6,5]"},
    {"add", "[6,4] [6,4]", {0}, "pq pq pq", "", "[6,4]"},
    {"add", "[4] [6,4]", {0}, "q pq pq", "", "[6,4]"},
    {"mul", "[6,1,4] [3,1]", {0}, "p.u q. pqu", "", "[6,3,4]"},
    {"mul", "[6,1] [1,1]", {0}, "p. .. p.", "", "[6,1]"},
    {"relu", "[6,4,3]", {0}, "pqu pqu", "", "[6,4,3]"},
    {"transpose", "[6,4,3]", {0}, "pqu puq", "", "[6,3,4]"},
    {"transpose", "[6,4,3]", {.permutation = {2, 0, 1}, .permutation_count = 3}, "pqu upq", "", "[3,6,4]"},
    {"reduce_mean", "[6,4,3]", {.axis = 1}, "pqu pu", "", "[6,3]"},
    {"reduce_mean", "[6,4,3]", {.axis = 0, .keeps_axis = true}, "pqu .qu", "", "[1,4,3]"},
    {"slice", "[6,4]", {.axis = 0, .begin = 2, .size = 4}, "pq .q", "p", "[4,4]"},
    {"slice", "[6,4]", {.axis = 1, .size = 1}, "pq p.", "q", "[6,1]"},
    {"gather", "[9,4] [6]", {0}, "vc p pc", "", "[6,4]"},
    {"gather", "[9,4] [6,2,3]", {0}, "vc pqu pquc", "", "[6,2,3,4]"},
    {"rmsnorm", "[6,2,4] [4]", {0}, "pqc c pqc", "c", "[6,2,4]"},
    {"attention", "[2,8,6,4] [2,4,6,4] [2,4,6,4]", {0}, "bhtd bhsd bhsd bhtd", "ds", "[2,8,6,4]"}};

static void print_shape(const fsdp_operator_tensor *tensor, char *out, size_t bytes) {
  int used = 0;
  for (int d = 0; d < tensor->dims; d++)
    used += snprintf(out + used, bytes - (size_t)used, "%c%lld", d ? ',' : '[', (long long)tensor->shape[d]);
  snprintf(out + used, bytes - (size_t)used, "]");
}

// Adds an input for each shape; returns how many there are.
static int add_inputs(fsdp_graph *g, const char *shapes, int *inputs) {
  int count = 0;
  for (const char *at = strchr(shapes, '['); at; at = strchr(at + 1, '[')) {
    int64_t shape[FSDP_MAX_DIMS];
    int dims = 0;
    for (char *end = (char *)(uintptr_t)at; *end != ']';) shape[dims++] = strtoll(end + 1, &end, 10);
    inputs[count++] = fsdp_listed_tensor(g, FSDP_VALUE_INPUT, "in", dims, shape);
  }
  return count;
}

TEST(test_kinds) {
  for (size_t c = 0; c < sizeof kind_cases / sizeof *kind_cases; c++) {
    fsdp_graph *g = fsdp_listed_create();
    fsdp_listed_operator op = kind_cases[c].spec;
    fsdp_error error = {0};
    op.name = "made", op.kind = kind_cases[c].kind, op.place = "test";
    op.input_count = add_inputs(g, kind_cases[c].shapes, op.inputs);
    if (fsdp_listed_add(g, &op, &error)) fail_msg("%s", error.message);
    fsdp_dataflow *flow = network_of_listed(g);
    const fsdp_operator *o = &flow->operators[0];
    char made[64], letters[64] = "", whole[FSDP_OPERATOR_LETTERS + 1] = "";
    assert_int_equal(o->operand_count, o->input_count + 1);
    for (int i = 0; i < o->operand_count; i++) print_letters(flow, o, i, letters);
    for (int l = 0, used = 0; l < o->letter_count; l++)
      if (o->letters[l].is_whole) whole[used++] = o->letters[l].name;
    print_shape(&flow->tensors[o->operands[o->input_count].tensor], made, sizeof made);
    assert_string_equal(letters, kind_cases[c].letters);
    assert_string_equal(whole, kind_cases[c].whole);
    assert_string_equal(made, kind_cases[c].made);
    fsdp_dataflow_destroy(flow);
  }
}

// Heads of queries, of which each head of keys has two.
TEST(test_even_letters) {
  fsdp_graph *g = fsdp_listed_create();
  fsdp_listed_operator op = {.name = "attn", .kind = "attention", .place = "test"};
  fsdp_error error = {0};
  op.input_count = add_inputs(g, "[2,8,6,4] [2,4,6,4] [2,4,6,4]", op.inputs);
  assert_int_equal(fsdp_listed_add(g, &op, &error), FSDP_OK);
  fsdp_dataflow *flow = network_of_listed(g);
  const fsdp_operator *o = &flow->operators[0];
  const fsdp_operator_letter *heads = &o->letters[fsdp_operator_letter_find(o, 'h')];
  assert_true(heads->is_even);
  assert_int_equal(heads->size, 8);
  assert_int_equal(heads->limit, 4);
  fsdp_dataflow_destroy(flow);
}

// Of a model, operator i is node i, rows are batch and sequence, and RoPE's output is another tensor than
// what it updates.
TEST(test_model) {
  fsdp_model_config config = model_of_preset("tiny");
  fsdp_graph *g = fsdp_model_forward(&config, 2, 32);
  fsdp_dataflow *flow = fsdp_dataflow_of_graph(g, 3, FSDP_BF16);
  int updates = 0;
  assert_int_equal(flow->operator_count, g->forward_count);
  for (int o = 0; o < flow->operator_count; o++) {
    const fsdp_operator *op = &flow->operators[o];
    assert_string_equal(op->kind, fsdp_op_name(g->forward[o].kind));
    if (strcmp(op->kind, "rope") != 0) continue;
    const fsdp_operator_tensor *read = &flow->tensors[op->operands[0].tensor];
    const fsdp_operator_tensor *made = &flow->tensors[op->operands[op->input_count].tensor];
    assert_ptr_not_equal(read, made);
    assert_int_equal(read->source, made->source);
    assert_int_equal(made->maker, o);
    assert_int_equal(made->shape[0], 2 * 3);
    assert_int_equal(made->shape[1], 32);
    updates++;
  }
  assert_int_equal(updates, config.num_layers);
  fsdp_dataflow_destroy(flow);
  fsdp_graph_destroy(g);
}
