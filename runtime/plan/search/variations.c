#include "runtime/plan/search/variations.h"

#include "runtime/base/check.h"
#include "runtime/plan/search/neighbours.h"

#include <stdio.h>

int fsdp_variations_of(const fsdp_plan *plan, const fsdp_device_profile *profile, int ranks_per_node,
                       fsdp_variation out[FSDP_VARIATIONS_MAX]) {
  fsdp_evaluator evaluator = {.profile = profile, .ranks_per_node = ranks_per_node};
  int neighbour_count, count = 0;
  const fsdp_neighbour *list = fsdp_neighbours(&neighbour_count);
  for (int n = 0; n < neighbour_count; n++) {
    fsdp_plan_config config = plan->config;
    char options[FSDP_NEIGHBOUR_BYTES];
    fsdp_evaluation e;
    if (list[n].is_remedy || !list[n].apply(&list[n], &evaluator, &config, options) ||
        !fsdp_evaluate(&evaluator, &config, FSDP_EVALUATE_PLAN, &e))
      continue;
    FSDP_CHECK(count < FSDP_VARIATIONS_MAX, "more than %d variations", FSDP_VARIATIONS_MAX);
    out[count] = (fsdp_variation){.step_s = e.step_s,
                                  .tokens_per_s = e.tokens_per_s,
                                  .peak_bytes = e.peak_bytes[FSDP_SPACE_DEVICE],
                                  .host_peak_bytes = e.peak_bytes[FSDP_SPACE_HOST],
                                  .fits = fsdp_excess_of(&plan->config.limits, e.bytes, NULL) == 0};
    snprintf(out[count++].change, sizeof out->change, "%s", options);
  }
  fsdp_evaluator_release(&evaluator);
  return count;
}
