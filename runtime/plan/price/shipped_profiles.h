// The profiles in runtime/plan/price/profiles/, which are part of the executable.
#pragma once

// Their number: at least one.
int fsdp_shipped_profile_count(void);

// Of profile i, in alphabetical order: its name, and the YAML that launcher/profile/profile_file.h reads.
const char *fsdp_shipped_profile_name(int i);
const char *fsdp_shipped_profile_text(int i);

// Its index, or -1: in any case of letters, and without what follows a dash where one profile alone begins
// so.
int fsdp_shipped_profile_find(const char *name);
