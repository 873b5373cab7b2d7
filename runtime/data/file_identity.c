#include "runtime/data/file_identity.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <xxhash.h>

#define SOURCE_BYTES 512

// Whose inodes are the server's, and the same on every client.
static const char *const shared_types[] = {
    "nfs",   "nfs4", "lustre", "gpfs",   "beegfs", "ceph",    "cifs",           "smb3",
    "panfs", "afs",  "pvfs2",  "wekafs", "daosfs", "quobyte", "fuse.glusterfs", "fuse.juicefs"};

static bool is_shared(const char *type, size_t length) {
  for (size_t i = 0; i < sizeof shared_types / sizeof *shared_types; i++)
    if (strlen(shared_types[i]) == length && strncmp(type, shared_types[i], length) == 0) return true;
  return false;
}

// "type source" of a line "36 35 98:0 /root /mount options ... - type source options", if the type is shared.
static bool read_source(const char *line, size_t length, char out[SOURCE_BYTES]) {
  const char *end = line + length, *type = memmem(line, length, " - ", 3);
  if (!type) return false;
  type += 3;
  const char *source = memchr(type, ' ', (size_t)(end - type));
  if (!source || !is_shared(type, (size_t)(source - type))) return false;
  const char *last = memchr(source + 1, ' ', (size_t)(end - source - 1));
  if (!last) last = end;
  size_t bytes = (size_t)(last - type);
  if (last == source + 1 || bytes >= SOURCE_BYTES) return false;
  memcpy(out, type, bytes);
  out[bytes] = 0;
  return true;
}

// The source of the device's shared file system; false if it has none.
static bool find_source(dev_t device, const char *mounts, char out[SOURCE_BYTES]) {
  for (const char *line = mounts; *line;) {
    size_t length = strcspn(line, "\n");
    unsigned major_number, minor_number;
    bool found = sscanf(line, "%*u %*u %u:%u ", &major_number, &minor_number) == 2 &&
                 major_number == major(device) && minor_number == minor(device);
    if (found) return read_source(line, length, out);
    line += length + (line[length] == '\n');
  }
  return false;
}

uint64_t fsdp_file_identity(const struct stat *file, int node, const char *mounts) {
  struct {
    uint64_t inode, device, node;
    int64_t bytes, modified[2], changed[2];
    char source[SOURCE_BYTES];
  } known;
  memset(&known, 0, sizeof known);
  if (!find_source(file->st_dev, mounts, known.source)) {
    known.device = file->st_dev;
    known.node = (uint64_t)node + 1;
  }
  known.inode = file->st_ino;
  known.bytes = file->st_size;
  known.modified[0] = file->st_mtim.tv_sec, known.modified[1] = file->st_mtim.tv_nsec;
  known.changed[0] = file->st_ctim.tv_sec, known.changed[1] = file->st_ctim.tv_nsec;
  return XXH3_64bits(&known, sizeof known);
}

char *fsdp_file_mounts_read(const char *path) {
  int64_t bytes;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  char *text = file >= 0 ? fsdp_read_rest(file, INT64_MAX, &bytes) : NULL;
  if (file >= 0) close(file);
  return text ? text : fsdp_alloc_zeroed(1, 1);
}
