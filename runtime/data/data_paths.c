#include "runtime/data/data_paths.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/value.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN 3 // files that a message suggests

static void add_file(fsdp_data_paths *paths, const char *path) {
  paths->files = fsdp_grow(paths->files, paths->count + 1, &paths->capacity, sizeof *paths->files);
  paths->files[paths->count++] = fsdp_strdup(path, "a path");
}

static int compare_paths(const void *left, const void *right) {
  return strcmp(*(char *const *)left, *(char *const *)right);
}

// ---- What a pattern that matches nothing may have meant

typedef struct candidate {
  char *name;
  int alike; // letters that it begins with as the pattern does
} candidate;

typedef struct candidates {
  candidate *list;
  int count;
} candidates;

static int compare_candidates(const void *left, const void *right) {
  const candidate *a = left, *b = right;
  return a->alike != b->alike ? b->alike - a->alike : strcmp(a->name, b->name);
}

// What every match must end in: ".bin" of "train_*.bin", "" of "train_*".
static const char *ending_of(const char *pattern) {
  const char *tail = pattern + strlen(pattern);
  while (tail > pattern && !strchr("*?]/", tail[-1])) tail--;
  const char *dot = strrchr(tail, '.');
  return dot ? dot : "";
}

// The visible names in `folder` with this ending, those first that begin like `pattern`. Returns 0, or errno
// if it cannot be read.
static int list_candidates(const char *folder, const char *pattern, const char *ending, candidates *found) {
  DIR *stream = opendir(folder);
  *found = (candidates){0};
  if (!stream) return errno;
  for (const struct dirent *entry; (entry = readdir(stream));) {
    const char *name = entry->d_name;
    if (name[0] == '.' || !fsdp_ends_with(name, ending)) continue;
    found->list = fsdp_realloc(found->list, (size_t)(found->count + 1) * sizeof *found->list);
    candidate *added = &found->list[found->count++];
    *added = (candidate){.name = fsdp_strdup(name, "a name")};
    while (name[added->alike] && name[added->alike] == pattern[added->alike]) added->alike++;
  }
  closedir(stream);
  if (found->count) qsort(found->list, (size_t)found->count, sizeof *found->list, compare_candidates);
  return 0;
}

// "a.bin, b.bin, c.bin, ..."
static void print_candidates(const candidates *found, char *out, size_t out_bytes) {
  size_t used = 0;
  for (int i = 0; i < found->count && i < SHOWN && used < out_bytes; i++)
    used += (size_t)snprintf(out + used, out_bytes - used, "%s%.80s", i ? ", " : "", found->list[i].name);
  if (found->count > SHOWN && used < out_bytes) snprintf(out + used, out_bytes - used, ", ...");
}

// The absolute path of `folder`, whether it is there or not. The caller frees it.
static char *full_path(const char *folder) {
  char *full = realpath(folder, NULL), *here = full ? NULL : getcwd(NULL, 0);
  if (!full && (folder[0] == '/' || !here || asprintf(&full, "%s/%s", here, folder) < 0))
    full = strdup(folder);
  FSDP_NEED_MEMORY(full, "a path");
  free(here);
  return full;
}

static fsdp_status fail_unmatched(const char *option, const char *pattern, fsdp_error *error) {
  const char *slash = strrchr(pattern, '/'), *last = slash ? slash + 1 : pattern, *ending = ending_of(last);
  char *folder = slash ? strndup(pattern, slash > pattern ? (size_t)(slash - pattern) : 1) : strdup(".");
  FSDP_NEED_MEMORY(folder, "a path");
  char *shown = full_path(folder), names[280], ends[72] = "", what[400];
  candidates found;
  int reason = list_candidates(folder, last, ending, &found);
  if (*ending) snprintf(ends, sizeof ends, " that end%s in %.40s", found.count == 1 ? "s" : "", ending);
  if (found.count > 0) {
    print_candidates(&found, names, sizeof names);
    snprintf(what, sizeof what, "has %d file%s%s (%s)", found.count, fsdp_plural(found.count), ends, names);
  } else if (reason) {
    snprintf(what, sizeof what, "cannot be read (%s)", strerror(reason));
  } else {
    snprintf(what, sizeof what, "has no files%s", ends);
  }
  fsdp_fail(error, FSDP_ERR_INPUT,
            "--%s \"%.250s\": no file matches this pattern: the folder %.250s %s; correct the %s", option,
            pattern, shown, what, found.count ? "pattern" : "path");
  for (int i = 0; i < found.count; i++) free(found.list[i].name);
  free(found.list);
  free(shown);
  free(folder);
  return error->status;
}

