#include "runtime/checkpoint/checkpoint_ends.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"

#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

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
  FSDP_NEED_MEMORY(state, "a hash");
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

fsdp_status fsdp_checkpoint_ends_measure(const char *path, int descriptor, fsdp_checkpoint_ends *e,
                                         fsdp_error *error) {
  struct stat information;
  uint64_t length = 0;
  if (fstat(descriptor, &information) != 0 || !S_ISREG(information.st_mode))
    return fsdp_fail(error, FSDP_ERR_INPUT, "%s: is not a regular file; use another checkpoint", path);
  e->data_bytes = fsdp_checkpoint_data_bytes(e->checkpoint, e->rank);
  if (stands_in_manifest(e->checkpoint))
    e->header_bytes = e->checkpoint->files[e->rank].header_bytes;
  else if (fsdp_read_at(descriptor, 0, &length, LENGTH_BYTES) && length <= HEADER_BYTES_MAX)
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
  bool good =
      fsdp_read_at(descriptor, 0, header, e->header_bytes) &&
      fsdp_read_at(descriptor, e->header_bytes + e->data_bytes, *sums, count * (int64_t)sizeof **sums);
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
