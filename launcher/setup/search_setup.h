// A search as the options ask for it, and its plans as options again.
//
//   given options ──► fixed, all others of a plan searched ──► the plan ──► options, a command, a YAML file
#pragma once

#include "launcher/setup/setup.h"
#include "runtime/plan/search/search.h"

typedef struct fsdp_search_job {
  fsdp_search_config config;
  fsdp_setup setup; // owns what config points to
  fsdp_setup_limits limits;
  fsdp_device_profile *measured; // owned; the profile if none is given
} fsdp_search_job;

// Reads model, profile and limits. `measured` (may be NULL) is used, and owned, if --profile is not given.
// The backend becomes the profile's if none is given. FSDP_ERR_OPTION, FSDP_ERR_INPUT. The caller destroys
// the job in either case; it must stay where it is.
fsdp_status fsdp_search_job_create(fsdp_options *options, fsdp_program_kind program,
                                   const fsdp_setup_ranks *ranks, fsdp_device_profile *measured,
                                   fsdp_search_job *job, fsdp_error *error);
void fsdp_search_job_destroy(fsdp_search_job *job);

// Sets every option that was searched to what the plan has. They count as given then, at `place`.
fsdp_status fsdp_search_take(const fsdp_search_job *job, const fsdp_plan_config *plan,
                             fsdp_program_kind program, const char *place, fsdp_options *options,
                             fsdp_error *error);

// Nothing fits: FSDP_ERR_CAPACITY with what the least setting needs and the nearest change that would fit.
fsdp_status fsdp_search_fail_unfit(const fsdp_search_job *job, const fsdp_search_result *result,
                                   fsdp_error *error);
