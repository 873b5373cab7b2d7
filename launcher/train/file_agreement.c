#include "launcher/train/file_agreement.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"
#include "runtime/data/file_identity.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define SLICE_BYTES ((int64_t)16 << 20)
#define READ_BYTES  ((int64_t)1 << 20)
#define SHOWN_BYTES 384 // of a path in a message

#define REMEDY "every rank must read the same file: copy it to every node, or use a shared folder"

// What a rank sees of a file.
typedef struct sighting {
  int64_t bytes; // -1: cannot be read
  int reason;    // errno, or 0 if it is no regular file
  uint64_t identity;
} sighting;

typedef struct comparison {
  const fsdp_file_comparison *config;
  const fsdp_file_list *list;
  fsdp_world *world;
  fsdp_error *error;
  sighting *seen; // by this rank, of each file
  int *unlike;    // files that are not the same one everywhere
  int unlike_count;
  int *members;           // ranks of this rank's class
  int member_count, mine; // which of them this is
  int64_t bytes;          // of files with several classes
} comparison;

// ---- The list

void fsdp_file_list_add(fsdp_file_list *list, const char *what, const char *path) {
  list->files = fsdp_realloc(list->files, (size_t)(list->count + 1) * sizeof *list->files);
  char *copy = strdup(path);
  FSDP_NEED_MEMORY(copy, "a path");
  list->files[list->count++] = (fsdp_listed_file){what, copy};
}

void fsdp_file_list_destroy(fsdp_file_list *list) {
  for (int i = 0; i < list->count; i++) free(list->files[i].path);
  free(list->files);
  *list = (fsdp_file_list){0};
}

// "data a.txt\nweights m/model.safetensors\n"
static char *describe(const fsdp_file_list *list) {
  char *out = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&out, &bytes);
  FSDP_NEED_MEMORY(stream, "a list of files");
  for (int i = 0; i < list->count; i++) fprintf(stream, "%s %s\n", list->files[i].what, list->files[i].path);
  fclose(stream);
  return out;
}

bool fsdp_lines_agree(fsdp_world *world, const char *text, char *mine, char *first, size_t line_bytes) {
  char *other = fsdp_world_broadcast_text(world, text);
  const char *a = text, *b = other;
  while (*a && *b && strcspn(a, "\n") == strcspn(b, "\n") && !memcmp(a, b, strcspn(a, "\n"))) {
    a += strcspn(a, "\n") + 1;
    b += strcspn(b, "\n") + 1;
  }
  const bool agree = !*a && !*b;
  snprintf(mine, line_bytes, "%.*s", (int)strcspn(a, "\n"), a);
  snprintf(first, line_bytes, "%.*s", (int)strcspn(b, "\n"), b);
  free(other);
  return agree;
}

static fsdp_status agree_on_list(const comparison *c) {
  fsdp_world *world = c->world;
  char *list = describe(c->list), mine[SHOWN_BYTES], first[SHOWN_BYTES];
  c->error->status = FSDP_OK;
  if (!fsdp_lines_agree(world, list, mine, first, SHOWN_BYTES))
    fsdp_fail(c->error, FSDP_ERR_INPUT, "%s reads %s, but %s reads %s: every rank must read the same files",
              fsdp_world_rank_name(world, 0).text, *first ? first : "no further file",
              fsdp_world_rank_name(world, world->rank).text, *mine ? mine : "no further file");
  free(list);
  return fsdp_world_share_error(world, c->error);
}

// ---- What each rank sees

static sighting look_at(const char *path, int node, const char *mounts) {
  struct stat information;
  sighting seen = {.bytes = -1};
  bool found = stat(path, &information) == 0;
  if (!found || (S_ISREG(information.st_mode) && access(path, R_OK) != 0)) {
    seen.reason = errno;
  } else if (S_ISREG(information.st_mode)) {
    seen.bytes = information.st_size;
    seen.identity = fsdp_file_identity(&information, node, mounts);
  }
  return seen;
}

static void look_at_all(comparison *c) {
  char *mounts = fsdp_file_mounts_read(c->config->mounts ? c->config->mounts : "/proc/self/mountinfo");
  for (int f = 0; f < c->list->count; f++)
    c->seen[f] = look_at(c->list->files[f].path, c->world->node_index, mounts);
  free(mounts);
}

