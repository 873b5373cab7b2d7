// The profiles in runtime/plan/price/profiles/, which are part of the executable.
#pragma once

// Their number: at least one.
int fsdp_shipped_profile_count(void);

// Of profile i, in alphabetical order: its name, and the YAML that launcher/profile/profile_file.h reads.
const char *fsdp_shipped_profile_name(int i);
const char *fsdp_shipped_profile_text(int i);

// The index of the one of that name, in capitals or not, or of the only one whose name begins with it and a
// dash ("h100" is h100-sxm); else -1.
int fsdp_shipped_profile_find(const char *name);
