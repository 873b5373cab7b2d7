// The memory profile as a file: JSON for a program, SVG for a person.
#pragma once

#include "runtime/base/status.h"
#include "runtime/plan/plan.h"

// Writes the profile of `plan` to `path`, whose ending (.json or .svg) says as what. An existing file
// is replaced only by a whole one. FSDP_ERR_INPUT if it cannot be written.
fsdp_status fsdp_memory_profile_write(const fsdp_plan *plan, const char *model_name, const char *path,
                                      fsdp_error *error);
