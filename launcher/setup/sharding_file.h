// Sharding rules as options give them: --sharding FILE|PRESET, --shard NAME=SPEC, --extra-data-axis.
#pragma once

#include "launcher/options/options.h"
#include "runtime/plan/text/sharding_text.h"

// Reads what the options say. *sharding is NULL without --sharding; the caller destroys it. FSDP_ERR_INPUT,
// with file and line, for a file that is missing, is no YAML, or has anything but such a mapping;
// FSDP_ERR_OPTION for a wrong --shard.
fsdp_status fsdp_sharding_read(const fsdp_options *options, fsdp_sharding **sharding, fsdp_error *error);

// Of the axes that rules name, that --mesh does not give and that have one rank, so that nothing is cut over
// them, the one of this number, from 0. False if there are fewer. Axes data and fsdp belong to every mesh.
bool fsdp_sharding_note(const fsdp_options *options, const fsdp_sharding *sharding, const fsdp_mesh *mesh,
                        int number, char *note, size_t note_bytes);
