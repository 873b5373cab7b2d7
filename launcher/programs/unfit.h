// Of several plans or machines in one table: those on which nothing fits, and why.
#pragma once

#include "runtime/plan/text/option_query.h"

#include <stdio.h>

#define FSDP_UNFIT_REASON_BYTES 1024

// Below the table: `name`, and indented why it does not fit.
void fsdp_unfit_print(const char *name, const char *reason, FILE *out);

// Where nothing fits there is nothing to compare: `what` of --`option` does not fit, and `give` would help.
// FSDP_ERR_CAPACITY.
fsdp_status fsdp_unfit_fail(const fsdp_options *options, const char *option, const char *what,
                            const char *give, fsdp_error *error);
