#include "runtime/checkpoint/checkpoint_folder.h"

#include "runtime/base/check.h"
#include "runtime/base/descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define PATH_BYTES FSDP_CHECKPOINT_FILE_BYTES
#define OLD        ".old"
#define GONE       ".gone"

// Beside weights and config.json, what Transformers needs to load and use a model.
#define TOKENIZER     "tokenizer.json"
#define CHAT_TEMPLATE "chat_template.jinja"
#define TOOL_TEMPLATE "tool_use.jinja"
static const struct {
  const char *name;
  enum { OF_MODEL, OF_TOKENIZER, OF_BOTH } of; // both: the model's where the tokenizer has none
} carried_names[] = {{"config.json", OF_MODEL},
                     {"generation_config.json", OF_MODEL},
                     {TOKENIZER, OF_TOKENIZER},
                     {"tokenizer.model", OF_TOKENIZER},
                     {"tokenizer_config.json", OF_TOKENIZER},
                     {"special_tokens_map.json", OF_TOKENIZER},
                     {"added_tokens.json", OF_TOKENIZER},
                     {"vocab.json", OF_TOKENIZER},
                     {"merges.txt", OF_TOKENIZER},
                     {CHAT_TEMPLATE, OF_BOTH},
                     {"chat_template.json", OF_BOTH},
                     {TOOL_TEMPLATE, OF_TOKENIZER}};
enum { CARRIED_MAX = sizeof carried_names / sizeof *carried_names };

// ---- Files and folders

// `checksum` (may be NULL) becomes XXH3-128 of the data.
static fsdp_status write_file(const char *path, const char *data, int64_t bytes, uint64_t checksum[2],
                              fsdp_error *error) {
  XXH128_hash_t hash = XXH3_128bits(data, (size_t)bytes);
  if (checksum) checksum[0] = hash.high64, checksum[1] = hash.low64;
  int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool good = descriptor >= 0 && fsdp_write_all(descriptor, data, bytes) && fsync(descriptor) == 0;
  int reason = errno;
  if (descriptor >= 0 && close(descriptor) != 0 && good) {
    good = false;
    reason = errno;
  }
  errno = reason;
  return good ? FSDP_OK : fsdp_fail_write(path, "writing", error);
}

