// How many steps a planned run has: from --tokens, from the data and --num-epochs, from --max-steps.
#pragma once

#include "launcher/options/options.h"
#include "launcher/report/price.h"
#include "launcher/setup/setup.h"

// Steps of a run of `global_batch` sequences a step: the least of what --tokens, --data with --num-epochs,
// and --max-steps allow; *steps is 0 if none of them is given. The data is opened and counted as training
// would, but not verified. `model`: of the plan; `setup` says where its folder is. FSDP_ERR_INPUT, as
// training would fail.
fsdp_status fsdp_run_length_find(const fsdp_options *options, const fsdp_setup *setup,
                                 const fsdp_model_config *model, int64_t global_batch, int64_t *steps,
                                 fsdp_error *error);

// The most sequences that one step can have: those of an epoch of --data, and those of --tokens, but at least
// one. INT64_MAX if neither is given. FSDP_ERR_INPUT as above.
fsdp_status fsdp_run_length_most(const fsdp_options *options, const fsdp_setup *setup,
                                 const fsdp_model_config *model, int64_t *most, fsdp_error *error);

// Whether --tokens asks for less than one step of `step_tokens`, with what to say of it.
enum { FSDP_RUN_LENGTH_NOTE_BYTES = 320 };
bool fsdp_run_length_note(const fsdp_options *options, int64_t step_tokens,
                          char note[FSDP_RUN_LENGTH_NOTE_BYTES]);

// Prices a step of `setup`'s plan by its profile, and the run, on the nodes that `options` plan for. As
// fsdp_price_report_create and the above.
fsdp_status fsdp_run_length_price(const fsdp_options *options, const fsdp_setup *setup,
                                  fsdp_price_report *report, fsdp_error *error);
