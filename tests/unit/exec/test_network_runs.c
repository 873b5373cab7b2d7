// Networks of operators on ranks, cut as propagation says: the numbers of one rank.
#include "launcher/setup/listed_file.h"
#include "launcher/setup/strategies_file.h"
#include "runtime/base/check.h"
#include "tests/support/draws.h"
#include "tests/support/network_reference.h"
#include "tests/support/network_run.h"
#include "tests/support/random_network.h"

#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const kinds[] = {"matmul",      "add",   "mul",    "relu",    "transpose",
                                    "reduce_mean", "slice", "gather", "rmsnorm", "attention"};
enum { KINDS = sizeof kinds / sizeof *kinds };

// By tensor, a number that its values are indices below; 0: they are none.
static int64_t *find_indices(const fsdp_dataflow *n) {
  int64_t *below = fsdp_alloc_zeroed((size_t)n->tensor_count, sizeof *below);
  for (int o = n->operator_count - 1; o >= 0; o--) {
    const fsdp_operator *op = &n->operators[o];
    int64_t made = below[op->operands[op->input_count].tensor];
    if (!strcmp(op->kind, "gather"))
      below[op->operands[1].tensor] = n->tensors[op->operands[0].tensor].shape[0];
    else if (made)
      below[op->operands[0].tensor] = made;
  }
  return below;
}

// Values of inputs and parameters, indices or between -1 and 1.
static float **draw_values(random_source *random, const fsdp_dataflow *n) {
  float **values = fsdp_alloc_zeroed((size_t)n->tensor_count, sizeof *values);
  int64_t *below = find_indices(n);
  for (int t = 0; t < n->tensor_count; t++) {
    if (n->tensors[t].role == FSDP_TENSOR_MADE) continue;
    int64_t numel = network_numel(&n->tensors[t]);
    values[t] = fsdp_alloc((size_t)numel * sizeof *values[t]);
    for (int64_t e = 0; e < numel; e++)
      values[t][e] = below[t] ? (float)random_int(random, 0, (int)below[t] - 1)
                              : (float)random_int(random, -1000, 1000) / 1000;
  }
  free(below);
  return values;
}

// Every operator, against its definition in double on the inputs that the ranks had.
static void check_operators(const fsdp_dataflow *n, float **given, float **found, const char *what) {
  float **values = fsdp_alloc((size_t)n->tensor_count * sizeof *values);
  for (int t = 0; t < n->tensor_count; t++) values[t] = given[t] ? given[t] : found[t];
  for (int o = 0; o < n->operator_count; o++) {
    const fsdp_operator *op = &n->operators[o];
    int made = op->operands[op->input_count].tensor;
    int64_t numel = network_numel(&n->tensors[made]);
    double *expected = fsdp_alloc((size_t)numel * sizeof *expected);
    double *scale = fsdp_alloc((size_t)numel * sizeof *scale);
    network_reference(n, o, values, expected, scale);
    for (int64_t e = 0; e < numel; e++)
      if (!(fabs((double)found[made][e] - expected[e]) <= 1e-5 * scale[e]))
        fail_msg("%s: %s (%s): element %lld is %.9g, not %.9g", what, op->names[0], op->kind, (long long)e,
                 (double)found[made][e], expected[e]);
    free(scale);
    free(expected);
  }
  free(values);
}

// fp32 sums in another order: relative to the greatest value of the tensor.
static void compare(const fsdp_dataflow *n, float **found, float **expected, const char *what) {
  for (int t = 0; t < n->tensor_count; t++) {
    double most = 0, difference = 0;
    for (int64_t e = 0; expected[t] && e < network_numel(&n->tensors[t]); e++) {
      most = fmax(most, fabs((double)expected[t][e]));
      difference = fmax(difference, fabs((double)found[t][e] - (double)expected[t][e]));
    }
    if (!(difference <= 1e-5 * most))
      fail_msg("%s: %s differs by %g of %g", what, n->tensors[t].name, difference, most);
  }
}

static void propagate(const fsdp_dataflow *n, int ranks, const fsdp_given_strategies *given,
                      fsdp_propagation **out) {
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(ranks);
  fsdp_error error = {0};
  if (fsdp_propagate(n, &mesh, given, out, &error)) fail_msg("%s", error.message);
}