fsdp_status fsdp_checkpoint_copy_file(const char *from, const char *to, uint64_t checksum[2],
                                      fsdp_error *error) {
  int64_t bytes;
  int descriptor = open(from, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fsdp_fail_write(from, "opening", error);
  char *data = fsdp_read_rest(descriptor, INT64_MAX, &bytes);
  fsdp_status status =
      data ? write_file(to, data, bytes, checksum, error) : fsdp_fail_write(from, "reading", error);
  close(descriptor);
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

const char *fsdp_checkpoint_path(const char *folder, int64_t step, const char *ending,
                                 char path[FSDP_CHECKPOINT_PATH_BYTES]) {
  snprintf(path, FSDP_CHECKPOINT_PATH_BYTES, "%.4000s/step-%08" PRId64 "%s", folder, step, ending);
  return path;
}

// "step-00000500" is 500 with an empty rest, "step-00000500.tmp" with ".tmp"; false for any other name.
static bool parse_name(const char *name, int64_t *step, const char **rest) {
  int used = 0;
  if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return false;
  if (sscanf(name + 5, "%" SCNd64 "%n", step, &used) != 1) return false;
  *rest = name + 5 + used;
  return true;
}

int64_t fsdp_checkpoint_named_step(const char *path) {
  int64_t step;
  const char *rest;
  char name[FSDP_CHECKPOINT_PATH_BYTES];
  snprintf(name, sizeof name, "%s", path);
  for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--) name[n - 1] = 0;
  const char *slash = strrchr(name, '/');
  return parse_name(slash ? slash + 1 : name, &step, &rest) && !*rest ? step : -1;
}

static int compare_entries(const void *left, const void *right) {
  const fsdp_checkpoint_entry *a = left, *b = right;
  int64_t age_a = a->sequence ? a->sequence : INT64_MAX, age_b = b->sequence ? b->sequence : INT64_MAX;
  if (age_a != age_b) return age_a < age_b ? 1 : -1;
  if (a->step != b->step) return a->step < b->step ? 1 : -1;
  return strcmp(a->path, b->path);
}

// Fills in the sequence, from what is known of the same manifest if it is.
static void find_sequence(fsdp_checkpoint_entry *made, const fsdp_checkpoint_index *known) {
  char manifest[PATH_BYTES];
  struct stat information;
  fsdp_checkpoint *checkpoint;
  snprintf(manifest, sizeof manifest, "%s/" FSDP_CHECKPOINT_MANIFEST, made->path);
  if (stat(manifest, &information) != 0) return;
  made->inode = (int64_t)information.st_ino;
  made->bytes = information.st_size;
  made->changed_ns = (int64_t)information.st_ctim.tv_sec * 1000000000 + information.st_ctim.tv_nsec;
  for (int i = 0; i < known->count; i++) {
    const fsdp_checkpoint_entry *k = &known->entries[i];
    bool same = k->sequence && k->step == made->step && k->inode == made->inode && k->bytes == made->bytes &&
                k->changed_ns == made->changed_ns;
    if (!same) continue;
    made->sequence = k->sequence;
    made->eval_loss = k->eval_loss;
    made->evaluated_from = k->evaluated_from;
    return;
  }
  if (fsdp_checkpoint_read_manifest(made->path, &checkpoint, NULL) != FSDP_OK) return;
  made->sequence = checkpoint->sequence;
  made->eval_loss = checkpoint->progress.results.eval_loss;
  made->evaluated_from = checkpoint->progress.results.evaluated_from;
  fsdp_checkpoint_destroy(checkpoint);
}

static bool is_checkpoint(const char *path) {
  char manifest[PATH_BYTES + 32];
  snprintf(manifest, sizeof manifest, "%.4200s/" FSDP_CHECKPOINT_MANIFEST, path);
  return access(manifest, F_OK) == 0;
}

// The complete checkpoints that have names of steps, or those that have others.
static fsdp_checkpoint_index list(const char *folder, bool named_by_step,
                                  const fsdp_checkpoint_index *known) {
  DIR *listing = opendir(folder);
  fsdp_checkpoint_index found = {0};
  for (struct dirent *entry; listing && (entry = readdir(listing));) {
    fsdp_checkpoint_entry made = {.step = -1};
    const char *rest;
    const bool has_step = parse_name(entry->d_name, &made.step, &rest);
    if (named_by_step ? !has_step || *rest : has_step || entry->d_name[0] == '.') continue;
    snprintf(made.path, sizeof made.path, "%.3800s/%s", folder, entry->d_name);
    if (!named_by_step && !is_checkpoint(made.path)) continue;
    if (named_by_step) find_sequence(&made, known);
    found.entries = fsdp_realloc(found.entries, (size_t)(found.count + 1) * sizeof *found.entries);
    found.entries[found.count++] = made;
  }
  if (listing) closedir(listing);
  if (found.count > 1) qsort(found.entries, (size_t)found.count, sizeof *found.entries, compare_entries);
  return found;
}

void fsdp_checkpoint_refresh(const char *folder, fsdp_checkpoint_index *index) {
  const fsdp_checkpoint_index found = list(folder, true, index);
  free(index->entries);
  *index = found;
}

int fsdp_checkpoint_list(const char *folder, fsdp_checkpoint_entry **entries) {
  fsdp_checkpoint_index index = {0};
  fsdp_checkpoint_refresh(folder, &index);
  *entries = index.entries;
  return index.count;
}

int fsdp_checkpoint_best(const fsdp_checkpoint_entry *entries, int count) {
  int best = -1;
  for (int i = 0; i < count; i++) {
    const fsdp_checkpoint_entry *e = &entries[i];
    if (e->eval_loss <= 0 || (best >= 0 && e->evaluated_from != entries[best].evaluated_from)) continue;
    if (best < 0 || e->eval_loss < entries[best].eval_loss) best = i;
  }
  return best;
}

int fsdp_checkpoint_list_kept(const char *folder, fsdp_checkpoint_entry **entries) {
  const fsdp_checkpoint_index found = list(folder, false, NULL);
  *entries = found.entries;
  return found.count;
}

// Of the folder's checkpoints, newest first, the one that a word means; -1: none.
static int find_step(const fsdp_checkpoint_entry *entries, int count, const char *word) {
  int64_t step;
  int used = 0;
  if (strcmp(word, "best") == 0) return fsdp_checkpoint_best(entries, count);
  const char *number = strncmp(word, "step-", 5) == 0 ? word + 5 : word;
  if (*number < '0' || *number > '9' || sscanf(number, "%" SCNd64 "%n", &step, &used) != 1 || number[used])
    return -1;
  for (int i = 0; i < count; i++)
    if (entries[i].step == step) return i;
  return -1;
}

bool fsdp_checkpoint_named(const char *folder, const char *word, char path[FSDP_CHECKPOINT_PATH_BYTES]) {
  fsdp_checkpoint_entry *entries;
  const int count = fsdp_checkpoint_list(folder, &entries), found = find_step(entries, count, word);
  if (found >= 0) snprintf(path, FSDP_CHECKPOINT_PATH_BYTES, "%s", entries[found].path);
  free(entries);
  if (found >= 0) return true;
  int64_t step;
  const char *rest;
  char kept[PATH_BYTES];
  if (!*word || *word == '.' || strchr(word, '/') || parse_name(word, &step, &rest)) return false;
  snprintf(kept, sizeof kept, "%.3800s/%.256s", folder, word);
  if (!is_checkpoint(kept)) return false;
  snprintf(path, FSDP_CHECKPOINT_PATH_BYTES, "%.4090s", kept);
  return true;
}

bool fsdp_checkpoint_below(const char *path, char found[FSDP_CHECKPOINT_PATH_BYTES]) {
  char experiment[FSDP_CHECKPOINT_PATH_BYTES];
  snprintf(experiment, sizeof experiment, "%.4000s", path);
  char *slash = strrchr(experiment, '/');
  if (slash) *slash = 0;
  return fsdp_checkpoint_named(slash ? experiment : ".", slash ? slash + 1 : path, found);
}

bool fsdp_checkpoint_at(const char *path, char found[FSDP_CHECKPOINT_PATH_BYTES]) {
  fsdp_checkpoint_entry *entries;
  snprintf(found, FSDP_CHECKPOINT_PATH_BYTES, "%.4000s", path);
  if (is_checkpoint(path) || fsdp_checkpoint_below(path, found)) return true;
  const int count = fsdp_checkpoint_list(path, &entries);
  if (count > 0) snprintf(found, FSDP_CHECKPOINT_PATH_BYTES, "%s", entries[0].path);
  free(entries);
  return count > 0;
}

// ---- Going

// How many ranks' files the folder may have, from the names in it.
static void count_files(const char *path, fsdp_checkpoint_gone *gone) {
  DIR *listing = opendir(path);
  for (struct dirent *entry; listing && (entry = readdir(listing));) {
    int rank, end = -1;
    if (sscanf(entry->d_name, "ranks-%d%n", &rank, &end) == 1 && !entry->d_name[end]) {
      gone->in_folders = true;
      rank += FSDP_CHECKPOINT_FOLDER_FILES - 1;
    } else if (sscanf(entry->d_name, "rank-%d", &rank) != 1) {
      continue;
    }
    if (rank >= gone->file_count && rank < FSDP_MESH_RANKS_MAX) gone->file_count = rank + 1;
  }
  if (listing) closedir(listing);
}

const char *fsdp_checkpoint_print_names(const char *folder, char out[FSDP_CHECKPOINT_NAMES_BYTES]) {
  fsdp_checkpoint_entry *entries, *kept;
  const int step_count = fsdp_checkpoint_list(folder, &entries);
  const int count = step_count + fsdp_checkpoint_list_kept(folder, &kept);
  int shown = 0;
  size_t used = 0;
  *out = 0;
  for (; shown < count; shown++) {
    char name[FSDP_CHECKPOINT_NAMES_BYTES];
    if (shown < step_count)
      snprintf(name, sizeof name, "step-%" PRId64, entries[shown].step);
    else
      snprintf(name, sizeof name, "%.100s", strrchr(kept[shown - step_count].path, '/') + 1);
    if (used + strlen(name) >= FSDP_CHECKPOINT_NAMES_BYTES - 32) break;
    used += (size_t)snprintf(out + used, FSDP_CHECKPOINT_NAMES_BYTES - used, "%s%s", shown ? ", " : " has ",
                             name);
  }
  if (shown < count) snprintf(out + used, FSDP_CHECKPOINT_NAMES_BYTES - used, " and %d more", count - shown);
  if (count == 0) snprintf(out, FSDP_CHECKPOINT_NAMES_BYTES, " has none");
  free(entries);
  free(kept);
  return out;
}

// Renamed first: a folder of which files are missing must not look complete.
static void set_gone(const char *folder, int64_t step, const char *path, fsdp_checkpoint_gone_list *list) {
  char gone[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_path(folder, step, GONE, gone);
  if (strcmp(path, gone) != 0) {
    fsdp_checkpoint_remove_tree(gone);
    if (rename(path, gone) != 0) return;
  }
  if (list->count == FSDP_CHECKPOINT_GONE_MAX) {
    fsdp_checkpoint_remove_tree(gone);
    return;
  }
  fsdp_checkpoint_gone *item = &list->items[list->count++];
  *item = (fsdp_checkpoint_gone){.step = step};
  count_files(gone, item);
}

// The folders of this name's ending, at most as many as the list has room for.
static void clean_ending(const char *folder, const char *ending, fsdp_checkpoint_gone_list *gone) {
  char whole[FSDP_CHECKPOINT_PATH_BYTES], path[FSDP_CHECKPOINT_PATH_BYTES];
  int64_t step, steps[FSDP_CHECKPOINT_GONE_MAX];
  int count = 0;
  const char *rest;
  DIR *listing = opendir(folder);
  if (!listing) return;
  for (struct dirent *entry; count < FSDP_CHECKPOINT_GONE_MAX && (entry = readdir(listing));)
    if (parse_name(entry->d_name, &step, &rest) && strcmp(rest, ending) == 0) steps[count++] = step;
  closedir(listing);
  for (int i = 0; i < count; i++) {
    fsdp_checkpoint_path(folder, steps[i], "", whole);
    fsdp_checkpoint_path(folder, steps[i], ending, path);
    // A complete one that was set aside for a successor that was never completed.
    bool saved = strcmp(ending, OLD) == 0 && access(whole, F_OK) != 0 && rename(path, whole) == 0;
    if (!saved) set_gone(folder, steps[i], path, gone);
  }
}

void fsdp_checkpoint_clean(const char *folder, fsdp_checkpoint_gone_list *gone) {
  clean_ending(folder, GONE, gone);
  clean_ending(folder, OLD, gone);
  clean_ending(folder, FSDP_CHECKPOINT_UNFINISHED, gone);
}

void fsdp_checkpoint_remove_files(const char *folder, const fsdp_checkpoint_gone_list *gone, int part,
                                  int parts) {
  char path[FSDP_CHECKPOINT_PATH_BYTES], file[PATH_BYTES];
  for (int64_t i = 0; i < gone->count; i++) {
    const fsdp_checkpoint_gone *item = &gone->items[i];
    // Names follow from the number of files alone.
    const fsdp_checkpoint layout = {.file_count = item->in_folders ? FSDP_MESH_RANKS_MAX : 1};
    fsdp_checkpoint_path(folder, item->step, GONE, path);
    for (int rank = part; rank < item->file_count; rank += parts)
      unlink(fsdp_checkpoint_file_path(&layout, path, rank, file));
  }
}

void fsdp_checkpoint_remove_rest(const char *folder, fsdp_checkpoint_gone_list *gone) {
  char path[FSDP_CHECKPOINT_PATH_BYTES];
  for (int64_t i = 0; i < gone->count; i++)
    fsdp_checkpoint_remove_tree(fsdp_checkpoint_path(folder, gone->items[i].step, GONE, path));
  gone->count = 0;
}

// ---- Coming to be

static void mark_path(const char *folder, int64_t step, uint64_t save, char path[PATH_BYTES]) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES];
  snprintf(path, PATH_BYTES, "%s/save-%016" PRIx64,
           fsdp_checkpoint_path(folder, step, FSDP_CHECKPOINT_UNFINISHED, temporary), save);
}

