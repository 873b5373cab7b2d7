#include "launcher/profile/profile_file.h"

#include "runtime/data/yaml_file.h"
#include "runtime/plan/text/profile_text.h"

#include <stdlib.h>
#include <unistd.h>

static char *find(const char *path) {
  return access(path, F_OK) == 0 ? realpath(path, NULL) : NULL;
}

fsdp_status fsdp_profile_read(const char *name_or_path, fsdp_device_profile **profile, fsdp_error *error) {
  return fsdp_profile_read_with(name_or_path, find, fsdp_yaml_visit_file, profile, error);
}
