#include "runtime/base/folders.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

// The first `length` characters of the path.
static bool make_above(const char *path, size_t length) {
  char part[PATH_MAX];
  if (length >= sizeof part) {
    errno = ENAMETOOLONG;
    return false;
  }
  for (size_t end = 1; end <= length; end++) {
    if (end < length && path[end] != '/') continue;
    memcpy(part, path, end);
    part[end] = 0;
    struct stat information;
    if (mkdir(part, 0777) == 0) continue;
    // Of a folder on a disk that is read-only, say, only that it is there matters.
    int reason = errno;
    if (stat(part, &information) == 0 && S_ISDIR(information.st_mode)) continue;
    errno = reason == EEXIST ? ENOTDIR : reason;
    return false;
  }
  return true;
}

bool fsdp_make_folders(const char *path) {
  return make_above(path, strlen(path));
}

bool fsdp_make_parents(const char *path) {
  const char *slash = strrchr(path, '/');
  return !slash || slash == path || make_above(path, (size_t)(slash - path));
}
