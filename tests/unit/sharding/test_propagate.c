// Propagation against what can be written down: the feed-forward network, redistribution by enumeration of
// ranks, and 500 random networks against exhaustive search.
#include "runtime/plan/sharding/propagate.h"
#include "runtime/plan/sharding/propagate_internal.h"

#include "models/model.h"
#include "runtime/base/check.h"
#include "tests/support/models.h"
#include "tests/support/random_network.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static fsdp_status propagate(const fsdp_dataflow *n, int ranks, const char *const *lines,
                             fsdp_propagation **out, fsdp_error *error) {
  fsdp_given_strategy items[4];
  fsdp_given_strategies given = {.items = items, .place = "test"};
  for (; *lines; lines++) items[given.count++] = strategy_of_text(*lines);
  fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(ranks);
  return fsdp_propagate(n, &mesh, &given, out, error);
}

TEST(test_feed_forward) {
  static const char *const expected[] = {"[[2, 1], [1, 4]]", "[[2, 4], [4]]", "[[2, 4]]", "[[2, 4], [4, 1]]"};
  fsdp_dataflow *n = network_of_listed(network_feed_forward());
  fsdp_propagation *p;
  fsdp_error error = {0};
  char text[FSDP_SLICES_TEXT];
  if (propagate(n, 8, (const char *const[]){"fc1: [[2, 1], [1, 4]]", NULL}, &p, &error))
    fail_msg("%s", error.message);
  for (int o = 0; o < 4; o++) {
    assert_string_equal(fsdp_slices_print(p, o, text), expected[o]);
    assert_int_equal(p->operators[o].decision, o ? FSDP_DECIDED_FORWARD : FSDP_DECIDED_GIVEN);
    assert_int_equal(p->operators[o].from, o ? o - 1 : 0);
  }
  assert_int_equal(p->moved_count, 0);
  fsdp_propagation_destroy(p);
  // From behind, what is left over is not cut: the anchor cuts its rows by 2 alone.
  if (propagate(n, 8, (const char *const[]){"fc2: [[2, 1], [1, 4]]", NULL}, &p, &error))
    fail_msg("%s", error.message);
  assert_string_equal(fsdp_slices_print(p, 2, text), "[[2, 1]]");
  assert_string_equal(fsdp_slices_print(p, 1, text), "[[2, 1], [1]]");
  assert_string_equal(fsdp_slices_print(p, 0, text), "[[2, 4], [4, 1]]"); // sums over what it has left
  assert_int_equal(p->operators[0].decision, FSDP_DECIDED_BACKWARD);
  assert_int_equal(p->operators[0].from, 1);
  fsdp_propagation_destroy(p);
  fsdp_dataflow_destroy(n);
}

