#include "launcher/setup/saving_price.h"

#include "runtime/plan/search/search.h"

#include <string.h>

// Everything is fixed but what may be chosen.
static fsdp_search_config search_of(const fsdp_plan_config *given, const fsdp_saving_choice *choice,
                                    const fsdp_limits *limits, int batch_parts) {
  fsdp_search_config search = {.base = *given,
                               .ranks = fsdp_mesh_ranks(&given->mesh),
                               .ranks_per_node = limits->ranks_per_machine,
                               .global_batch = given->batch * given->micro_batches * batch_parts,
                               .profile = limits->profile,
                               .shared_limit_bytes = limits->shared_bytes};
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++) search.fixed[f] = true;
  search.fixed[FSDP_SEARCH_RECOMPUTE] = !choice->recompute;
  search.fixed[FSDP_SEARCH_OFFLOAD_ACTIVATIONS] = !choice->offload;
  memcpy(search.limit_bytes, limits->bytes, sizeof search.limit_bytes);
  return search;
}

fsdp_status fsdp_saving_price(const fsdp_plan_config *given, const fsdp_saving_choice *choice,
                              const fsdp_limits *limits, fsdp_plan_config *config, fsdp_error *error) {
  fsdp_search_result result;
  fsdp_search_plan chosen;
  int parts;
  fsdp_status status = fsdp_plan_count_batch_parts(given, &parts, error);
  if (status) return status;
  const fsdp_search_config search = search_of(given, choice, limits, parts);
  status = fsdp_search_run(&search, &result, error);
  if (status) return status;
  if (result.count) {
    const bool fits = fsdp_search_price(&search, config, &chosen, NULL) == FSDP_OK;
    if (!fits || result.plans[0].step_s < chosen.step_s) config->saving = result.plans[0].config.saving;
  }
  fsdp_search_result_release(&result);
  return FSDP_OK;
}
