#include "runtime/checkpoint/checkpoint_folder.h"

#include "runtime/base/check.h"
#include "runtime/checkpoint/checkpoint_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define PATH_BYTES (FSDP_CHECKPOINT_PATH_BYTES + 256)

// Beside weights and config.json, what Transformers needs to load and use a model.
static const char *const carried_names[] = {"config.json",
                                            "generation_config.json",
                                            "tokenizer.json",
                                            "tokenizer.model",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "vocab.json",
                                            "merges.txt",
                                            "chat_template.jinja",
                                            "chat_template.json"};
enum { CARRIED_MAX = sizeof carried_names / sizeof *carried_names };

// ---- Files and folders

static fsdp_status fail_file(const char *path, const char *what, fsdp_error *error) {
  return fsdp_fail(error, FSDP_ERR_INPUT, "%s: %s failed (%s); make room there or give another folder", path,
                   what, strerror(errno));
}

bool fsdp_checkpoint_sync_folder(const char *folder) {
  int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool good = descriptor >= 0 && fsync(descriptor) == 0;
  if (descriptor >= 0) close(descriptor);
  return good;
}

static bool write_all(int descriptor, const char *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    ssize_t put = write(descriptor, data + done, bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    done += (size_t)put;
  }
  return true;
}

static fsdp_status write_file(const char *path, const char *data, size_t bytes, fsdp_error *error) {
  int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool good = descriptor >= 0 && write_all(descriptor, data, bytes) && fsync(descriptor) == 0;
  int reason = errno;
  if (descriptor >= 0 && close(descriptor) != 0 && good) {
    good = false;
    reason = errno;
  }
  errno = reason;
  return good ? FSDP_OK : fail_file(path, "writing", error);
}

fsdp_status fsdp_checkpoint_copy_file(const char *from, const char *to, uint64_t checksum[2],
                                      fsdp_error *error) {
  FILE *file = fopen(from, "rb");
  if (!file) return fail_file(from, "opening", error);
  char *data = NULL;
  size_t bytes = 0, capacity = 0, got = 1;
  while (got > 0) {
    if (bytes == capacity) data = fsdp_realloc(data, capacity = capacity * 2 + 65536);
    bytes += got = fread(data + bytes, 1, capacity - bytes, file);
  }
  fsdp_status status = ferror(file) ? fail_file(from, "reading", error) : FSDP_OK;
  fclose(file);
  XXH128_hash_t hash = XXH3_128bits(data, bytes);
  if (checksum) checksum[0] = hash.high64, checksum[1] = hash.low64;
  if (status == FSDP_OK) status = write_file(to, data, bytes, error);
  free(data);
  return status;
}

static int remove_one(const char *path, const struct stat *information, int kind, struct FTW *place) {
  (void)information, (void)kind, (void)place;
  remove(path);
  return 0;
}

void fsdp_checkpoint_remove_tree(const char *path) {
  nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

// ---- What is there

// "step-00000500" is 500 with an empty rest, "step-00000500.tmp" with ".tmp"; false for any other name.
static bool parse_name(const char *name, int64_t *step, const char **rest) {
  int used = 0;
  if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
  if (sscanf(name + 5, "%" SCNd64 "%n", step, &used) != 1) return false;
  *rest = name + 5 + used;
  return true;
}

void fsdp_checkpoint_clean(const char *folder) {
  DIR *listing = opendir(folder);
  if (!listing) return;
  for (struct dirent *entry; (entry = readdir(listing));) {
    int64_t step;
    const char *rest;
    char path[PATH_BYTES];
    if (!parse_name(entry->d_name, &step, &rest)) continue;
    if (strcmp(rest, ".tmp") != 0 && strcmp(rest, ".old") != 0) continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    // A complete one that was set aside for a successor that was never completed.
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%.*s", (int)(strlen(path) - strlen(rest)), path);
    bool saved = strcmp(rest, ".old") == 0 && access(whole, F_OK) != 0 && rename(path, whole) == 0;
    if (!saved) fsdp_checkpoint_remove_tree(path);
  }
  closedir(listing);
}

static int compare_entries(const void *left, const void *right) {
  const fsdp_checkpoint_entry *a = left, *b = right;
  int64_t age_a = a->sequence ? a->sequence : INT64_MAX, age_b = b->sequence ? b->sequence : INT64_MAX;
  if (age_a != age_b) return age_a < age_b ? 1 : -1;
  return a->step < b->step ? 1 : a->step > b->step ? -1 : 0;
}

int fsdp_checkpoint_list(const char *folder, fsdp_checkpoint_entry **entries) {
  DIR *listing = opendir(folder);
  int count = 0;
  *entries = NULL;
  if (!listing) return 0;
  for (struct dirent *entry; (entry = readdir(listing));) {
    int64_t step;
    const char *rest;
    if (!parse_name(entry->d_name, &step, &rest) || *rest) continue;
    *entries = fsdp_realloc(*entries, (size_t)(count + 1) * sizeof **entries);
    fsdp_checkpoint_entry *made = &(*entries)[count++];
    fsdp_checkpoint *checkpoint;
    *made = (fsdp_checkpoint_entry){.step = step};
    snprintf(made->path, sizeof made->path, "%.3800s/%s", folder, entry->d_name);
    if (fsdp_checkpoint_read_manifest(made->path, &checkpoint, NULL) == FSDP_OK) {
      made->sequence = checkpoint->sequence;
      fsdp_checkpoint_destroy(checkpoint);
    }
  }
  closedir(listing);
  if (count > 1) qsort(*entries, (size_t)count, sizeof **entries, compare_entries);
  return count;
}

// ---- Coming to be

void fsdp_checkpoint_paths(const char *folder, int64_t step, char temporary[FSDP_CHECKPOINT_PATH_BYTES],
                           char final[FSDP_CHECKPOINT_PATH_BYTES]) {
  snprintf(final, FSDP_CHECKPOINT_PATH_BYTES, "%.4000s/step-%08" PRId64, folder, step);
  snprintf(temporary, FSDP_CHECKPOINT_PATH_BYTES, "%.4000s/step-%08" PRId64 ".tmp", folder, step);
}

fsdp_status fsdp_checkpoint_begin(const char *folder, int64_t step, fsdp_error *error) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], final[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_paths(folder, step, temporary, final);
  fsdp_checkpoint_remove_tree(temporary);
  return mkdir(temporary, 0777) == 0 ? FSDP_OK : fail_file(temporary, "making it", error);
}