TEST(test_errors) {
  static const struct {
    const char *lines[3], *says;
  } cases[] = {
      {{NULL}, "nothing to propagate"},
      {{"fc3: [[2, 1], [1, 4]]", NULL}, "did you mean fc1"},
      {{"fc1: [[3, 1], [1, 1]]", NULL}, "3 slices do not divide 8 ranks"},
      {{"fc1: [[4, 1], [1, 4]]", NULL}, "16 slices in all do not divide 8 ranks"},
      {{"fc1: [[2, 4], [2, 1]]", NULL}, "4 and 2 slices of one dimension (i)"},
      {{"fc1: [[2, 4]]", NULL}, "1 list of counts for 2 inputs"},
      {{"fc1: [[2, 1], [1, 4]]", "fc1.matmul: [[1, 8], [8, 1]]", NULL},
       "\"fc1.matmul\" and \"fc1\" (test:1) are one operator"},
      {{"fc1.matmul: [[2, 1], [1, 4]]", "fc1: [[2, 1], [1, 4]]", NULL}, "remove one of them"},
      {{"fc1: [[2], [1, 4]]", NULL}, "list 1 has 1 count, but x has 2 dimensions"},
      {{"fc1: [[0, 1], [1, 4]]", NULL}, "below 1"},
      {{"norm: [[1, 2], [2]]", NULL}, "(c) that must be whole"},
      {{"fc1: [[1, 2], [2, 1]]", "norm: [[1, 1], [1]]", NULL}, NULL},
      {{"again: [[1, 2], [2, 1]]", "fc1: [[1, 4], [4, 1]]", NULL}, "cut w1, which both read, differently"},
      {{"twice: [[1, 2]]", NULL}, "\"twice\" names two operators, twice.relu and twice.transpose"},
      {{"twice.relu: [[2, 1]]", NULL}, NULL}};
  fsdp_graph *g = network_feed_forward();
  int gain = network_add_tensor(g, "gain", FSDP_VALUE_PARAM, 32, 0);
  int norm = network_add_operator(g, "rmsnorm", "norm", fsdp_listed_find(g, "fc2"), gain);
  int again = network_add_operator(g, "matmul", "again", norm, fsdp_listed_find(g, "w1"));
  int twice = network_add_operator(g, "relu", "twice", again, -1);
  network_add_operator(g, "transpose", "twice", twice, -1);
  fsdp_dataflow *n = network_of_listed(g);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fsdp_propagation *p;
    fsdp_error error = {0};
    fsdp_status status = propagate(n, 8, cases[i].lines, &p, &error);
    assert_int_equal(status, cases[i].says ? FSDP_ERR_INPUT : FSDP_OK);
    if (cases[i].says && !strstr(error.message, cases[i].says))
      fail_msg("case %zu: '%s' lacks '%s'", i, error.message, cases[i].says);
    fsdp_propagation_destroy(p);
  }
  fsdp_dataflow_destroy(n);
}

// What decides between candidates that leave everything where it is: first compute, then communication of
// what is no parameter, then the order.
TEST(test_ranking) {
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(4);
  static const struct {
    fsdp_value_role role; // of x
    int64_t rows;
    bool first;
    int n, i, o; // slices of x[n,i] w[i,o]
  } cases[] = {
      {FSDP_VALUE_ACTIVATION, 16, false, 4, 1,
       1},                                    // all are as much work: rows need no sums but of gradients of w
      {FSDP_VALUE_INPUT, 16, false, 1, 1, 4}, // x has no gradient, so columns cost as little: the first
      {FSDP_VALUE_INPUT, 2, false, 1, 1, 4},
      {FSDP_VALUE_ACTIVATION, 6, false, 2, 1, 2}, // 6 rows over 4 are as much work as 8
      {FSDP_VALUE_ACTIVATION, 16, true, 1, 1, 1}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    fsdp_graph *g = fsdp_listed_create();
    int x = network_add_tensor(g, "x", cases[c].role, cases[c].rows, 16);
    network_add_operator(g, "matmul", "fc", x, network_add_tensor(g, "w", FSDP_VALUE_PARAM, 16, 16));
    fsdp_dataflow *n = network_of_listed(g);
    const known_neighbours nothing = {0};
    fsdp_operator_strategy strategy;
    const propagate_choice choice = {.flow = n, .mesh = &mesh, .known = &nothing, .first = cases[c].first};
    assert_true(propagate_choose(&choice, &strategy));
    const int expected[] = {cases[c].n, cases[c].i, cases[c].o};
    for (int l = 0; l < 3; l++)
      assert_int_equal(fsdp_slices(&mesh, fsdp_strategy_axes(&strategy.axes, "nio"[l])), expected[l]);
    fsdp_dataflow_destroy(n);
  }
}

