// The terminal's line of a step: how well the devices are used, by closed formulas.
#include "launcher/report/progress.h"
#include "tests/support/models.h"
#include "tests/support/unit_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Llama 2 7B: 6 FLOPs a token for each of 6.7 billion weights (with or without the embedding's 0.13), and 6
// T C a layer for scores of keys before a query, twice that for all pairs.
TEST(utilization_is_printed) {
  fsdp_plan plan = {.config = {.seq = 4096}};
  plan.config.model = model_of_preset("llama2-7b");
  const double pairs = 6.0 * 32 * 4096 * 4096;
  const fsdp_step_record record = {.step = 1, .total_steps = 2, .peak_flops = 8e15};
  const fsdp_progress_tally line = {.ms = 1e3, .steps = 1, .tokens = 80000}; // 1% for a GFLOP a token
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  assert_non_null(out);
  fsdp_progress_print(&record, &plan, &line, out);
  fclose(out);
  const char *at = strstr(text, "MFU ");
  double causal, all;
  assert_non_null(at);
  assert_int_equal(sscanf(at, "MFU %lf%% (all pairs: %lf%%)", &causal, &all), 2);
  const double expected = (6 * 6.67e9 + pairs) * 1e-9;
  assert_true(causal > expected - 0.5 && causal < expected + 0.5);
  assert_true(all - causal < pairs * 1e-9 + 0.11 && all - causal > pairs * 1e-9 - 0.11);
  free(text);
}
