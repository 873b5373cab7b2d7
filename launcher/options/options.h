// The programs' options: one table says everything about each, and parsing, help, checks and comparison read
// it.
//
//   defaults ──► --config FILE (YAML) ──► command line ──► fsdp_options ──► option_check.h (combinations)
//
// An error is one sentence that names the option, the value, its place (command line or file:line) and what
// is allowed.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/text/option_fields.h"
#include "runtime/plan/text/option_query.h"
#include "runtime/plan/text/option_table.h"

#include <stdio.h>

// Fills `options` from defaults, the YAML file that --config names, and the command line, then checks
// combinations. With --help or --version nothing else is looked at. FSDP_ERR_OPTION; FSDP_ERR_INPUT for a
// configuration file that cannot be read. The caller destroys `options` in either case.
fsdp_status fsdp_options_parse(fsdp_options *options, fsdp_program_kind program, int argc, char **argv,
                               fsdp_error *error);
// The same without the check of combinations.
fsdp_status fsdp_options_read(fsdp_options *options, fsdp_program_kind program, int argc, char **argv,
                              fsdp_error *error);
// The same with `compared`, one of the files that --compare names, as the one plan's --config; NULL: as it is
// given.
fsdp_status fsdp_options_parse_compared(fsdp_options *options, fsdp_program_kind program, int argc,
                                        char **argv, const char *compared, fsdp_error *error);

// Sets the option `name` to `text`, as if it stood at `place`. The name may have underscores for dashes or be
// another trainer's (option_alias.h). FSDP_ERR_OPTION.
fsdp_status fsdp_options_set(fsdp_options *options, fsdp_program_kind program, const char *name,
                             const char *text, const char *place, fsdp_error *error);

// Every option but --config as "name=value\n", defaults included: what ranks compare. The caller frees it.
char *fsdp_options_describe(const fsdp_options *options);

// The names by task, or all: an entry per option that `program` has, presets and exit statuses.
void fsdp_options_print_help(fsdp_program_kind program, fsdp_help help, FILE *out);
