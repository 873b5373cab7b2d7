// What options do, or do not, for the model and the machine that a plan is for.
#pragma once

#include "launcher/setup/setup.h"

// What --resize-embeddings does to the model's vocabulary, or that it does nothing; false if it is not given.
bool fsdp_resize_note(const fsdp_options *options, const fsdp_setup *setup, char *out, size_t out_bytes);

// "PROGRAM: note: ..." if --threads is given and steps are priced for a GPU, whose profile has none of them.
void fsdp_note_threads(const fsdp_options *options, const fsdp_device_profile *profile, const char *program,
                       FILE *out);
