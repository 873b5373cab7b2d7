// Sharding rules as options give them: --sharding FILE|PRESET, --shard NAME=SPEC, --extra-data-axis.
#pragma once

#include "launcher/options/options.h"
#include "runtime/plan/text/sharding_text.h"

// Reads what the options say. *sharding is NULL without --sharding; the caller destroys it. FSDP_ERR_INPUT,
// with file and line, for a file that is missing, is no YAML, or has anything but such a mapping;
// FSDP_ERR_OPTION for a wrong --shard.
fsdp_status fsdp_sharding_read(const fsdp_options *options, fsdp_sharding **sharding, fsdp_error *error);

// A line behind `head` for each of the axes that rules name (NULL: there are none), that --mesh does not give
// and that have one rank, so that nothing is cut over them. Axes data and fsdp belong to every mesh.
void fsdp_sharding_notes(const fsdp_options *options, const fsdp_sharding *sharding, const fsdp_mesh *mesh,
                         const char *head, FILE *out);
