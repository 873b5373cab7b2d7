// Networks of operators on ranks, cut as propagation says: the numbers of one rank.
#include "runtime/base/check.h"
#include "tests/support/network_run.h"
#include "tests/support/random_network.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Values of inputs and parameters, between -1 and 1.
static float **draw_values(random_source *random, const fsdp_network *n) {
  float **values = fsdp_alloc_zeroed((size_t)n->tensor_count, sizeof *values);
  for (int t = 0; t < n->tensor_count; t++) {
    if (n->tensors[t].role == FSDP_TENSOR_MADE) continue;
    int64_t numel = network_numel(&n->tensors[t]);
    values[t] = fsdp_alloc((size_t)numel * sizeof *values[t]);
    for (int64_t e = 0; e < numel; e++) values[t][e] = (float)random_int(random, -1000, 1000) / 1000;
  }
  return values;
}

// fp32 sums in another order: relative to the greatest value of the tensor.
static void compare(const fsdp_network *n, float **found, float **expected, const char *what) {
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

static void propagate(const fsdp_network *n, int ranks, const fsdp_given_strategies *given,
                      fsdp_propagation **out) {
  const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(ranks);
  fsdp_error error = {0};
  if (fsdp_propagate(n, &mesh, given, out, &error)) fail_msg("%s", error.message);
}

// relu(x w1 + b1) w2 in double.
static void feed_forward_reference(const fsdp_network *n, float **v, double *out) {
  const float *x = v[fsdp_network_find(n, "x")], *w1 = v[fsdp_network_find(n, "w1")];
  const float *b1 = v[fsdp_network_find(n, "b1")], *w2 = v[fsdp_network_find(n, "w2")];
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
  fsdp_network *n = network_feed_forward();
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
    float **found = network_run(n, p, values);
    compare(n, found, alone, lines[i]);
    const float *out = found[fsdp_network_find(n, "fc2")];
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
  fsdp_network_destroy(n);
}

// All results of random networks run, also those with redistribution.
static void test_random(void **state) {
  (void)state;
  static const int ranks[] = {4, 6, 8};
  random_source random = {.seed = 13};
  int moved = 0, sums = 0;
  for (int i = 0; i < 500; i++) {
    fsdp_network *n = random_network(&random, 24);
    int count = ranks[random_int(&random, 0, 2)];
    const fsdp_slice_mesh mesh = fsdp_slice_mesh_of_ranks(count);
    fsdp_given_strategy items[3];
    fsdp_given_strategies given = {.items = items, .place = "random"};
    given.count = random_strategies(&random, n, &mesh, 3, items);
    fsdp_propagation *p;
    propagate(n, count, &given, &p);
    float **values = draw_values(&random, n);
    float **alone = network_run_alone(n, values), **found = network_run(n, p, values);
    char what[32];
    snprintf(what, sizeof what, "network %d", i);
    compare(n, found, alone, what);
    moved += p->moved_count > 0;
    for (int o = 0; o < n->operator_count; o++) {
      int i_letter = fsdp_operator_letter_find(&n->operators[o], 'i');
      sums += i_letter >= 0 && p->operators[o].letters[i_letter];
    }
    network_values_free(n, found);
    network_values_free(n, alone);
    network_values_free(n, values);
    fsdp_propagation_destroy(p);
    fsdp_network_destroy(n);
  }
  printf("500 random networks run as on one rank; %d of them redistribute, %d products are sums over ranks\n",
         moved, sums);
  assert_true(moved > 50 && sums > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_feed_forward), cmocka_unit_test(test_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
