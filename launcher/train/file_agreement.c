#include "launcher/train/file_agreement.h"

#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/progress.h"
#include "runtime/base/size.h"

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
  int64_t bytes;  // -1: cannot be read
  int32_t reason; // errno, or 0 if it is no regular file
  int32_t node;
  uint64_t device, inode;
  int64_t modified_ns, changed_ns;
} sighting;

typedef struct digest {
  uint64_t high, low;
} digest;

// A file's classes: a rank's class is its lowest rank.
typedef struct classes {
  int *of; // by rank
  int count;
} classes;

typedef struct comparison {
  const fsdp_file_list *list;
  fsdp_world *world;
  fsdp_error *error;
  bool sizes_only;
  sighting *seen; // by rank, then file
  int64_t bytes;  // of files with several classes
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

static void copy_line(char out[SHOWN_BYTES], const char *line) {
  if (!*line) line = "no further file";
  snprintf(out, SHOWN_BYTES, "%.*s", (int)strcspn(line, "\n"), line);
}

static fsdp_status agree_on_list(const comparison *c) {
  fsdp_world *world = c->world;
  char *mine = describe(c->list), mine_at[SHOWN_BYTES], first_at[SHOWN_BYTES];
  char *first = fsdp_world_broadcast_text(world, mine);
  fsdp_rank_name *names = fsdp_world_rank_names(world);
  c->error->status = FSDP_OK;
  const char *a = mine, *b = first;
  while (*a && *b && strcspn(a, "\n") == strcspn(b, "\n") && !memcmp(a, b, strcspn(a, "\n"))) {
    a += strcspn(a, "\n") + 1;
    b += strcspn(b, "\n") + 1;
  }
  if (strcmp(a, b) != 0) {
    copy_line(mine_at, a);
    copy_line(first_at, b);
    fsdp_fail(c->error, FSDP_ERR_INPUT, "%s reads %s, but %s reads %s: every rank must read the same files",
              names[0].text, first_at, names[world->rank].text, mine_at);
  }
  free(names);
  free(first);
  free(mine);
  return fsdp_world_share_error(world, c->error);
}

// ---- What each rank sees

static int64_t ns_of(struct timespec time) {
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static sighting look_at(const char *path, int node) {
  struct stat information;
  sighting seen = {.bytes = -1, .node = node};
  bool found = stat(path, &information) == 0;
  if (!found || (S_ISREG(information.st_mode) && access(path, R_OK) != 0)) {
    seen.reason = errno;
  } else if (S_ISREG(information.st_mode)) {
    seen.bytes = information.st_size;
    seen.device = information.st_dev;
    seen.inode = information.st_ino;
    seen.modified_ns = ns_of(information.st_mtim);
    seen.changed_ns = ns_of(information.st_ctim);
  }
  return seen;
}

static const sighting *seen_by(const comparison *c, int rank, int file) {
  return &c->seen[(size_t)rank * (size_t)c->list->count + (size_t)file];
}

static bool is_same_file(const sighting *a, const sighting *b) {
  return a->node == b->node && a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
         a->modified_ns == b->modified_ns && a->changed_ns == b->changed_ns;
}

// The absolute path of `path` on every rank; the caller frees it. All ranks call it.
static char (*full_paths(fsdp_world *world, const char *path))[SHOWN_BYTES] {
  char mine[SHOWN_BYTES] = "", *full = realpath(path, NULL);
  snprintf(mine, sizeof mine, "%s", full ? full : path);
  free(full);
  char(*all)[SHOWN_BYTES] = fsdp_alloc((size_t)world->size * sizeof *all);
  fsdp_world_gather(world, mine, (int64_t)sizeof mine, all);
  return all;
}

static fsdp_status fail_missing(const comparison *c, int file, int without, int with) {
  const fsdp_listed_file *f = &c->list->files[file];
  fsdp_rank_name *names = fsdp_world_rank_names(c->world);
  int reason = seen_by(c, without, file)->reason;
  fsdp_status status = fsdp_fail(
      c->error, FSDP_ERR_INPUT, "%s: %s cannot read this %s file (%s), but %s can; " REMEDY, f->path,
      names[without].text, f->what, reason ? strerror(reason) : "it is not a regular file", names[with].text);
  free(names);
  return status;
}

static fsdp_status fail_size(const comparison *c, int file, int rank) {
  const fsdp_listed_file *f = &c->list->files[file];
  fsdp_rank_name *names = fsdp_world_rank_names(c->world);
  char(*paths)[SHOWN_BYTES] = full_paths(c->world, f->path);
  fsdp_status status = fsdp_fail(c->error, FSDP_ERR_INPUT,
                                 "the ranks' %s files differ: %s has %" PRId64 " bytes on %s, but %s has "
                                 "%" PRId64 " on %s; " REMEDY,
                                 f->what, paths[0], seen_by(c, 0, file)->bytes, names[0].text, paths[rank],
                                 seen_by(c, rank, file)->bytes, names[rank].text);
  free(paths);
  free(names);
  return status;
}

// Errors that follow from what all ranks saw, so that all return the same.
static fsdp_status check_sizes(const comparison *c, int file) {
  int with = -1, without = -1, other = -1;
  for (int r = 0; r < c->world->size; r++) {
    bool there = seen_by(c, r, file)->bytes >= 0;
    if (there && with < 0) with = r;
    if (!there && without < 0) without = r;
    if (other < 0 && seen_by(c, r, file)->bytes != seen_by(c, 0, file)->bytes) other = r;
  }
  if (with >= 0 && without >= 0) return fail_missing(c, file, without, with);
  return other < 0 ? FSDP_OK : fail_size(c, file, other);
}

// ---- Contents

static classes make_classes(const comparison *c, int file) {
  int size = c->world->size, *lowest = fsdp_alloc((size_t)size * sizeof *lowest);
  classes made = {.of = fsdp_alloc((size_t)size * sizeof *made.of)};
  for (int r = 0; r < size; r++) {
    int k = 0;
    while (k < made.count && !is_same_file(seen_by(c, r, file), seen_by(c, lowest[k], file))) k++;
    if (k == made.count) lowest[made.count++] = r;
    made.of[r] = lowest[k];
  }
  free(lowest);
  return made;
}

// Adds the slice's hash. Sums of hashes that are seeded with their slices' numbers depend on the order of
// slices, but not on who hashed which.
static fsdp_status hash_slice(const char *path, int descriptor, int64_t slice, int64_t bytes, void *buffer,
                              digest *sum, fsdp_error *error) {
  XXH3_state_t *state = XXH3_createState();
  FSDP_NEED_MEMORY(state, "a hash");
  XXH3_128bits_reset_withSeed(state, (uint64_t)slice);
  fsdp_status status = FSDP_OK;
  for (int64_t done = 0; done < bytes && status == FSDP_OK;) {
    ssize_t got = pread(descriptor, buffer, (size_t)fsdp_min_i64(READ_BYTES, bytes - done),
                        (off_t)(slice * SLICE_BYTES + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      status = fsdp_fail(error, FSDP_ERR_INPUT, "%s: reading it failed (%s); copy the file again", path,
                         got ? strerror(errno) : "the file became shorter");
    } else {
      XXH3_128bits_update(state, buffer, (size_t)got);
      done += got;
      fsdp_progress_mark();
    }
  }
  XXH128_hash_t hash = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  sum->high += hash.high64;
  sum->low += hash.low64;
  return status;
}

// This rank's slices of a file, summed.
static fsdp_status hash_share(comparison *c, int file, const classes *k, void *buffer, digest *sum) {
  int rank = c->world->rank, members = 0, mine = 0;
  for (int r = 0; r < c->world->size; r++) {
    if (r == rank) mine = members;
    members += k->of[r] == k->of[rank];
  }
  const char *path = c->list->files[file].path;
  int64_t bytes = seen_by(c, rank, file)->bytes;
  if (c->sizes_only) bytes = fsdp_min_i64(bytes, SLICE_BYTES);
  c->bytes += bytes;
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0)
    return fsdp_fail(c->error, FSDP_ERR_INPUT, "%s: cannot be opened (%s)", path, strerror(errno));
  fsdp_status status = FSDP_OK;
  int64_t slices = (bytes + SLICE_BYTES - 1) / SLICE_BYTES;
  // Files begin with different members, so that many small ones are shared too.
  for (int64_t s = 0; s < slices && status == FSDP_OK; s++) {
    if ((s + file) % members != mine) continue;
    int64_t length = fsdp_min_i64(SLICE_BYTES, bytes - s * SLICE_BYTES);
    status = hash_slice(path, descriptor, s, length, buffer, sum, c->error);
  }
  close(descriptor);
  return status;
}

static fsdp_status fail_contents(const comparison *c, int file, int rank) {
  const fsdp_listed_file *f = &c->list->files[file];
  fsdp_rank_name *names = fsdp_world_rank_names(c->world);
  char(*paths)[SHOWN_BYTES] = full_paths(c->world, f->path);
  fsdp_status status = fsdp_fail(
      c->error, FSDP_ERR_INPUT,
      "the ranks' %s files differ: %s on %s and %s on %s have the same size but different contents; " REMEDY,
      f->what, paths[0], names[0].text, paths[rank], names[rank].text);
  free(paths);
  free(names);
  return status;
}

// The first rank whose class hashed the file to a value different from rank 0's; -1 if there is none. `sums`
// are by rank, then file.
static int find_other(const comparison *c, int file, const classes *k, const digest *sums) {
  int size = c->world->size, other = -1;
  digest *whole = fsdp_alloc_zeroed((size_t)size, sizeof *whole); // by a class's lowest rank
  for (int r = 0; r < size; r++) {
    const digest *part = &sums[(size_t)r * (size_t)c->list->count + (size_t)file];
    whole[k->of[r]].high += part->high;
    whole[k->of[r]].low += part->low;
  }
  for (int r = 0; r < size && other < 0; r++) {
    const digest *a = &whole[k->of[r]], *b = &whole[k->of[0]];
    if (a->high != b->high || a->low != b->low) other = r;
  }
  free(whole);
  return other;
}

static fsdp_status agree_on_contents(comparison *c, const classes *k) {
  size_t count = (size_t)c->list->count;
  digest *mine = fsdp_alloc_zeroed(count, sizeof *mine);
  void *buffer = fsdp_alloc((size_t)READ_BYTES);
  c->error->status = FSDP_OK;
  fsdp_status status = FSDP_OK;
  for (int f = 0; f < c->list->count && status == FSDP_OK; f++) {
    if (k[f].count > 1) status = hash_share(c, f, &k[f], buffer, &mine[f]);
  }
  free(buffer);
  status = fsdp_world_share_error(c->world, c->error);
  if (status == FSDP_OK && c->bytes > 0) {
    digest *all = fsdp_alloc((size_t)c->world->size * count * sizeof *all);
    fsdp_world_gather(c->world, mine, (int64_t)(count * sizeof *mine), all);
    for (int f = 0; f < c->list->count && status == FSDP_OK; f++) {
      int other = k[f].count > 1 ? find_other(c, f, &k[f], all) : -1;
      if (other >= 0) status = fail_contents(c, f, other);
    }
    free(all);
  }
  free(mine);
  return status;
}

// ---- All of it

static fsdp_status agree_on_files(comparison *c) {
  int count = c->list->count, size = c->world->size;
  sighting *mine = fsdp_alloc_zeroed((size_t)count, sizeof *mine);
  classes *k = fsdp_alloc_zeroed((size_t)count, sizeof *k);
  c->seen = fsdp_alloc((size_t)size * (size_t)count * sizeof *c->seen);
  for (int f = 0; f < count; f++) mine[f] = look_at(c->list->files[f].path, c->world->node_index);
  fsdp_world_gather(c->world, mine, (int64_t)((size_t)count * sizeof *mine), c->seen);
  fsdp_status status = FSDP_OK;
  for (int f = 0; f < count && status == FSDP_OK; f++) status = check_sizes(c, f);
  for (int f = 0; f < count && status == FSDP_OK; f++) {
    k[f] = make_classes(c, f);
    if (seen_by(c, 0, f)->bytes < 0) k[f].count = 1; // no rank can read it
  }
  if (status == FSDP_OK) status = agree_on_contents(c, k);
  for (int f = 0; f < count; f++) free(k[f].of);
  free(k);
  free(mine);
  free(c->seen);
  return status;
}

fsdp_status fsdp_file_list_agree(const fsdp_file_list *list, fsdp_world *world, bool sizes_only,
                                 fsdp_file_agreement *cost, fsdp_error *error) {
  int64_t began_ns = fsdp_now_ns();
  comparison c = {.list = list, .world = world, .error = error, .sizes_only = sizes_only};
  fsdp_status status = agree_on_list(&c);
  if (status == FSDP_OK && list->count > 0 && world->size > 1) status = agree_on_files(&c);
  *cost = (fsdp_file_agreement){.bytes = c.bytes, .seconds = (double)(fsdp_now_ns() - began_ns) / 1e9};
  return status;
}
