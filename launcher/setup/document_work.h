// What attention has to do for the documents of --data, for prices.
#pragma once

#include "launcher/options/options.h"
#include "launcher/setup/setup.h"

// Of a plan with documents: what those of --data leave of attention, into config->document_work[].left. Their
// lengths are those that training would have: FSDP_ERR_INPUT if the data cannot be read or is not for the
// model's tokenizer. `setup` has the model's folder. If it has a plan, `config` is that plan's, before it is
// priced: also how unequal that falls on ranks when the first steps' samples are spread over them as training
// spreads them, into document_work[].most and .context; FSDP_ERR_OPTION if training could not divide the data
// so.
fsdp_status fsdp_document_work_find(const fsdp_options *options, const fsdp_setup *setup,
                                    fsdp_plan_config *config, fsdp_error *error);

// fsdp_setup_create for --ranks, and with a profile the above: FSDP_ERR_CAPACITY with the plan if it is made
// but does not fit.
fsdp_status fsdp_document_work_plan(const fsdp_options *options, fsdp_setup *setup, fsdp_error *error);
