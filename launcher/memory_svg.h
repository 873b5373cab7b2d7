// The memory profile as a picture: bytes over the step, stacked by category, the peak marked with its owner.
#pragma once

#include "launcher/memory_profile.h"

void fsdp_memory_svg_print(const fsdp_memory_profile *profile, FILE *out);