// ---- What differs

// A rank's file, for messages.
typedef struct portrait {
  char path[SHOWN_BYTES];
  int64_t bytes;
  int reason;
} portrait;

static portrait portrait_of(const comparison *c, int file, int rank) {
  const char *path = c->list->files[file].path;
  portrait made = {.bytes = c->seen[file].bytes, .reason = c->seen[file].reason};
  char *full = realpath(path, NULL);
  snprintf(made.path, sizeof made.path, "%s", full ? full : path);
  free(full);
  fsdp_world_broadcast_from(c->world, rank, &made, (int64_t)sizeof made);
  return made;
}

static fsdp_status fail_missing(const comparison *c, int file, int without, int with, int reason) {
  const fsdp_listed_file *f = &c->list->files[file];
  return fsdp_fail(c->error, FSDP_ERR_INPUT, "%s: %s cannot read this %s file (%s), but %s can; " REMEDY,
                   f->path, fsdp_world_rank_name(c->world, without).text, f->what,
                   reason ? strerror(reason) : "it is not a regular file",
                   fsdp_world_rank_name(c->world, with).text);
}

// Rank `other` sees another file than rank 0. All ranks make the message.
static fsdp_status fail_file(const comparison *c, int file, int other) {
  portrait a = portrait_of(c, file, 0), b = portrait_of(c, file, other);
  if (a.bytes < 0) return fail_missing(c, file, 0, other, a.reason);
  if (b.bytes < 0) return fail_missing(c, file, other, 0, b.reason);
  fsdp_rank_name first = fsdp_world_rank_name(c->world, 0), second = fsdp_world_rank_name(c->world, other);
  const char *what = c->list->files[file].what;
  if (a.bytes == b.bytes)
    return fsdp_fail(c->error, FSDP_ERR_INPUT,
                     "the ranks' %s files differ: %s on %s and %s on %s have the same size but different "
                     "contents; " REMEDY,
                     what, a.path, first.text, b.path, second.text);
  return fsdp_fail(c->error, FSDP_ERR_INPUT,
                   "the ranks' %s files differ: %s has %" PRId64 " bytes on %s, but %s has %" PRId64
                   " on %s; " REMEDY,
                   what, a.path, a.bytes, first.text, b.path, b.bytes, second.text);
}

// Compares sizes, and notes which files are not the same one everywhere.
static fsdp_status compare_sightings(comparison *c) {
  int count = c->list->count, *differs = fsdp_alloc(2 * (size_t)count * sizeof *differs);
  uint64_t *values = fsdp_alloc(2 * (size_t)count * sizeof *values);
  for (int f = 0; f < count; f++) {
    values[f] = (uint64_t)c->seen[f].bytes;
    values[count + f] = c->seen[f].identity;
  }
  fsdp_world_compare(c->world, values, 2 * count, differs);
  fsdp_status status = FSDP_OK;
  for (int f = 0; f < count && status == FSDP_OK; f++) {
    if (differs[f] >= 0) status = fail_file(c, f, differs[f]);
    if (differs[count + f] >= 0) c->unlike[c->unlike_count++] = f;
  }
  free(values);
  free(differs);
  return status;
}

// ---- Contents

static void find_class(comparison *c) {
  fsdp_world *world = c->world;
  uint64_t mine = 0, *all = fsdp_alloc((size_t)world->size * sizeof *all);
  c->members = fsdp_alloc((size_t)world->size * sizeof *c->members);
  for (int i = 0; i < c->unlike_count; i++)
    mine = XXH64(&c->seen[c->unlike[i]].identity, sizeof(uint64_t), mine);
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  for (int r = 0; r < world->size; r++) {
    if (all[r] != mine) continue;
    if (r < world->rank) c->mine++;
    c->members[c->member_count++] = r;
  }
  free(all);
}

static int64_t compared_bytes(const comparison *c, int file) {
  int64_t bytes = c->seen[file].bytes;
  return c->config->sizes_only ? fsdp_min_i64(bytes, SLICE_BYTES) : bytes;
}