// ---- The list

// `item` for glob, with its folder's letters as they are if there is such a folder. The caller frees it.
static char *glob_of(const char *item) {
  const char *slash = strrchr(item, '/');
  size_t folder_bytes = slash ? (size_t)(slash - item) : 0;
  char *pattern = fsdp_alloc(2 * strlen(item) + 1), *to = pattern;
  char *folder = strndup(item, folder_bytes);
  FSDP_NEED_MEMORY(folder, "a path");
  bool literal = folder_bytes && access(folder, F_OK) == 0;
  for (size_t i = 0; item[i]; i++) {
    if (literal && i < folder_bytes && strchr("*?[\\", item[i])) *to++ = '\\';
    *to++ = item[i];
  }
  *to = 0;
  free(folder);
  return pattern;
}

// Adds the files that one item of the list stands for.
static fsdp_status add_item(const char *option, const char *item, fsdp_data_paths *paths, bool *is_pattern,
                            fsdp_error *error) {
  *is_pattern = strpbrk(item, "*?[") && access(item, F_OK) != 0;
  if (!*is_pattern) {
    add_file(paths, item);
    return FSDP_OK;
  }
  glob_t found;
  // strcmp, unlike glob's own order, is the same in every locale.
  char *pattern = glob_of(item);
  int answer = glob(pattern, GLOB_NOSORT, NULL, &found);
  free(pattern);
  FSDP_NEED_MEMORY(answer != GLOB_NOSPACE, "the files of a pattern");
  if (answer != 0) return fail_unmatched(option, item, error);
  qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_paths);
  for (size_t i = 0; i < found.gl_pathc; i++) add_file(paths, found.gl_pathv[i]);
  globfree(&found);
  return FSDP_OK;
}

// ---- Weights

// Cuts the weight off "PATH:WEIGHT" and returns it; 0 if there is none, as in the path of a file that has a
// colon itself; NaN if what is behind the colon is no number above 0, but looks like one, or stands behind a
// file's path.
static double take_weight(char *item) {
  char *colon = strrchr(item, ':');
  double weight;
  if (!colon || !colon[1] || access(item, F_OK) == 0) return 0;
  const bool good = fsdp_value_real(colon + 1, &weight) && weight > 0 && isfinite(weight);
  const bool looks_good = !colon[1 + strspn(colon + 1, "0123456789.eE+-%")];
  *colon = 0;
  if (good || looks_good || access(item, F_OK) == 0) return good ? weight : NAN;
  *colon = ':';
  return 0;
}

// `item` without the blanks around it, unless they are of a file's name.
static char *trim(char *item) {
  if (access(item, F_OK) == 0) return item;
  item += strspn(item, " \t\r\n");
  char *end = item + strlen(item);
  while (end > item && strchr(" \t\r\n", end[-1])) end--;
  *end = 0;
  return item;
}

// Takes the files from `first` on as those of an item of this weight, 0: none.
static fsdp_status add_group(const char *option, const char *item, double weight, int first,
                             fsdp_data_paths *paths, fsdp_error *error) {
  if ((weight > 0) != (paths->group_count > 0) && first > 0)
    return fsdp_fail(
        error, FSDP_ERR_OPTION,
        "--%s \"%.300s\": %.300s has %s weight, unlike the files before it; give all of them one, "
        "as in a.tok:0.7,b.tok:0.3, or none",
        option, paths->list, item, weight > 0 ? "a" : "no");
  if (weight == 0) return FSDP_OK;
  paths->groups = fsdp_realloc(paths->groups, (size_t)(paths->group_count + 1) * sizeof *paths->groups);
  fsdp_data_group *group = &paths->groups[paths->group_count++];
  *group = (fsdp_data_group){
      .name = fsdp_strdup(item, "a path"), .share = weight, .first = first, .count = paths->count - first};
  return FSDP_OK;
}

static void share_weights(fsdp_data_paths *paths) {
  double sum = 0;
  for (int i = 0; i < paths->group_count; i++) sum += paths->groups[i].share;
  for (int i = 0; i < paths->group_count; i++) paths->groups[i].share /= sum;
}

// A file of a list under the name that all its paths have: without links, "." and "..".
typedef struct named_file {
  char *name;
  const char *path; // as in the list
} named_file;

static int compare_names(const void *a, const void *b) {
  return strcmp(((const named_file *)a)->name, ((const named_file *)b)->name);
}

