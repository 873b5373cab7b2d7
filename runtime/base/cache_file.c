#include "runtime/base/cache_file.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FORMAT       "fsdp cache 1\n"
#define SUM_FORMAT   "xxh64 %016" PRIx64 "\n"
#define SUM_LENGTH   23
#define FILE_MAX     (16 << 20)
#define PATH_MAXIMUM 4096

// Where a file is, its folder, and what that lies in.
typedef struct place {
  char parent[PATH_MAXIMUM], folder[PATH_MAXIMUM], path[PATH_MAXIMUM];
} place;

// A relative XDG_CACHE_HOME is to be ignored (XDG Base Directory Specification).
static bool find(const char *name, place *at, char *why) {
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  int length = PATH_MAXIMUM;
  if (cache && cache[0] == '/')
    length = snprintf(at->parent, PATH_MAXIMUM, "%s", cache);
  else if (home && home[0] == '/')
    length = snprintf(at->parent, PATH_MAXIMUM, "%s/.cache", home);
  if (length < PATH_MAXIMUM && snprintf(at->folder, PATH_MAXIMUM, "%s/fsdp", at->parent) < PATH_MAXIMUM &&
      snprintf(at->path, PATH_MAXIMUM, "%s/%s", at->folder, name) < PATH_MAXIMUM)
    return true;
  snprintf(why, FSDP_CACHE_WHY_BYTES, "neither XDG_CACHE_HOME nor HOME names a folder to remember it in");
  return false;
}

static void refuse(const char *path, const char *reason, char *why) {
  snprintf(why, FSDP_CACHE_WHY_BYTES, "%.500s %s", path, reason);
}

// ---- Reading

// Opened so that neither a link nor a pipe in the file's place is followed or waited for.
static int open_own(const char *path, char *why) {
  struct stat status;
  int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) {
    if (errno != ENOENT && errno != ENOTDIR) refuse(path, strerror(errno), why);
    return -1;
  }
  const char *reason = NULL;
  if (fstat(file, &status) != 0)
    reason = strerror(errno);
  else if (!S_ISREG(status.st_mode))
    reason = "is not a file";
  else if (status.st_uid != geteuid())
    reason = "belongs to another user";
  else if (status.st_mode & (S_IWGRP | S_IWOTH))
    reason = "may be written by others";
  else if (status.st_size > FILE_MAX)
    reason = "is too large";
  if (!reason) return file;
  refuse(path, reason, why);
  close(file);
  return -1;
}

// Cuts the checksum off if it is right.
static bool check_sum(char *text, int64_t bytes) {
  char sum[SUM_LENGTH + 1];
  if (bytes < SUM_LENGTH || (int64_t)strlen(text) != bytes) return false;
  char *end = text + bytes - SUM_LENGTH;
  snprintf(sum, sizeof sum, SUM_FORMAT, XXH64(text, (size_t)(end - text), 0));
  if (strcmp(end, sum) != 0) return false;
  *end = 0;
  return true;
}

// What is behind the prefix; NULL if it does not begin so.
static char *behind(char *text, const char *prefix) {
  size_t length = strlen(prefix);
  return text && strncmp(text, prefix, length) == 0 ? text + length : NULL;
}

char *fsdp_cache_read(const char *name, const char *identity, char why[FSDP_CACHE_WHY_BYTES]) {
  place at;
  int64_t bytes;
  why[0] = 0;
  if (!find(name, &at, why)) return NULL;
  int file = open_own(at.path, why);
  if (file < 0) return NULL;
  char *text = fsdp_read_rest(file, FILE_MAX, &bytes), *lines = NULL;
  close(file);
  if (!text || !check_sum(text, bytes)) {
    refuse(at.path, "is damaged", why);
  } else {
    char *rest = behind(behind(text, FORMAT), identity);
    if ((rest = behind(rest, "\n"))) {
      lines = fsdp_alloc(strlen(rest) + 1);
      strcpy(lines, rest);
    }
  }
  free(text);
  return lines;
}

// ---- Writing

// 0 or errno.
static int replace(const char *path, const char *text, int64_t bytes) {
  char beside[PATH_MAXIMUM + 16];
  snprintf(beside, sizeof beside, "%s.XXXXXX", path);
  int file = mkstemp(beside);
  if (file < 0) return errno;
  int failure = fsdp_write_all(file, text, bytes) ? 0 : errno;
  if (close(file) != 0 && !failure) failure = errno;
  if (!failure && rename(beside, path) != 0) failure = errno;
  if (failure) unlink(beside);
  return failure;
}

bool fsdp_cache_write(const char *name, const char *identity, const char *text,
                      char why[FSDP_CACHE_WHY_BYTES]) {
  place at;
  FSDP_CHECK(!strchr(identity, '\n'), "an identity of several lines");
  why[0] = 0;
  if (!find(name, &at, why)) return false;
  mkdir(at.parent, 0700);
  mkdir(at.folder, 0700);
  size_t capacity = strlen(FORMAT) + strlen(identity) + strlen(text) + SUM_LENGTH + 2;
  char *all = fsdp_alloc(capacity);
  int length = snprintf(all, capacity, "%s%s\n%s", FORMAT, identity, text);
  length += snprintf(all + length, capacity - (size_t)length, SUM_FORMAT, XXH64(all, (size_t)length, 0));
  int failure = replace(at.path, all, length);
  free(all);
  if (!failure) return true;
  snprintf(why, FSDP_CACHE_WHY_BYTES, "%.500s cannot be written: %s", at.path, strerror(failure));
  return false;
}