// Adds the slice's hash. Sums of hashes that are seeded with their slices' numbers depend on the order of
// slices, but not on who hashed which.
static fsdp_status hash_slice(const char *path, int descriptor, int64_t slice, int64_t bytes, char *buffer,
                              uint64_t *sum, fsdp_error *error) {
  for (int64_t done = 0; done < bytes;) {
    ssize_t got = pread(descriptor, buffer + done, (size_t)fsdp_min_i64(READ_BYTES, bytes - done),
                        (off_t)(slice * SLICE_BYTES + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return fsdp_fail(error, FSDP_ERR_INPUT, "%s: reading it failed (%s); copy the file again", path,
                       got ? strerror(errno) : "the file became shorter");
    done += got;
    fsdp_progress_mark();
  }
  *sum += XXH3_64bits_withSeed(buffer, (size_t)bytes, (uint64_t)slice);
  return FSDP_OK;
}

// This rank's slices of file `index` of those that are unlike: files begin with different ranks of the class,
// so that many small ones are shared too.
static fsdp_status hash_share(comparison *c, int index, char *buffer, uint64_t *sum) {
  int file = c->unlike[index];
  const char *path = c->list->files[file].path;
  int64_t bytes = compared_bytes(c, file), slices = (bytes + SLICE_BYTES - 1) / SLICE_BYTES;
  int64_t first = (c->mine + index) % c->member_count;
  c->bytes += bytes;
  if (first >= slices) return FSDP_OK;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0)
    return fsdp_fail(c->error, FSDP_ERR_INPUT, "%s: cannot be opened (%s)", path, strerror(errno));
  fsdp_status status = FSDP_OK;
  for (int64_t s = first; s < slices && status == FSDP_OK; s += c->member_count) {
    int64_t length = fsdp_min_i64(SLICE_BYTES, bytes - s * SLICE_BYTES);
    status = hash_slice(path, descriptor, s, length, buffer, sum, c->error);
  }
  close(descriptor);
  return status;
}

static fsdp_status compare_contents(comparison *c) {
  const int count = c->unlike_count;
  uint64_t *sums = fsdp_alloc_zeroed((size_t)count, sizeof *sums);
  int *differs = fsdp_alloc((size_t)count * sizeof *differs);
  char *buffer = fsdp_alloc((size_t)SLICE_BYTES);
  find_class(c);
  c->error->status = FSDP_OK;
  fsdp_status status = FSDP_OK;
  for (int i = 0; i < count && status == FSDP_OK; i++) status = hash_share(c, i, buffer, &sums[i]);
  status = fsdp_world_share_error(c->world, c->error);
  if (status == FSDP_OK) {
    const fsdp_peers members = fsdp_world_among(c->world, c->members, c->member_count);
    fsdp_exchange_reduce(&members, FSDP_REDUCE_SUM, (int64_t *)sums, count);
    fsdp_world_compare(c->world, sums, count, differs);
    for (int i = 0; i < count && status == FSDP_OK; i++)
      if (differs[i] >= 0) status = fail_file(c, c->unlike[i], differs[i]);
  }
  free(buffer);
  free(differs);
  free(sums);
  free(c->members);
  return status;
}

// ---- All of it

fsdp_status fsdp_file_list_agree(const fsdp_file_comparison *config, fsdp_file_agreement *cost,
                                 fsdp_error *error) {
  int64_t began_ns = fsdp_now_ns();
  size_t count = (size_t)config->list->count;
  comparison c = {.config = config, .list = config->list, .world = config->world, .error = error};
  fsdp_status status = agree_on_list(&c);
  if (status == FSDP_OK && count > 0 && c.world->size > 1) {
    c.seen = fsdp_alloc_zeroed(count, sizeof *c.seen);
    c.unlike = fsdp_alloc(count * sizeof *c.unlike);
    look_at_all(&c);
    status = compare_sightings(&c);
    if (status == FSDP_OK && c.unlike_count > 0) status = compare_contents(&c);
    free(c.unlike);
    free(c.seen);
  }
  *cost = (fsdp_file_agreement){.bytes = c.bytes, .seconds = (double)(fsdp_now_ns() - began_ns) / 1e9};
  return status;
}