// Those of one name by their paths.
static int compare_files(const void *a, const void *b) {
  const int order = compare_names(a, b);
  return order ? order : strcmp(((const named_file *)a)->path, ((const named_file *)b)->path);
}

static named_file name_file(const char *path) {
  char *name = realpath(path, NULL);
  if (!name) name = fsdp_strdup(path, "a list of paths"); // it cannot be opened, which others report
  return (named_file){name, path};
}

// Sorted by name; release_names when done.
static named_file *name_files(const fsdp_data_paths *paths) {
  named_file *files = fsdp_alloc((size_t)paths->count * sizeof *files);
  for (int i = 0; i < paths->count; i++) files[i] = name_file(paths->files[i]);
  qsort(files, (size_t)paths->count, sizeof *files, compare_files);
  return files;
}

static void release_names(named_file *files, int count) {
  for (int i = 0; i < count; i++) free(files[i].name);
  free(files);
}

int fsdp_data_paths_repeated(const fsdp_data_paths *paths, const char *pair[2]) {
  named_file *files = name_files(paths);
  int count = 0;
  for (int i = 1; i < paths->count; i++) {
    const bool again = strcmp(files[i - 1].name, files[i].name) == 0;
    if (!again || (i > 1 && strcmp(files[i - 2].name, files[i].name) == 0)) continue; // counted
    if (count++ == 0) pair[0] = files[i - 1].path, pair[1] = files[i].path;
  }
  release_names(files, paths->count);
  return count;
}

static fsdp_status check_unique(const char *option, const fsdp_data_paths *paths, fsdp_error *error) {
  const char *pair[2];
  if (fsdp_data_paths_repeated(paths, pair) == 0) return FSDP_OK;
  const bool alike = strcmp(pair[0], pair[1]) == 0;
  return fsdp_fail(error, FSDP_ERR_INPUT, "--%s \"%.300s\": has %.300s twice%s%.300s; remove one of the two",
                   option, paths->list, pair[0], alike ? "" : ", also as ", alike ? "" : pair[1]);
}

fsdp_status fsdp_data_paths_find(const char *option, const char *list, fsdp_data_paths *paths,
                                 fsdp_error *error) {
  *paths = (fsdp_data_paths){0};
  if (!list || !*list) return FSDP_OK;
  char *copy = fsdp_strdup(list, "a list of paths"), *rest = copy, *item;
  paths->list = fsdp_strdup(list, "a list of paths");
  fsdp_status status = FSDP_OK;
  bool is_pattern = false, patterns = false;
  while (status == FSDP_OK && (item = strsep(&rest, ","))) {
    item = trim(item);
    if (!*item) {
      status = fsdp_fail(error, FSDP_ERR_INPUT,
                         "--%s \"%.300s\": a path between the commas is empty; remove a comma", option, list);
    } else {
      const int first = paths->count;
      const double weight = take_weight(item);
      if (isnan(weight))
        status =
            fsdp_fail(error, FSDP_ERR_OPTION,
                      "--%s \"%.300s\": the weight of %.300s is not a number above 0; correct it, or leave "
                      "it out",
                      option, list, item);
      if (status == FSDP_OK) status = add_item(option, item, paths, &is_pattern, error);
      if (status == FSDP_OK) status = add_group(option, item, weight, first, paths, error);
      patterns |= is_pattern;
    }
  }
  free(copy);
  share_weights(paths);
  // Without patterns, a file that is there twice was written twice, to weigh twice as much.
  return status == FSDP_OK && patterns ? check_unique(option, paths, error) : status;
}

void fsdp_data_paths_destroy(fsdp_data_paths *paths) {
  for (int i = 0; i < paths->count; i++) free(paths->files[i]);
  for (int i = 0; i < paths->group_count; i++) free(paths->groups[i].name);
  free(paths->groups);
  free(paths->files);
  free(paths->list);
  *paths = (fsdp_data_paths){0};
}

int fsdp_data_paths_common(const fsdp_data_paths *paths, const fsdp_data_paths *others, const char **first) {
  named_file *known = name_files(others);
  int count = 0;
  *first = NULL;
  for (int i = 0; i < paths->count; i++) {
    const named_file file = name_file(paths->files[i]);
    const bool common = bsearch(&file, known, (size_t)others->count, sizeof *known, compare_names);
    if (common && count++ == 0) *first = file.path;
    free(file.name);
  }
  release_names(known, others->count);
  return count;
}