fsdp_status fsdp_checkpoint_begin(const char *folder, int64_t step, uint64_t save, fsdp_error *error) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], mark[PATH_BYTES];
  fsdp_checkpoint_path(folder, step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  fsdp_checkpoint_remove_tree(temporary);
  if (mkdir(temporary, 0777) != 0) return fsdp_fail_write(temporary, "making it", error);
  mark_path(folder, step, save, mark);
  int descriptor = open(mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return fsdp_fail_write(mark, "making it", error);
  close(descriptor);
  return FSDP_OK;
}

fsdp_status fsdp_checkpoint_find_mark(const char *folder, int64_t step, uint64_t save, fsdp_error *error) {
  char mark[PATH_BYTES];
  mark_path(folder, step, save, mark);
  if (access(mark, F_OK) == 0) return FSDP_OK;
  return fsdp_fail(error, FSDP_ERR_INPUT,
                   "%s: is not there (%s), though rank 0 has made it: every rank must see the same folder; "
                   "use a --save-dir that all nodes share",
                   mark, strerror(errno));
}

void fsdp_checkpoint_abandon(const char *folder, const fsdp_checkpoint *c, int rank) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], path[PATH_BYTES];
  fsdp_checkpoint_path(folder, c->progress.step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  unlink(fsdp_checkpoint_file_path(c, temporary, rank, path));
  if (rank == 0) fsdp_checkpoint_remove_tree(temporary);
}

