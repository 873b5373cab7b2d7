#include "runtime/base/paths.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- Folders

bool fsdp_has_file(const char *folder, const char *name) {
  char path[PATH_MAX];
  return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && access(path, F_OK) == 0;
}

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

// ---- Scripts

enum { FOLDER_BYTES = 4096, PATH_BYTES = FOLDER_BYTES + 128 };

// Of the program that runs, "" if that is not known.
static void find_folder(char folder[FOLDER_BYTES]) {
  const ssize_t length = readlink("/proc/self/exe", folder, FOLDER_BYTES - 1);
  folder[length > 0 ? length : 0] = 0;
  for (int cuts = 0; cuts < 2; cuts++) { // the program's name, and bin
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
  }
}

static bool is_same_file(const char *a, const char *b) {
  struct stat of_a, of_b;
  return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

const char *fsdp_script(const char *name) {
  static _Thread_local char path[PATH_BYTES];
  char folder[FOLDER_BYTES], here[96];
  find_folder(folder);
  snprintf(path, PATH_BYTES, "%s/share/fsdp/scripts/%.64s", folder, name);
  if (access(path, F_OK) == 0) return path;
  snprintf(path, PATH_BYTES, "%s/%.64s", FSDP_SCRIPTS, name);
  snprintf(here, sizeof here, "scripts/%.64s", name);
  if (is_same_file(here, path) || access(path, F_OK) != 0) snprintf(path, PATH_BYTES, "%s", here);
  return path;
}
