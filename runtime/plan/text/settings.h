// What options say of a plan, for the programs and for a planner (runtime/plan/fsdp_plan.h). Both get their
// answers here, and their mesh of mesh_choice.h.
//
//   options ──► fsdp_settings_check ──► backend, configuration, wrap, saving ──► fsdp_plan_config
//                                                                             ──► fsdp_search_config
//   a plan that was found ──► fsdp_settings_of_plan ──► options
#pragma once

#include "runtime/plan/price/device_profile.h"
#include "runtime/plan/search/search_config.h"
#include "runtime/plan/text/mesh_choice.h"
#include "runtime/plan/text/option_query.h"

// Of what contradicts itself FSDP_ERR_OPTION.
fsdp_status fsdp_settings_check(const fsdp_options *options, fsdp_error *error);
// The same of a capacity of experts where the plan does not divide them.
fsdp_status fsdp_settings_check_experts(const fsdp_options *options, const fsdp_plan_config *config,
                                        fsdp_error *error);

// Whether --sharding is this preset.
bool fsdp_settings_sharding_is(const fsdp_options *options, const char *preset);

// The backend: a GPU's if ranks have one, or as given, or else, if it is only planned, as the profile (NULL:
// none) says. FSDP_ERR_OPTION if the profile is of another device.
fsdp_status fsdp_settings_backend(const fsdp_options *options, bool only_plans, bool has_gpu,
                                  const fsdp_device_profile *profile, fsdp_plan_backend *backend,
                                  fsdp_error *error);

// What of a configuration options say without model, mesh and files. `profile` may be NULL.
fsdp_plan_config fsdp_settings_config(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                      const fsdp_device_profile *profile, const fsdp_plan_backend *backend);

// The wrap policy; its class names point into options or model. `sharding` is NULL without rules.
fsdp_wrap_policy fsdp_settings_wrap(const fsdp_options *options, const fsdp_sharding *sharding,
                                    const fsdp_model_config *model);

// What layers recompute and offload, but for what is chosen automatically. FSDP_ERR_OPTION.
fsdp_status fsdp_settings_saving(const fsdp_options *options, fsdp_saving *saving, fsdp_error *error);

// What arenas may take of `limits`. A margin that is given, as by what a search found, is no room.
fsdp_memory_limits fsdp_settings_arenas(const fsdp_options *options, const fsdp_memory_limits *limits);

// Fills in a search around search->base, but for its limits. FSDP_ERR_OPTION.
fsdp_status fsdp_settings_search(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                 const fsdp_device_profile *profile, fsdp_search_config *search,
                                 fsdp_error *error);

// Gives each option of a plan that a search found; `field` is FSDP_SEARCH_FIELD_COUNT of what none searches.
typedef void fsdp_setting_visit(void *context, fsdp_search_field field, const char *name, const char *value);
void fsdp_settings_of_plan(const fsdp_search_config *search, const fsdp_plan_config *plan,
                           fsdp_setting_visit *visit, void *context);
