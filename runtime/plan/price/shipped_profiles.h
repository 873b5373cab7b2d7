// The profiles in runtime/plan/price/profiles/, which are part of the executable.
#pragma once

typedef struct fsdp_shipped_profile {
  const char *name, *text; // text: the YAML that launcher/profile/profile_file.h reads
} fsdp_shipped_profile;

// At least one, in alphabetical order; ends with one without a name.
extern const fsdp_shipped_profile fsdp_shipped_profiles[];

// The one of that name, in capitals or not, or the only one whose name begins with it and a dash ("h100" is
// h100-sxm); else NULL.
const fsdp_shipped_profile *fsdp_shipped_profile_find(const char *name);
