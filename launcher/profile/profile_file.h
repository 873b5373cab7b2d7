// Device profiles in files; runtime/plan/text/profile_text.h says how they are written.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/search/device_profile.h"

#include <stdio.h>

// A shipped profile's name, or the path of a file; a base's path is taken from the folder of the file that
// names it. The caller owns *profile. FSDP_ERR_INPUT, with file and line, for what is wrong.
fsdp_status fsdp_profile_read(const char *name_or_path, fsdp_device_profile **profile, fsdp_error *error);

// YAML that reads back equal; `source` stands for all of its numbers. A rate that is 0 is left out.
void fsdp_profile_print(const fsdp_device_profile *profile, const char *source, FILE *out);
