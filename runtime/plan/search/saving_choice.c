#include "runtime/plan/search/saving_choice.h"

#include "runtime/plan/search/search.h"

#include <string.h>

// Everything is fixed but what may be chosen.
static fsdp_search_config search_of(const fsdp_saving_choice *choice, const fsdp_device_profile *profile,
                                    const fsdp_plan_config *given, int batch_parts) {
  fsdp_search_config search = {.base = *given,
                               .ranks = fsdp_mesh_ranks(&given->mesh),
                               .ranks_per_node = choice->ranks_per_node,
                               .global_batch = given->batch * given->micro_batches * batch_parts,
                               .profile = profile,
                               .shared_limit_bytes = choice->allowed->shared_bytes};
  for (int f = 0; f < FSDP_SEARCH_FIELD_COUNT; f++) search.fixed[f] = true;
  search.fixed[FSDP_SEARCH_RECOMPUTE] = !choice->recompute;
  search.fixed[FSDP_SEARCH_OFFLOAD_ACTIVATIONS] = !choice->offload;
  memcpy(search.limit_bytes, choice->allowed->bytes, sizeof search.limit_bytes);
  return search;
}

fsdp_status fsdp_saving_choose(const fsdp_saving_choice *choice, fsdp_plan_config *config, bool *found,
                               fsdp_error *error) {
  fsdp_device_profile *nominal = choice->profile ? NULL : fsdp_device_profile_nominal(config->backend);
  fsdp_search_result result;
  int parts;
  *found = false;
  fsdp_status status = fsdp_plan_count_batch_parts(config, &parts, error);
  if (status == FSDP_OK) {
    const fsdp_search_config search = search_of(choice, nominal ? nominal : choice->profile, config, parts);
    fsdp_search_plan kept;
    *found = nominal && fsdp_search_price(&search, config, &kept) == FSDP_OK;
    if (!*found) status = fsdp_search_run(&search, &result, error);
  }
  if (status == FSDP_OK && !*found) {
    *found = result.count > 0;
    config->saving = *found ? result.plans[0].config.saving : result.least.saving;
    fsdp_search_result_release(&result);
  }
  fsdp_device_profile_destroy(nominal);
  return status;
}