void fsdp_checkpoint_abandon(const char *folder, int64_t step) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], final[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_paths(folder, step, temporary, final);
  fsdp_checkpoint_remove_tree(temporary);
}

static fsdp_status carry(const char *model_folder, const char *temporary, fsdp_checkpoint *c,
                         fsdp_error *error) {
  char folder[PATH_BYTES], from[PATH_BYTES], to[PATH_BYTES + 64];
  c->carried_count = 0;
  if (!model_folder) return FSDP_OK;
  free(c->carried);
  c->carried = fsdp_alloc_zeroed(CARRIED_MAX, sizeof *c->carried);
  snprintf(folder, sizeof folder, "%s/" FSDP_CHECKPOINT_CARRIED, temporary);
  for (int i = 0; i < CARRIED_MAX; i++) {
    struct stat information;
    snprintf(from, sizeof from, "%.4095s/%s", model_folder, carried_names[i]);
    if (stat(from, &information) != 0 || !S_ISREG(information.st_mode)) continue;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return fail_file(folder, "making it", error);
    snprintf(to, sizeof to, "%s/%s", folder, carried_names[i]);
    fsdp_checkpoint_file *file = &c->carried[c->carried_count++];
    *file = (fsdp_checkpoint_file){.bytes = information.st_size};
    snprintf(file->name, sizeof file->name, "%s", carried_names[i]);
    fsdp_status status = fsdp_checkpoint_copy_file(from, to, file->checksum, error);
    if (status != FSDP_OK) return status;
  }
  if (c->carried_count > 0 && !fsdp_checkpoint_sync_folder(folder))
    return fail_file(folder, "syncing", error);
  return FSDP_OK;
}

static int64_t next_sequence(const char *folder) {
  fsdp_checkpoint_entry *entries;
  int64_t greatest = 0;
  int count = fsdp_checkpoint_list(folder, &entries);
  for (int i = 0; i < count; i++) {
    if (entries[i].sequence > greatest) greatest = entries[i].sequence;
  }
  free(entries);
  return greatest + 1;
}

// Gives the temporary folder its final name; an older checkpoint of that name steps aside first.
static fsdp_status rename_folder(const char *folder, const char *temporary, const char *final,
                                 fsdp_error *error) {
  char aside[PATH_BYTES];
  snprintf(aside, sizeof aside, "%s.old", final);
  bool replaces = access(final, F_OK) == 0;
  if (replaces) {
    fsdp_checkpoint_remove_tree(aside);
    if (rename(final, aside) != 0) return fail_file(final, "setting it aside", error);
  }
  if (rename(temporary, final) != 0) return fail_file(final, "giving it its name", error);
  if (!fsdp_checkpoint_sync_folder(folder)) return fail_file(folder, "syncing", error);
  if (replaces) fsdp_checkpoint_remove_tree(aside);
  return FSDP_OK;
}

fsdp_status fsdp_checkpoint_commit(const char *folder, const char *model_folder, fsdp_checkpoint *c,
                                   fsdp_error *error) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], final[FSDP_CHECKPOINT_PATH_BYTES], path[PATH_BYTES];
  fsdp_checkpoint_paths(folder, c->progress.step, temporary, final);
  fsdp_status status = carry(model_folder, temporary, c, error);
  // Also detects a folder that the ranks do not share.
  if (status == FSDP_OK) status = fsdp_checkpoint_check_files(c, temporary, error);
  if (status == FSDP_OK) {
    c->sequence = next_sequence(folder);
    snprintf(path, sizeof path, "%s/" FSDP_CHECKPOINT_MANIFEST, temporary);
    char *text = fsdp_checkpoint_print(c);
    status = write_file(path, text, strlen(text), error);
    free(text);
  }
  if (status == FSDP_OK && !fsdp_checkpoint_sync_folder(temporary)) {
    status = fail_file(temporary, "syncing", error);
  }
  if (status == FSDP_OK) status = rename_folder(folder, temporary, final, error);
  if (status != FSDP_OK) fsdp_checkpoint_remove_tree(temporary);
  return status;
}

void fsdp_checkpoint_prune(const char *folder, int keep) {
  if (keep <= 0) return;
  fsdp_checkpoint_entry *entries;
  int count = fsdp_checkpoint_list(folder, &entries), kept = 0;
  for (int i = 0; i < count; i++) {
    if (entries[i].sequence && kept++ < keep) continue;
    // An unreadable one stays while there are not enough others.
    if (!entries[i].sequence && count <= keep) continue;
    // Renamed first, as a half-removed folder must not count as complete; temporary ones never do.
    char aside[PATH_BYTES];
    snprintf(aside, sizeof aside, "%s.tmp", entries[i].path);
    fsdp_checkpoint_remove_tree(aside);
    if (rename(entries[i].path, aside) == 0) fsdp_checkpoint_remove_tree(aside);
  }
  free(entries);
}
