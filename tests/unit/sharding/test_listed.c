// Lists of operators as graphs, and the dataflow of these and of a model.
#include "runtime/plan/sharding/listed.h"

#include "models/model.h"
#include "runtime/plan/sharding/dataflow.h"
#include "tests/support/random_network.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

// The letters of each operand's dimensions, a dot where there is none.
static void check_letters(const fsdp_dataflow *flow, int op, const char *const *expected) {
  const fsdp_operator *o = &flow->operators[op];
  for (int i = 0; i < o->operand_count; i++) {
    const fsdp_operator_operand *operand = &o->operands[i];
    char letters[FSDP_MAX_DIMS + 1] = "";
    for (int d = 0; d < flow->tensors[operand->tensor].dims; d++)
      letters[d] = operand->letter[d] < 0 ? '.' : o->letters[operand->letter[d]].name;
    assert_string_equal(letters, expected[i]);
  }
}

// b + x w, of which b has one row: an input, a parameter, and a value for each operator.
static void test_list(void **state) {
  (void)state;
  fsdp_graph *g = fsdp_listed_create();
  const int x = network_add_tensor(g, "x", FSDP_VALUE_INPUT, 16, 32);
  const int w = network_add_tensor(g, "w", FSDP_VALUE_PARAM, 32, 64);
  const int b = network_add_tensor(g, "b", FSDP_VALUE_INPUT, 1, 64);
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
  check_letters(flow, 0, (const char *const[]){"ni", "io", "no"});
  check_letters(flow, 1, (const char *const[]){".q", "pq", "pq"});
  assert_string_equal(flow->operators[1].kind, "add");
  assert_int_equal(flow->operators[1].letters[0].name, 'p'); // dimension by dimension, not operand by operand
  assert_int_equal(flow->tensors[network_find(flow, "fc")].maker, 0);
  assert_true(network_find(flow, "sum") >= 0); // nothing reads it, and it is made
  fsdp_dataflow_destroy(flow);
}

// Heads of queries, of which each head of keys has two.
static void test_even_letters(void **state) {
  (void)state;
  fsdp_graph *g = fsdp_listed_create();
  const int64_t q[] = {2, 8, 6, 4}, k[] = {2, 4, 6, 4};
  fsdp_listed_operator op = {.name = "attn", .kind = "attention", .input_count = 3, .place = "test"};
  fsdp_error error = {0};
  for (int i = 0; i < 3; i++) op.inputs[i] = fsdp_listed_tensor(g, FSDP_VALUE_INPUT, "qkv", 4, i ? k : q);
  assert_int_equal(fsdp_listed_add(g, &op, &error), FSDP_OK);
  fsdp_dataflow *flow = network_of_listed(g);
  const fsdp_operator *o = &flow->operators[0];
  const fsdp_operator_letter *heads = &o->letters[fsdp_operator_letter_find(o, 'h')];
  assert_true(heads->is_even);
  assert_int_equal(heads->size, 8);
  assert_int_equal(heads->limit, 4);
  assert_true(o->letters[fsdp_operator_letter_find(o, 'd')].is_whole);
  fsdp_dataflow_destroy(flow);
}

// Of a model, operator i is node i, rows are batch and sequence, and RoPE's output is another tensor than
// what it updates.
static void test_model(void **state) {
  (void)state;
  fsdp_model_config config;
  fsdp_error error = {0};
  assert_int_equal(fsdp_model_preset("tiny", &config, &error), FSDP_OK);
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_list), cmocka_unit_test(test_even_letters),
                                     cmocka_unit_test(test_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