const char *fsdp_checkpoint_place(const char *name) {
  return strcmp(name, TOOL_TEMPLATE) ? name : "additional_chat_templates/" TOOL_TEMPLATE;
}

static bool is_file(const char *path, struct stat *information) {
  return stat(path, information) == 0 && S_ISREG(information->st_mode);
}

// Where the file of this index of carried_names is; false: there is none.
static bool find_source(const fsdp_checkpoint_model *model, int index, char from[PATH_BYTES],
                        struct stat *information) {
  const char *name = fsdp_checkpoint_place(carried_names[index].name);
  const char *slash = model->tokenizer ? strrchr(model->tokenizer, '/') : NULL;
  if (model->tokenizer && carried_names[index].of != OF_MODEL) {
    if (strcmp(name, TOKENIZER) == 0)
      snprintf(from, PATH_BYTES, "%.4095s", model->tokenizer);
    else
      snprintf(from, PATH_BYTES, "%.*s%s", slash ? (int)(slash + 1 - model->tokenizer) : 0, model->tokenizer,
               name);
    if (is_file(from, information) || carried_names[index].of == OF_TOKENIZER)
      return is_file(from, information);
  }
  if (!model->folder) return false;
  snprintf(from, PATH_BYTES, "%.4095s/%s", model->folder, name);
  return is_file(from, information);
}

