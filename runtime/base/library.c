#include "runtime/base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

// dlerror begins with the file's name where it cannot be opened.
static void *open_library(const fsdp_library *library, char *reason, size_t reason_bytes) {
  void *file = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
  if (file) return file;
  int written = snprintf(reason, reason_bytes, "%.240s", dlerror());
  char path[4096];
  if (*library->folder == '\0') return NULL;
  if (snprintf(path, sizeof path, "%s/%s", library->folder, library->file) >= (int)sizeof path) return NULL;
  file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!file) snprintf(reason + written, reason_bytes - (size_t)written, "; %.240s", dlerror());
  return file;
}

fsdp_status fsdp_library_load(const fsdp_library *library, fsdp_error *error) {
  char reason[512];
  void *file = open_library(library, reason, sizeof reason);
  if (!file) {
    return fsdp_fail(error, FSDP_ERR_PEER,
                     "%s cannot be loaded (%s): add the folder of %s, %s, to LD_LIBRARY_PATH, or %s",
                     library->title, reason, library->file, library->source, library->instead);
  }
  for (int i = 0; i < library->function_count; i++) {
    const fsdp_library_function *function = &library->functions[i];
    void *found = dlsym(file, function->name);
    if (!found && !function->is_optional) {
      return fsdp_fail(error, FSDP_ERR_PEER, "%s has no function %s: use %s %s or later, or %s",
                       library->file, function->name, library->title, library->least, library->instead);
    }
    memcpy(function->place, &found, sizeof found);
  }
  return FSDP_OK;
}