// Two products with one weight: the one that is not given cuts it as the other does, whatever its input.
TEST(test_shared) {
  static const char *const lines[] = {"fc1: [[1, 8], [8, 1]]", "fc2: [[8, 1], [1, 1]]", NULL};
  fsdp_graph *g = network_feed_forward();
  network_add_operator(g, "matmul", "again", fsdp_listed_find(g, "fc2"), fsdp_listed_find(g, "w1"));
  fsdp_dataflow *n = network_of_listed(g);
  fsdp_propagation *p;
  fsdp_error error = {0};
  char text[FSDP_SLICES_TEXT];
  if (propagate(n, 8, lines, &p, &error)) fail_msg("%s", error.message);
  assert_string_equal(fsdp_slices_print(p, 4, text), "[[1, 8], [8, 1]]");
  assert_true(p->operators[4].redistributes);
  assert_int_equal(p->moved_count, 2);
  assert_int_equal(p->moved[0].forward_bytes, 0); // act is whole, and fc2 takes its rows,
  assert_int_equal(p->moved[0].backward_bytes, 4 * (16 * 64 - 2 * 64)); // whose gradients act needs of all
  assert_int_equal(p->moved[1].reader, 4);
  assert_int_equal(p->moved[1].forward_bytes, 4 * (16 * 4 - 2 * 4));  // 4 columns, of which 2 rows are there
  assert_int_equal(p->moved[1].backward_bytes, 4 * (2 * 32 - 2 * 4)); // 2 rows, of which 4 columns are there
  fsdp_propagation_destroy(p);
  fsdp_dataflow_destroy(n);
}

// Three products of one input: the one that nobody gave takes it as the first has it, not as the last.
TEST(test_first_reader) {
  static const char *const lines[] = {"fc1: [[4, 1], [1, 1]]", "fc2: [[1, 4], [4, 1]]", NULL};
  fsdp_graph *g = fsdp_listed_create();
  int x = network_add_tensor(g, "x", FSDP_VALUE_INPUT, 16, 16);
  static const char *const names[] = {"fc1", "fc2", "fc3"}, *const weights[] = {"w1", "w2", "w3"};
  for (int i = 0; i < 3; i++)
    network_add_operator(g, "matmul", names[i], x,
                         network_add_tensor(g, weights[i], FSDP_VALUE_PARAM, 16, 16));
  fsdp_dataflow *n = network_of_listed(g);
  fsdp_propagation *p;
  fsdp_error error = {0};
  char text[FSDP_SLICES_TEXT];
  if (propagate(n, 4, lines, &p, &error)) fail_msg("%s", error.message);
  assert_int_equal(p->operators[2].decision, FSDP_DECIDED_DEFAULT);
  assert_string_equal(fsdp_slices_print(p, 2, text), "[[4, 1], [1, 1]]");
  fsdp_propagation_destroy(p);
  fsdp_dataflow_destroy(n);
}

// ---- Redistribution, by what each rank has and wants

// Items [begin, end) of a dimension on a rank, whose coordinate on axis a is the bit a.
static void range_of(int64_t size, fsdp_axis_set axes, int axis_count, int rank, int64_t range[2]) {
  range[0] = 0;
  range[1] = size;
  for (int a = 0; a < axis_count; a++) {
    if (!(axes >> a & 1)) continue;
    int64_t half = (range[1] - range[0]) / 2;
    range[rank >> a & 1 ? 0 : 1] = range[0] + half;
  }
}

TEST(test_redistribution) {
  const fsdp_operator_tensor tensor = {.dims = 2, .shape = {16, 32}, .item_bytes = 2};
  fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(16);
  for (unsigned pair = 0; pair < 1u << 16; pair++) {
    fsdp_tensor_axes from = {{pair & 15, pair >> 4 & 15}}, to = {{pair >> 8 & 15, pair >> 12 & 15}};
    if (from.dim[0] & from.dim[1] || to.dim[0] & to.dim[1]) continue;
    int64_t most = 0;
    for (int rank = 0; rank < 16; rank++) {
      int64_t wanted = 1, has = 1;
      for (int d = 0; d < 2; d++) {
        int64_t a[2], b[2];
        range_of(tensor.shape[d], from.dim[d], 4, rank, a);
        range_of(tensor.shape[d], to.dim[d], 4, rank, b);
        int64_t begin = a[0] > b[0] ? a[0] : b[0], end = a[1] < b[1] ? a[1] : b[1];
        wanted *= b[1] - b[0];
        has *= end > begin ? end - begin : 0;
      }
      if (2 * (wanted - has) > most) most = 2 * (wanted - has);
    }
    assert_int_equal(fsdp_redistribution_bytes(&tensor, &mesh, &from, &to), most);
  }
}