// ---- Networks from files

// The network and the strategies of a file, on its ranks: the numbers of one rank, and of each operator.
static void check_file(const char *given_path, int ranks) {
  fsdp_graph *graph;
  fsdp_given_strategies *given = NULL;
  fsdp_propagation *p;
  fsdp_error error = {0};
  random_source random = {.seed = 3};
  char path[512];
  const char *name = strrchr(given_path, '/') + 1; // NETWORK.yaml of NETWORK.given.yaml, NETWORK.x.given.yaml
  int folder = (int)(name - given_path), length = (int)strcspn(name, ".");
  snprintf(path, sizeof path, "%.*s%.*s.yaml", folder, given_path, length, name);
  fsdp_options options = {.op_strategies = (char *)(uintptr_t)given_path};
  if (fsdp_listed_read(path, &graph, &error) || fsdp_strategies_read(&options, &given, &error))
    fail_msg("%s", error.message);
  fsdp_dataflow *n = network_of_listed(graph);
  propagate(n, ranks, given, &p);
  float **values = draw_values(&random, n);
  float **alone = network_run_alone(n, values), **found = network_run(n, p, values, NULL);
  compare(n, found, alone, name);
  check_operators(n, values, found, name);
  network_values_free(n, found);
  network_values_free(n, alone);
  network_values_free(n, values);
  fsdp_propagation_destroy(p);
  fsdp_strategies_destroy(given);
  fsdp_dataflow_destroy(n);
}

static void test_files(void **state) {
  (void)state;
  glob_t files;
  assert_int_equal(glob(FSDP_SOURCE_DIR "/tests/golden/strategies/*.given.yaml", 0, NULL, &files), 0);
  for (size_t f = 0; f < files.gl_pathc; f++)
    check_file(files.gl_pathv[f], strstr(files.gl_pathv[f], "_attention.") ? 12 : 8); // 12 = 2 x 3 x 2
  printf("%zu networks run as on one rank\n", files.gl_pathc);
  assert_true(files.gl_pathc >= 9);
  globfree(&files);
}

// ---- Single networks

// relu(x w1 + b1) w2 in double.
static void feed_forward_reference(const fsdp_dataflow *n, float **v, double *out) {
  const float *x = v[network_find(n, "x")], *w1 = v[network_find(n, "w1")];
  const float *b1 = v[network_find(n, "b1")], *w2 = v[network_find(n, "w2")];
  for (int row = 0; row < 16; row++) {
    double h[64];
    for (int j = 0; j < 64; j++) {
      h[j] = (double)b1[j];
      for (int i = 0; i < 32; i++) h[j] += (double)x[row * 32 + i] * (double)w1[i * 64 + j];
      h[j] = h[j] > 0 ? h[j] : 0;
    }
    for (int o = 0; o < 32; o++) {
      out[row * 32 + o] = 0;
      for (int j = 0; j < 64; j++) out[row * 32 + o] += h[j] * (double)w2[j * 32 + o];
    }
  }
}

static void test_feed_forward(void **state) {
  (void)state;
  fsdp_dataflow *n = network_of_listed(network_feed_forward());
  random_source random = {.seed = 3};
  float **values = draw_values(&random, n), **alone = network_run_alone(n, values);
  static const char *const lines[] = {"fc1: [[2, 1], [1, 4]]", "fc2: [[1, 8], [8, 1]]", "act: [[2, 2]]"};
  double expected[16 * 32], most = 0, difference = 0;
  feed_forward_reference(n, values, expected);
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    fsdp_given_strategy item = strategy_of_text(lines[i]);
    const fsdp_given_strategies given = {.items = &item, .count = 1, .place = "test"};
    fsdp_propagation *p;
    propagate(n, 8, &given, &p);
    float **found = network_run(n, p, values, NULL);
    compare(n, found, alone, lines[i]);
    const float *out = found[network_find(n, "fc2")];
    for (int e = 0; e < 16 * 32; e++) {
      most = fmax(most, fabs(expected[e]));
      difference = fmax(difference, fabs((double)out[e] - expected[e]));
    }
    network_values_free(n, found);
    fsdp_propagation_destroy(p);
  }
  printf("feed-forward on 8 ranks: at most %.2g of %.3g from the sums in double\n", difference, most);
  assert_true(difference <= 1e-5 * most);
  network_values_free(n, alone);
  network_values_free(n, values);
  fsdp_dataflow_destroy(n);
}

