// From options to a plan: the model, the mesh, element types and limits, and every check before anything is
// allocated.
#pragma once

#include "launcher/options/options.h"
#include "launcher/setup/capacity.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/price/device_profile.h"
#include "runtime/plan/text/settings.h"

#include <stdio.h>

typedef struct fsdp_setup {
  const char *model_name;            // of preset or folder, or which checkpoint's model it is (in `options`)
  const char *folder;                // of config.json and weights (in `options`); NULL for a preset
  bool load_weights;                 // from the folder
  int64_t stored_vocab;              // tokens of its model, where --resize-embeddings adds to them; else 0
  fsdp_sharding *sharding;           // owned; NULL without --sharding
  fsdp_given_strategies *strategies; // owned; NULL without --op-strategies
  fsdp_device_profile *profile;      // owned; NULL without --profile
  fsdp_plan_backend backend;         // the plan's, which points to it
  fsdp_plan *plan;                   // owned
} fsdp_setup;

// Finds and reads the model alone: name, folder, whether there are weights to load, configuration.
// FSDP_ERR_OPTION, FSDP_ERR_INPUT.
fsdp_status fsdp_setup_read_model(const fsdp_options *options, fsdp_setup *setup, fsdp_model_config *model,
                                  fsdp_error *error);

// The contents of --profile as text, every digit of its numbers, which the caller frees: NULL without one,
// and after an error. FSDP_ERR_INPUT.
fsdp_status fsdp_setup_print_profile(const fsdp_options *options, char **text, fsdp_error *error);

// The memory that a plan may take, and the texts that its places point to.
typedef struct fsdp_setup_limits {
  fsdp_limits limits;
  char machine[128], device[192], host[192];
} fsdp_setup_limits;

// Those that options and ranks set, and where these know none, the machine of `profile` (NULL: none);
// `limits` must stay where it is.
void fsdp_setup_find_limits(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                            const fsdp_device_profile *profile, fsdp_setup_limits *limits);

// "PROGRAM: warning: ..." for each limit that is given above what the profile's device has (NULL: none).
void fsdp_setup_warn_of_limits(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                               const fsdp_device_profile *profile, const char *program, FILE *out);

// Everything of fsdp_setup_create but the plan: fills in *config, whose rules and file contents `setup` owns.
fsdp_status fsdp_setup_configure(const fsdp_options *options, fsdp_program_kind program,
                                 const fsdp_setup_ranks *ranks, fsdp_setup *setup, fsdp_plan_config *config,
                                 fsdp_error *error);

// Reads the model, makes the plan and checks it against the limits. `options` must outlive the setup.
// FSDP_ERR_OPTION, FSDP_ERR_INPUT, FSDP_ERR_CAPACITY; FSDP_ERR_PEER if the program trains and the backend
// is not there. The caller destroys `setup` in either case.
fsdp_status fsdp_setup_create(const fsdp_options *options, fsdp_program_kind program,
                              const fsdp_setup_ranks *ranks, fsdp_setup *setup, fsdp_error *error);
void fsdp_setup_destroy(fsdp_setup *setup);