// Whether a rank holds an item.
static bool holds(const fsdp_operator_tensor *tensor, const fsdp_tensor_axes *axes, int axis_count, int rank,
                  int64_t item) {
  const int64_t at[2] = {item / tensor->shape[1], item % tensor->shape[1]};
  for (int d = 0; d < 2; d++) {
    int64_t range[2];
    range_of(tensor->shape[d], axes->dim[d], axis_count, rank, range);
    if (at[d] < range[0] || at[d] >= range[1]) return false;
  }
  return true;
}

// A gradient of which ranks have summands: of each item of its part a rank receives one for each coordinate
// on the axes `over`, but its own. Over 3 axes of 2 ranks.
TEST(test_gradient) {
  enum { AXES = 3, RANKS = 1 << AXES };
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(RANKS);
  fsdp_operator_tensor tensor = {.role = FSDP_TENSOR_MADE, .dims = 2, .shape = {8, 8}, .item_bytes = 2};
  int sums = 0;
  for (unsigned of = 0; of < 1u << 15; of++) {
    const fsdp_tensor_axes from = {{of & 7, of >> 3 & 7}}, to = {{of >> 6 & 7, of >> 9 & 7}};
    fsdp_axis_set partial = of >> 12, over = partial & (from.dim[0] | from.dim[1]);
    if (from.dim[0] & from.dim[1] || to.dim[0] & to.dim[1] || partial & (to.dim[0] | to.dim[1])) continue;
    int64_t most = 0;
    for (int rank = 0; rank < RANKS; rank++) {
      int64_t received = 0;
      for (int item = 0; item < 8 * 8; item++) {
        if (!holds(&tensor, &from, AXES, rank, item)) continue;
        received += fsdp_slices(&mesh, over) - holds(&tensor, &to, AXES, rank, item);
      }
      if (2 * received > most) most = 2 * received;
    }
    assert_int_equal(fsdp_gradient_bytes(&tensor, &mesh, &from, &to, partial), most);
    sums += over != 0;
  }
  assert_true(sums > 300);
  tensor.role = FSDP_TENSOR_INPUT;
  const fsdp_tensor_axes whole = {{0}}, cut = {{3}};
  assert_int_equal(fsdp_gradient_bytes(&tensor, &mesh, &whole, &cut, 0), 0);
}

// ---- Exhaustive search

typedef struct exhaustive {
  const fsdp_dataflow *flow;
  const fsdp_propagation *found;
  fsdp_operator_strategy *tried;
  int64_t best;
} exhaustive;

// Bytes of all inputs of an operator, whose makers come before it. An input of the network lies as its first
// reader wants it, as in the propagation's result, or as the cheapest does.
static int64_t input_bytes(const exhaustive *e, const fsdp_operator_strategy *strategies, int op) {
  const fsdp_dataflow *n = e->flow;
  int64_t bytes = 0;
  for (int i = 0; i < n->operators[op].input_count; i++) {
    const fsdp_operator_tensor *tensor = &n->tensors[n->operators[op].operands[i].tensor];
    if (tensor->role != FSDP_TENSOR_MADE) continue;
    const fsdp_operator *maker = &n->operators[tensor->maker];
    fsdp_tensor_axes from = fsdp_operand_axes(maker, maker->input_count, &strategies[tensor->maker]);
    fsdp_tensor_axes to = fsdp_operand_axes(&n->operators[op], i, &strategies[op]);
    fsdp_axis_set partial = fsdp_operand_partial(&n->operators[op], i, &strategies[op]);
    bytes += fsdp_redistribution_bytes(tensor, &e->found->mesh, &from, &to) +
             fsdp_gradient_bytes(tensor, &e->found->mesh, &from, &to, partial);
  }
  return bytes;
}

