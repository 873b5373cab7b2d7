// The next token of a sample, against plain versions of what is asked for.
#include "launcher/text/next_token.h"
#include "tests/support/unit_test.h"

#include <math.h>
#include <stdbool.h>

enum { V = 9, DRAWS = 20000 };

static const float logits[V] = {0.5f, 2.0f, -1.0f, 2.0f, 1.25f, -30.0f, 0.5f, 1.75f, -2.0f};

TEST(test_greedy) {
  const fsdp_next_token_config config = {.temperature = 0, .top_p = 1};
  assert_int_equal(fsdp_next_token(&config, logits, V, 0), 1); // of two equal ones the lower
  assert_int_equal(fsdp_next_token(&config, logits + 2, V - 2, 7), 1);
  const float wrong[3] = {1, NAN, 2}, endless[3] = {1, INFINITY, 2};
  assert_int_equal(fsdp_next_token(&config, wrong, 3, 0), -1);
  assert_int_equal(fsdp_next_token(&config, endless, 3, 0), -1);
}

// Whether a token is kept: those that are more probable have less than top_p together.
static bool is_kept(const double *p, int token, double top_p) {
  double before = 0;
  for (int v = 0; v < V; v++)
    if (p[v] > p[token] || (p[v] == p[token] && v < token)) before += p[v];
  return before < top_p;
}

static void check_draws(double temperature, double top_p) {
  double p[V], sum = 0, kept = 0;
  int counts[V] = {0};
  for (int v = 0; v < V; v++) sum += p[v] = exp((double)logits[v] / temperature);
  for (int v = 0; v < V; v++) p[v] /= sum;
  for (int v = 0; v < V; v++)
    if (is_kept(p, v, top_p)) kept += p[v];
  const fsdp_next_token_config config = {.temperature = temperature, .top_p = top_p, .seed = 11};
  for (int i = 0; i < DRAWS; i++) counts[fsdp_next_token(&config, logits, V, i)]++;
  for (int v = 0; v < V; v++) {
    // Five deviations of a count of independent draws.
    const double share = is_kept(p, v, top_p) ? p[v] / kept : 0,
                 deviation = sqrt(DRAWS * share * (1 - share));
    if (!(fabs(counts[v] - DRAWS * share) <= 5 * deviation + 1e-9))
      fail_msg("temperature %g, top-p %g: token %d drawn %d times, not %g", temperature, top_p, v, counts[v],
               DRAWS * share);
  }
}

TEST(test_draws) {
  check_draws(1, 1);
  check_draws(0.5, 1);
  check_draws(3, 0.9);
  check_draws(1, 0.5);
  check_draws(1, 1e-9);
}

// A pure function of seed and position.
TEST(test_seed) {
  fsdp_next_token_config a = {.temperature = 1, .top_p = 1, .seed = 1}, b = a;
  int differ = 0;
  b.seed = 2;
  for (int i = 0; i < 100; i++) {
    assert_int_equal(fsdp_next_token(&a, logits, V, i), fsdp_next_token(&a, logits, V, i));
    differ += fsdp_next_token(&a, logits, V, i) != fsdp_next_token(&b, logits, V, i);
  }
  assert_in_range(differ, 40, 99);
}
