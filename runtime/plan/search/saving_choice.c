#include "runtime/plan/search/saving_choice.h"

#include "runtime/base/check.h"
#include "runtime/plan/program/saving.h"
#include "runtime/plan/search/search.h"

#include <stdlib.h>
#include <string.h>

// The rules that are given are the model's, and the profile has rates for what may be chosen.
static fsdp_status check(const fsdp_saving_choice *choice, const fsdp_plan_config *config,
                         fsdp_error *error) {
  fsdp_graph *graph = fsdp_model_graph(&config->model, config->batch, config->seq);
  fsdp_fate *fates = fsdp_alloc((size_t)graph->value_count * sizeof *fates);
  fsdp_status status = fsdp_saving_resolve(&config->saving, graph, config->prefetch, fates, error);
  free(fates);
  fsdp_graph_destroy(graph);
  if (status || !choice->profile || !choice->offload) return status;
  fsdp_plan_config offloading = *config;
  offloading.saving = (fsdp_saving){.count = 1, .rules = {{.fate = FSDP_FATE_OFFLOAD}}};
  return fsdp_pricing_check(&offloading, choice->profile, error);
}

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

static fsdp_status choose(const fsdp_search_config *search, fsdp_plan_config *config, bool *found,
                          fsdp_error *error) {
  fsdp_search_result result;
  const fsdp_status status = fsdp_search_run(search, &result, error);
  if (status) return status;
  *found = result.count > 0;
  if (*found)
    config->saving = result.plans[0].config.saving;
  else if (result.least.batch > 0) // some setting makes a plan
    config->saving = result.least.saving;
  fsdp_search_result_release(&result);
  return FSDP_OK;
}

fsdp_status fsdp_saving_choose(const fsdp_saving_choice *choice, fsdp_plan_config *config, bool *found,
                               fsdp_error *error) {
  int parts;
  *found = false;
  FSDP_CHECK(choice->ranks_per_node > 0, "nodes of %d ranks", choice->ranks_per_node);
  fsdp_status status = fsdp_plan_count_batch_parts(config, &parts, error);
  if (status == FSDP_OK) status = check(choice, config, error);
  if (status) return status;
  fsdp_device_profile *nominal = choice->profile ? NULL : fsdp_device_profile_nominal(config->backend);
  const fsdp_search_config search = search_of(choice, nominal ? nominal : choice->profile, config, parts);
  fsdp_search_plan kept;
  if (nominal && fsdp_search_price(&search, config, &kept) == FSDP_OK)
    *found = true;
  else
    status = choose(&search, config, found, error);
  fsdp_device_profile_destroy(nominal);
  return status;
}