// Whether the result has this candidate's cuts as legal ones.
static bool is_legal(const fsdp_operator *op, const fsdp_slice_mesh *mesh,
                     const fsdp_operator_strategy *strategy) {
  fsdp_axis_set used = 0;
  for (int l = 0; l < op->letter_count; l++) {
    fsdp_axis_set axes = fsdp_operator_axes(op, strategy, l);
    if (used & axes || (op->letters[l].is_whole && axes)) return false;
    if (fsdp_slices(mesh, axes) > op->letters[l].limit) return false;
    used |= axes;
  }
  return true;
}

// Tries all candidates of operator `op` and of those behind it.
static void try_operator(exhaustive *e, int op, int64_t bytes) {
  if (bytes >= e->best) return;
  if (op == e->flow->operator_count) {
    e->best = bytes;
    return;
  }
  const fsdp_operator *o = &e->flow->operators[op];
  if (e->found->operators[op].decision == FSDP_DECIDED_GIVEN) {
    e->tried[op] = e->found->operators[op];
    try_operator(e, op + 1, bytes + input_bytes(e, e->tried, op));
    return;
  }
  int axes = e->found->mesh.count, combinations = 1;
  for (int a = 0; a < axes; a++) combinations *= o->letter_count + 1;
  for (int c = 0; c < combinations; c++) {
    memset(&e->tried[op].axes, 0, sizeof e->tried[op].axes);
    for (int a = 0, left = c; a < axes; a++, left /= o->letter_count + 1)
      if (left % (o->letter_count + 1) < o->letter_count)
        e->tried[op].axes.of[o->letters[left % (o->letter_count + 1)].name - 'a'] |= 1u << a;
    if (is_legal(o, &e->found->mesh, &e->tried[op]))
      try_operator(e, op + 1, bytes + input_bytes(e, e->tried, op));
  }
}

// The product of local letter sizes.
static double compute_of(const fsdp_operator *op, const fsdp_slice_mesh *mesh,
                         const fsdp_operator_strategy *strategy) {
  double compute = 1;
  for (int l = 0; l < op->letter_count; l++) {
    int64_t slices = fsdp_slices(mesh, fsdp_operator_axes(op, strategy, l));
    int64_t share = (op->letters[l].size + slices - 1) / slices;
    compute *= (double)share;
  }
  return compute;
}

// A forward decision among all candidates: none moves fewer bytes, and of those that leave all inputs where
// they are none has less compute.
static void check_forward(exhaustive *e, int op) {
  const fsdp_operator *o = &e->flow->operators[op];
  const fsdp_operator_strategy *own = &e->found->operators[op];
  int64_t own_bytes = input_bytes(e, e->found->operators, op);
  memcpy(e->tried, e->found->operators, (size_t)e->flow->operator_count * sizeof *e->tried);
  int combinations = 1;
  for (int a = 0; a < e->found->mesh.count; a++) combinations *= o->letter_count + 1;
  for (int c = 0; c < combinations; c++) {
    memset(&e->tried[op].axes, 0, sizeof e->tried[op].axes);
    for (int a = 0, left = c; a < e->found->mesh.count; a++, left /= o->letter_count + 1)
      if (left % (o->letter_count + 1) < o->letter_count)
        e->tried[op].axes.of[o->letters[left % (o->letter_count + 1)].name - 'a'] |= 1u << a;
    if (!is_legal(o, &e->found->mesh, &e->tried[op])) continue;
    bool same = true; // leaves its inputs where they are
    for (int i = 0; i < o->input_count; i++) {
      const fsdp_operator_tensor *tensor = &e->flow->tensors[o->operands[i].tensor];
      if (tensor->role == FSDP_TENSOR_PARAMETER) continue;
      if (tensor->role == FSDP_TENSOR_INPUT) continue;
      const fsdp_operator *maker = &e->flow->operators[tensor->maker];
      fsdp_tensor_axes from =
          fsdp_operand_axes(maker, maker->input_count, &e->found->operators[tensor->maker]);
      fsdp_tensor_axes to = fsdp_operand_axes(o, i, &e->tried[op]);
      same = same && !memcmp(&from, &to, sizeof from);
    }
    int64_t bytes = input_bytes(e, e->tried, op);
    if (own->redistributes) {
      assert_false(same);
      assert_true(bytes >= own_bytes);
    } else if (same) {
      assert_true(compute_of(o, &e->found->mesh, &e->tried[op]) >= compute_of(o, &e->found->mesh, own));
    }
  }
}