static fsdp_status carry(const fsdp_checkpoint_model *model, const char *temporary, fsdp_checkpoint *c,
                         fsdp_error *error) {
  char folder[PATH_BYTES], from[PATH_BYTES], to[PATH_BYTES + 64];
  c->carried_count = 0;
  c->carries_tokenizer = false;
  if (!model || (!model->folder && !model->tokenizer && !model->chat_template)) return FSDP_OK;
  free(c->carried);
  c->carried = fsdp_alloc_zeroed(CARRIED_MAX, sizeof *c->carried);
  snprintf(folder, sizeof folder, "%s/" FSDP_CHECKPOINT_CARRIED, temporary);
  for (int i = 0; i < CARRIED_MAX; i++) {
    struct stat information = {.st_size = (off_t)model->chat_template_bytes};
    const char *name = carried_names[i].name;
    bool is_of_data = model->chat_template && !strcmp(name, CHAT_TEMPLATE);
    if (!is_of_data && !find_source(model, i, from, &information)) continue;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return fsdp_fail_write(folder, "making it", error);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    fsdp_checkpoint_file *file = &c->carried[c->carried_count++];
    *file = (fsdp_checkpoint_file){.bytes = information.st_size};
    snprintf(file->name, sizeof file->name, "%s", name);
    fsdp_status status =
        is_of_data ? write_file(to, model->chat_template, model->chat_template_bytes, file->checksum, error)
                   : fsdp_checkpoint_copy_file(from, to, file->checksum, error);
    if (status != FSDP_OK) return status;
    c->carries_tokenizer |= model->tokenizer && !strcmp(name, TOKENIZER);
  }
  if (c->carried_count > 0 && !fsdp_sync_folder(folder)) return fsdp_fail_write(folder, "syncing", error);
  return FSDP_OK;
}

