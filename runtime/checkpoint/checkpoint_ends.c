#include "runtime/checkpoint/checkpoint_ends.h"

#include "runtime/base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define PATH_BYTES 4352
// The header's length, and the longest one that is believed.
#define LENGTH_BYTES     8
#define HEADER_BYTES_MAX ((int64_t)1 << 30)

static bool stands_in_manifest(const fsdp_checkpoint *c) {
  return c->files != NULL;
}

int64_t fsdp_checkpoint_ends_chunks(const fsdp_checkpoint_ends *e) {
  return (e->data_bytes + FSDP_CHECKPOINT_CHUNK_BYTES - 1) / FSDP_CHECKPOINT_CHUNK_BYTES;
}

int64_t fsdp_checkpoint_ends_sums(const fsdp_checkpoint_ends *e) {
  return fsdp_checkpoint_ends_chunks(e) + (stands_in_manifest(e->checkpoint) ? 0 : 2);
}

int64_t fsdp_checkpoint_ends_file_bytes(const fsdp_checkpoint_ends *e) {
  return e->header_bytes + e->data_bytes + fsdp_checkpoint_ends_sums(e) * (int64_t)sizeof(uint64_t);
}

void fsdp_checkpoint_ends_hash(const fsdp_checkpoint_ends *e, const void *header, const uint64_t *sums,
                               uint64_t checksum[2]) {
  XXH3_state_t *state = XXH3_createState();
  FSDP_CHECK(state, "out of host memory");
  XXH3_128bits_reset(state);
  if (!stands_in_manifest(e->checkpoint)) {
    const uint64_t whose[2] = {e->checkpoint->save, (uint64_t)e->rank};
    XXH3_128bits_update(state, whose, sizeof whose);
  }
  XXH3_128bits_update(state, header, (size_t)e->header_bytes);
  XXH3_128bits_update(state, sums, (size_t)fsdp_checkpoint_ends_chunks(e) * sizeof *sums);
  XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  checksum[0] = hash.high64;
  checksum[1] = hash.low64;
}

bool fsdp_checkpoint_read_at(int descriptor, int64_t offset, void *out, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    errno = 0;
    ssize_t got = pread(descriptor, (char *)out + done, (size_t)(bytes - done), (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += got;
  }
  return true;
}

fsdp_status fsdp_checkpoint_ends_measure(const char *path, int descriptor, fsdp_checkpoint_ends *e,
                                         fsdp_error *error) {
  struct stat information;
  uint64_t length = 0;
  if (fstat(descriptor, &information) != 0 || !S_ISREG(information.st_mode))
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is not a regular file; use another checkpoint", path);
  e->data_bytes = fsdp_checkpoint_data_bytes(e->checkpoint, e->rank);
  if (stands_in_manifest(e->checkpoint))
    e->header_bytes = e->checkpoint->files[e->rank].header_bytes;
  else if (fsdp_checkpoint_read_at(descriptor, 0, &length, LENGTH_BYTES) && length <= HEADER_BYTES_MAX)
    e->header_bytes = LENGTH_BYTES + (int64_t)length;
  else
    e->header_bytes = LENGTH_BYTES;
  int64_t sum = fsdp_checkpoint_ends_file_bytes(e);
  int64_t wanted = stands_in_manifest(e->checkpoint) ? e->checkpoint->files[e->rank].bytes : sum;
  if (information.st_size == wanted && wanted == sum) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: has %lld bytes, but the checkpoint says %lld: it is damaged; use another checkpoint",
                   path, (long long)information.st_size, (long long)wanted);
}

fsdp_status fsdp_checkpoint_ends_read(const char *path, int descriptor, const fsdp_checkpoint_ends *e,
                                      uint64_t **sums, fsdp_error *error) {
  int64_t chunks = fsdp_checkpoint_ends_chunks(e), count = fsdp_checkpoint_ends_sums(e);
  void *header = fsdp_alloc((size_t)e->header_bytes);
  uint64_t found[2];
  *sums = fsdp_alloc((size_t)count * sizeof **sums + 8);
  bool good = fsdp_checkpoint_read_at(descriptor, 0, header, e->header_bytes) &&
              fsdp_checkpoint_read_at(descriptor, e->header_bytes + e->data_bytes, *sums,
                                      count * (int64_t)sizeof **sums);
  if (good) fsdp_checkpoint_ends_hash(e, header, *sums, found);
  free(header);
  const uint64_t *said =
      stands_in_manifest(e->checkpoint) ? e->checkpoint->files[e->rank].checksum : *sums + chunks;
  bool same = good && memcmp(found, said, sizeof found) == 0;
  if (same) return FSDP_OK;
  free(*sums);
  *sums = NULL;
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s: it is damaged%s; use another checkpoint", path,
                   good ? "its header's or checksums' checksum does not match" : "its header cannot be read",
                   stands_in_manifest(e->checkpoint) ? "" : ", or of another save");
}

static fsdp_status fail_missing(const char *path, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: cannot be opened (%s), but belongs to the checkpoint; use another one", path,
                   strerror(errno));
}

static fsdp_status check_rank(const fsdp_checkpoint *c, const char *folder, int rank, fsdp_error *error) {
  char path[PATH_BYTES], name[FSDP_CHECKPOINT_NAME_BYTES];
  fsdp_checkpoint_ends ends = {.checkpoint = c, .rank = rank};
  snprintf(path, sizeof path, "%.4200s/%s", folder, fsdp_checkpoint_file_name(c, rank, name));
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return fail_missing(path, error);
  fsdp_status status = fsdp_checkpoint_ends_measure(path, descriptor, &ends, error);
  close(descriptor);
  return status;
}

static fsdp_status check_carried(const fsdp_checkpoint_file *file, const char *folder, fsdp_error *error) {
  char path[PATH_BYTES];
  struct stat information;
  snprintf(path, sizeof path, "%.4200s/" FSDP_CHECKPOINT_CARRIED "/%s", folder, file->name);
  if (stat(path, &information) != 0) return fail_missing(path, error);
  if (S_ISREG(information.st_mode) && information.st_size == file->bytes) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: has %lld bytes, but the checkpoint says %lld: it is damaged; use another checkpoint",
                   path, (long long)information.st_size, (long long)file->bytes);
}

fsdp_status fsdp_checkpoint_check_files(const fsdp_checkpoint *c, const char *folder, int part, int parts,
                                        fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  for (int r = part; r < c->file_count && status == FSDP_OK; r += parts)
    status = check_rank(c, folder, r, error);
  for (int i = part; i < c->carried_count && status == FSDP_OK; i += parts)
    status = check_carried(&c->carried[i], folder, error);
  return status;
}