// Whether an input of the network has one reader at most: else forward decisions weigh it, too.
static bool one_reader(const fsdp_dataflow *n) {
  int readers = 0;
  for (int o = 0; o < n->operator_count; o++)
    for (int i = 0; i < n->operators[o].input_count; i++) readers += n->operators[o].operands[i].tensor == 0;
  return readers <= 1;
}

// What is printed is read as the same: every operator is cut over the same axes, and as much is moved.
// Returns how many operators had to be printed with ranks.
static int check_printed(const fsdp_dataflow *n, const fsdp_propagation *p) {
  enum { OPERATORS = 8 };
  fsdp_given_strategy items[OPERATORS];
  const fsdp_given_strategies given = {.items = items, .count = n->operator_count, .place = "printed"};
  fsdp_propagation *again;
  fsdp_error error = {0};
  int with_ranks = 0;
  assert_true(n->operator_count <= OPERATORS);
  for (int o = 0; o < n->operator_count; o++) {
    char slices[FSDP_SLICES_TEXT], name[FSDP_OPERATOR_TEXT], text[sizeof slices + sizeof name + 2];
    snprintf(text, sizeof text, "%s: %s", fsdp_operator_print(n, o, name), fsdp_slices_print(p, o, slices));
    items[o] = strategy_of_text(text);
    with_ranks += strchr(slices, '@') != NULL;
  }
  if (fsdp_propagate(n, &p->mesh, &given, &again, &error)) fail_msg("%s", error.message);
  for (int o = 0; o < n->operator_count; o++)
    assert_memory_equal(&p->operators[o].axes, &again->operators[o].axes, sizeof p->operators[o].axes);
  assert_int_equal(p->forward_bytes, again->forward_bytes);
  assert_int_equal(p->backward_bytes, again->backward_bytes);
  fsdp_propagation_destroy(again);
  return with_ranks;
}

TEST(test_random) {
  static const int ranks[] = {4, 6, 8};
  int equal = 0, free_optimum = 0, compared = 0, with_ranks = 0;
  double worst = 1;
  random_source random = {.seed = 13};
  while (compared < 500) {
    fsdp_dataflow *n = random_network(&random, 8);
    int most_ranks = n->operator_count > 4 ? 1 : 2;
    fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(ranks[random_int(&random, 0, most_ranks)]);
    fsdp_given_strategy items[3];
    fsdp_given_strategies given = {.items = items, .place = "random"};
    given.count = random_strategies(&random, n, &mesh, 3, items);
    fsdp_propagation *p;
    fsdp_error error = {0};
    if (fsdp_propagate(n, &mesh, &given, &p, &error)) fail_msg("network %d: %s", compared, error.message);
    exhaustive e = {
        .flow = n, .found = p, .tried = fsdp_alloc_zeroed((size_t)n->operator_count, sizeof *e.tried)};
    int64_t found = 0;
    for (int o = 0; o < n->operator_count; o++) {
      found += input_bytes(&e, p->operators, o);
      assert_true(is_legal(&n->operators[o], &mesh, &p->operators[o]));
      assert_int_not_equal(p->operators[o].decision, FSDP_UNDECIDED);
      if (p->operators[o].decision == FSDP_DECIDED_FORWARD && one_reader(n)) check_forward(&e, o);
    }
    e.best = found + 1;
    try_operator(&e, 0, 0);
    assert_true(found >= e.best);
    equal += found == e.best;
    free_optimum += found > 0 && e.best == 0;
    if (e.best > 0 && (double)found / (double)e.best > worst) worst = (double)found / (double)e.best;
    with_ranks += check_printed(n, p);
    compared++;
    free(e.tried);
    fsdp_propagation_destroy(p);
    fsdp_dataflow_destroy(n);
  }
  printf("%d random networks: %d times the least redistribution, %d times some where none is needed, at most "
         "%.2f times the least\n",
         compared, equal, free_optimum, worst);
  assert_true(equal > compared / 2);
  assert_true(with_ranks > 20);
}

