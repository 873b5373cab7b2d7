// One option's value: from text into its field, and back.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/text/option_table.h"

// The defaults; the caller destroys them.
void fsdp_options_create(fsdp_options *options);
void fsdp_options_destroy(fsdp_options *options);

// Sets the row's field from `text`; false if the row does not allow it.
bool fsdp_option_store(fsdp_options *options, const fsdp_option_row *row, const char *text);

// Sets the row's field to its default, as if it had not been given. Of a text the row has none.
void fsdp_option_reset(fsdp_options *options, const fsdp_option_row *row);

// FSDP_ERR_OPTION for a text that the row does not allow, with what it allows. `name` as it was typed.
fsdp_status fsdp_option_fail_value(const fsdp_option_row *row, const char *name, const char *text,
                                   const char *place, fsdp_error *error);

// The value of one option as text that sets it again; the caller frees it. `row` is one of the table.
char *fsdp_options_value(const fsdp_options *options, const fsdp_option_row *row);