static int64_t next_sequence(const char *folder, fsdp_checkpoint_index *index) {
  int64_t greatest = 0;
  fsdp_checkpoint_refresh(folder, index);
  for (int i = 0; i < index->count; i++) {
    if (index->entries[i].sequence > greatest) greatest = index->entries[i].sequence;
  }
  return greatest + 1;
}

// Gives the temporary folder its final name; an older checkpoint of that name steps aside first.
static fsdp_status rename_folder(const char *folder, int64_t step, fsdp_checkpoint_gone_list *gone,
                                 fsdp_error *error) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], final[FSDP_CHECKPOINT_PATH_BYTES];
  char aside[FSDP_CHECKPOINT_PATH_BYTES];
  fsdp_checkpoint_path(folder, step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  fsdp_checkpoint_path(folder, step, "", final);
  fsdp_checkpoint_path(folder, step, OLD, aside);
  bool replaces = access(final, F_OK) == 0;
  if (replaces) {
    fsdp_checkpoint_remove_tree(aside);
    if (rename(final, aside) != 0) return fsdp_fail_write(final, "setting it aside", error);
  }
  if (rename(temporary, final) != 0) return fsdp_fail_write(final, "giving it its name", error);
  if (!fsdp_sync_folder(folder)) return fsdp_fail_write(folder, "syncing", error);
  if (replaces) set_gone(folder, step, aside, gone);
  return FSDP_OK;
}

static fsdp_status write_manifest(const char *temporary, const fsdp_checkpoint *c, fsdp_error *error) {
  char path[PATH_BYTES], *text = fsdp_checkpoint_print(c);
  snprintf(path, sizeof path, "%s/" FSDP_CHECKPOINT_MANIFEST, temporary);
  fsdp_status status = write_file(path, text, (int64_t)strlen(text), NULL, error);
  free(text);
  return status;
}

fsdp_status fsdp_checkpoint_commit(const char *folder, const fsdp_checkpoint_model *model, fsdp_checkpoint *c,
                                   fsdp_checkpoint_index *index, fsdp_checkpoint_gone_list *gone,
                                   fsdp_error *error) {
  char temporary[FSDP_CHECKPOINT_PATH_BYTES], mark[PATH_BYTES];
  fsdp_checkpoint_path(folder, c->progress.step, FSDP_CHECKPOINT_UNFINISHED, temporary);
  mark_path(folder, c->progress.step, c->save, mark);
  fsdp_status status = carry(model, temporary, c, error);
  if (status == FSDP_OK && unlink(mark) != 0) status = fsdp_fail_write(mark, "removing it", error);
  c->sequence = next_sequence(folder, index);
  if (status == FSDP_OK) status = write_manifest(temporary, c, error);
  if (status == FSDP_OK && !fsdp_sync_folder(temporary)) {
    status = fsdp_fail_write(temporary, "syncing", error);
  }
  if (status == FSDP_OK) status = rename_folder(folder, c->progress.step, gone, error);
  if (status != FSDP_OK) fsdp_checkpoint_remove_tree(temporary);
  return status;
}

void fsdp_checkpoint_prune(const char *folder, const fsdp_checkpoint_keep *which,
                           fsdp_checkpoint_index *index, fsdp_checkpoint_gone_list *gone) {
  int keep = which->newest;
  if (keep <= 0) return;
  fsdp_checkpoint_refresh(folder, index);
  int best = which->best ? fsdp_checkpoint_best(index->entries, index->count) : -1;
  int64_t before = gone->count;
  for (int i = 0, kept = 0; i < index->count && gone->count < FSDP_CHECKPOINT_GONE_MAX; i++) {
    const fsdp_checkpoint_entry *entry = &index->entries[i];
    if (entry->sequence && kept++ < keep) continue;
    // An unreadable one stays while there are not enough others.
    if (!entry->sequence && index->count <= keep) continue;
    if (i == best) continue;
    set_gone(folder, entry->step, entry->path, gone);
  }
  // No file goes before the names have: else a crash might bring a name back without its files.
  if (gone->count > before) fsdp_sync_folder(folder);
}

void fsdp_checkpoint_drop(const char *folder, fsdp_checkpoint_gone_list *gone) {
  fsdp_checkpoint_entry *entries;
  int count = fsdp_checkpoint_list(folder, &entries);
  for (int i = 0; i < count; i++) set_gone(folder, entries[i].step, entries[i].path, gone);
  free(entries);
  fsdp_sync_folder(folder);
}