// ---- Models

// Attention over a cut sequence gathers keys and values: of 4 sequences of 32 positions those that the rank
// has not, in bf16; over cut heads nothing.
TEST(test_attention_gathers) {
  fsdp_model_config config = model_of_preset("tiny");
  fsdp_graph *graph = fsdp_model_forward(&config, 2, 32);
  fsdp_dataflow *n = fsdp_dataflow_of_graph(graph, 2, FSDP_BF16);
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(4);
  int found = 0;
  for (int o = 0; o < n->operator_count; o++) {
    const fsdp_operator *op = &n->operators[o];
    bool attends = !strcmp(op->kind, "attention");
    fsdp_operator_strategy strategy = {.from = -1};
    int t = fsdp_operator_letter_find(op, 't'), h = fsdp_operator_letter_find(op, 'h');
    if (t < 0) continue;
    fsdp_axis_set *of = strategy.axes.of;
    of['t' - 'a'] = 3;
    int64_t channels = config.hidden_size / config.num_heads * config.num_kv_heads;
    assert_int_equal(fsdp_gathered_bytes(n, &mesh, op, &strategy),
                     attends ? 4 * (2 * (32 - 8) * channels) * 2 : 0);
    if (!attends) continue;
    of['t' - 'a'] = 1, of['h' - 'a'] = 2;
    assert_int_equal(fsdp_gathered_bytes(n, &mesh, op, &strategy), 4 * (2 * (32 - 16) * channels / 2) * 2);
    of['t' - 'a'] = 0, of['h' - 'a'] = 3;
    assert_int_equal(fsdp_gathered_bytes(n, &mesh, op, &strategy), 0);
    // Where heads are whole, sequences are cut rather than positions, which would be the first in order.
    const known_neighbours nothing = {0};
    n->operators[o].letters[h].is_whole = true;
    const propagate_choice choice = {.flow = n, .mesh = &mesh, .op = o, .known = &nothing};
    assert_true(propagate_choose(&choice, &strategy));
    assert_int_equal(of['t' - 'a'], 0);
    assert_int_equal(of['b' - 'a'], 3);
    found++;
  }
  assert_int_equal(found, config.num_layers);
  fsdp_dataflow_destroy(n);
  fsdp_graph_destroy(graph);
}

TEST(test_large_model) {
  fsdp_model_config config;
  fsdp_error error = {0};
  config = model_of_preset("llama3-405b");
  fsdp_graph *graph = fsdp_model_forward(&config, 1, 4096);
  fsdp_mesh axes = fsdp_mesh_of(1, 128);
  fsdp_mesh_resize(&axes, FSDP_AXIS_TENSOR, 8);
  fsdp_slice_mesh mesh = fsdp_slice_mesh_of(&axes), primes = fsdp_slice_mesh_of_ranks(1024);
  fsdp_given_strategy items[] = {strategy_of_text("model.layers.*.self_attn.q_proj: [[128, 1], [8, 1]]"),
                                 strategy_of_text("model.layers.*.mlp.down_proj: [[128, 8], [1, 8]]")};
  const fsdp_given_strategies given = {.items = items, .count = 2, .place = "test"};
  for (int i = 0; i < 2; i++) {
    fsdp_propagation *p;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    fsdp_dataflow *n = fsdp_dataflow_of_graph(graph, 128, FSDP_BF16);
    if (fsdp_propagate(n, i ? &primes : &mesh, &given, &p, &error)) fail_msg("%s", error.message);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    printf("%d operators, %d axes: %.3f s, %d inputs moved\n", n->operator_count, p->mesh.count, seconds,
           p->moved_count);
    assert_true(seconds < 1);
    assert_int_equal(p->moved_count, 0);
    fsdp_propagation_destroy(p);
    fsdp_dataflow_destroy(n);
  }
  fsdp_graph_destroy(graph);
}
