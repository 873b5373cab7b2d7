// Options in a YAML file: a mapping of names to scalars, or to lists of scalars (passed on joined by commas).
//
//   model: /data/model            ->  "model", "/data/model"
//   data: [a.txt, b.txt]          ->  "data", "a.txt,b.txt"
#pragma once

#include "runtime/base/status.h"

#include <stdbool.h>
#include <stdio.h>

// Called once per option, in the file's order. Strings live during the call only; an empty value
// ("cpu-offload:") is "". Anything but FSDP_OK ends the reading and is returned, with what the callee wrote
// in `error`.
typedef fsdp_status (*fsdp_yaml_option)(void *context, const char *name, const char *value, int line,
                                        fsdp_error *error);

// Reads the file at `path`. FSDP_ERR_INPUT if it is missing; FSDP_ERR_OPTION, with file and line, if it
// is not YAML, holds anything but such a mapping, or gives a name twice.
fsdp_status fsdp_yaml_read(const char *path, fsdp_yaml_option option, void *context, fsdp_error *error);

// Writes a line `name: "value"` that reads back as it is, line breaks and control characters too. Only what
// is UTF-8 can be written: others are checked before.
bool fsdp_yaml_holds(const char *value);
void fsdp_yaml_print(const char *name, const char *value, FILE *out);