// ---- Random networks

// What the results have, counted.
typedef struct tally {
  int networks, moved, even_moves, sums, uneven;
  int kinds[KINDS], cut_kinds[KINDS]; // operators, and those that are cut
} tally;

static void count_results(const fsdp_dataflow *n, const fsdp_propagation *p, tally *t) {
  bool uneven = false;
  t->networks++;
  t->moved += p->moved_count > 0;
  for (int o = 0; o < n->operator_count; o++) {
    const fsdp_operator *op = &n->operators[o];
    bool is_cut = false, is_sum = false;
    for (int l = 0; l < op->letter_count; l++) {
      int64_t slices = fsdp_slices(&p->mesh, fsdp_operator_axes(op, &p->operators[o], l));
      is_cut = is_cut || slices > 1;
      uneven = uneven || op->letters[l].size % slices;
      is_sum = is_sum || (slices > 1 && fsdp_operand_dim(&op->operands[op->input_count], l) < 0);
    }
    t->sums += is_sum;
    for (int k = 0; k < KINDS; k++) {
      if (strcmp(op->kind, kinds[k]) != 0) continue;
      t->kinds[k]++;
      t->cut_kinds[k] += is_cut;
    }
  }
  t->uneven += uneven;
}

// What ranks receive of tensors that are cut evenly is what propagation says.
static void check_received(const fsdp_dataflow *n, const fsdp_propagation *p, const int64_t *received,
                           tally *t) {
  for (int m = 0; m < p->moved_count; m++) {
    const fsdp_moved_input *moved = &p->moved[m];
    const fsdp_operator_tensor *tensor = &n->tensors[moved->tensor];
    int64_t ranks = fsdp_slices(&p->mesh, (1u << p->mesh.count) - 1);
    bool even = true;
    for (int d = 0; d < tensor->dims; d++) even = even && tensor->shape[d] % ranks == 0;
    if (!even) continue;
    assert_int_equal(received[m], moved->forward_bytes);
    t->even_moves++;
  }
}

// All results of random networks run, also those with redistribution and with parts of different sizes.
static void test_random(void **state) {
  (void)state;
  static const int ranks[] = {4, 6, 8};
  random_source random = {.seed = 13};
  tally t = {0};
  const int count_wanted = test_draws(500, 100);
  while (t.networks < count_wanted) {
    int count = ranks[random_int(&random, 0, 2)];
    fsdp_dataflow *n = random_network_of_all(&random, count);
    const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(count);
    fsdp_given_strategy items[3];
    fsdp_given_strategies given = {.items = items, .place = "random"};
    given.count = random_strategies(&random, n, &mesh, 3, items);
    fsdp_propagation *p;
    propagate(n, count, &given, &p);
    int64_t *received = fsdp_alloc_zeroed((size_t)p->moved_count + 1, sizeof *received);
    float **values = draw_values(&random, n), **found = network_run(n, p, values, received);
    char what[32];
    snprintf(what, sizeof what, "network %d", t.networks);
    check_operators(n, values, found, what);
    count_results(n, p, &t);
    check_received(n, p, received, &t);
    free(received);
    network_values_free(n, found);
    network_values_free(n, values);
    fsdp_propagation_destroy(p);
    fsdp_dataflow_destroy(n);
  }
  printf("%d random networks run; %d redistribute, %d have uneven parts, %d operators are sums over ranks; "
         "bytes "
         "of %d redistributions are as foretold\n",
         t.networks, t.moved, t.uneven, t.sums, t.even_moves);
  for (int k = 0; k < KINDS; k++) {
    printf("  %s: %d operators, %d of them cut\n", kinds[k], t.kinds[k], t.cut_kinds[k]);
    assert_true(25 * t.cut_kinds[k] >= t.networks);
  }
  const int tenth = t.networks / 10;
  assert_true(t.moved > tenth && t.even_moves > tenth && t.sums > tenth && t.uneven > tenth);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_feed_forward), cmocka_unit_test(test_files),
                                     cmocka_unit_test(test_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
