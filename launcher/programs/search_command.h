// The options of a plan that a search found, as what a user types or keeps.
#pragma once

#include "launcher/setup/search_setup.h"

// The options that were given, or taken from a plan, and that training has: called in the table's order. Last
// the profile, if a plan without it would count another reserve of memory.
typedef void (*fsdp_search_visit)(void *context, const char *name, const char *value);
void fsdp_search_each_option(const fsdp_search_job *job, const fsdp_options *options, fsdp_search_visit visit,
                             void *context);

// "mpirun -np 8 fsdp_train --model llama2-7b ...": the caller frees it.
char *fsdp_search_command(const fsdp_search_job *job, const fsdp_options *options);

// Writes these options, ranks and the profile as YAML, whole or not at all: fsdp_plan and fsdp_train read it
// back. FSDP_ERR_INPUT.
fsdp_status fsdp_search_save(const fsdp_options *options, const char *path, const char *note,
                             fsdp_error *error);
