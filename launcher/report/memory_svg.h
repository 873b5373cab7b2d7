// The memory profile as a picture: bytes over the step, stacked by category, the peak marked with its owner.
#pragma once

#include "launcher/report/memory_profile.h"

// Prints the profile as one self-contained SVG document.
void fsdp_memory_svg_print(const fsdp_memory_profile *profile, FILE *out);
