// Standard output as a program's answer: it is written whole, or the program fails.
#pragma once

#include "runtime/base/status.h"

#include <jansson.h>

// Called first: a limit on the size of files (ulimit -f) fails the write, which can be reported, and does not
// kill the process.
void fsdp_output_begin(void);

// Writes out what is buffered. `status`, or FSDP_ERR_INPUT if that is FSDP_OK and something of the output
// was lost, on a full disk for example.
fsdp_status fsdp_output_finish(fsdp_status status, fsdp_error *error);

// Prints what was asked for as JSON, in indented lines, and releases it.
void fsdp_output_json(json_t *root);
