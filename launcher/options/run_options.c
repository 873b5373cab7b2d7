#include "launcher/options/run_options.h"

#include "launcher/options/option_check.h"
#include "launcher/options/yaml_options.h"
#include "runtime/base/check.h"
#include "runtime/base/text.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, NOTE_BYTES = 2048 };

void fsdp_run_options_path(const fsdp_options *options, char *path, size_t path_bytes) {
  snprintf(path, path_bytes, "%s/%s/run.yaml", options->save_dir, options->experiment);
}

// ---- Writing

static bool is_written(const fsdp_option_row *row, bool whole) {
  static const char *const never[] = {"config", "help", "version", "print-config", NULL};
  // Of one start; what the folder's name says; and ranks, which a resumed run may have others of.
  static const char *const of_a_start[] = {
      "resume",      "resume-schedule", "overwrite",      "trace",
      "trace-steps", "memory-profile",  "dry-run",        "self-test",
      "print-model", "print-program",   "print-sharding", "experiment-name",
      "save-dir",    "ranks",           "ranks-per-node", NULL};
  if (row->knob || !fsdp_option_belongs(row, FSDP_PROGRAM_TRAIN) || fsdp_option_is_one_of(row->name, never))
    return false;
  return whole || !fsdp_option_is_one_of(row->name, of_a_start);
}

// Before a run of a name, whose options are kept, or for --print-config: what a file of options, or the lines
// that a checkpoint has of them, cannot hold.
static fsdp_status check_kept(const fsdp_options *options, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  const bool whole = options->print_config || strcmp(options->resume, "auto") != 0;
  for (const fsdp_option_row *row = fsdp_option_table; row->name && status == FSDP_OK; row++) {
    const char *name = row->name, *place = fsdp_options_place(options, name);
    if (!is_written(row, true) || !fsdp_options_given(options, name)) continue;
    char *value = fsdp_options_value(options, row);
    if (is_written(row, whole) && !fsdp_yaml_holds(value))
      status = fsdp_refuse(options, error, FSDP_ERR_OPTION,
                           "{a %s} is not UTF-8, as the file that keeps a run's options is: rename the file, "
                           "or convert the text",
                           name);
    else if (options->experiment && strcmp(name, "prompt") != 0 && strchr(value, '\n'))
      status = fsdp_fail(error, FSDP_ERR_OPTION,
                         "--%s '%.*s...' (%s) has a line break, which a checkpoint cannot keep: use another "
                         "name",
                         name, (int)strcspn(value, "\n"), value, place);
    free(value);
  }
  return status;
}

static void print(const fsdp_options *options, bool whole, FILE *out) {
  for (int defaults = 0; defaults < 2; defaults++) {
    if (defaults) fputs("# Defaults:\n", out);
    for (const fsdp_option_row *row = fsdp_option_table; row->name; row++) {
      bool is_given = fsdp_options_given(options, row->name);
      if (!is_written(row, whole) || is_given == defaults || (!is_given && !row->fallback)) continue;
      char *value = fsdp_options_value(options, row);
      const bool number = row->kind == FSDP_OPTION_INT || row->kind == FSDP_OPTION_SIZE ||
                          row->kind == FSDP_OPTION_REAL || row->kind == FSDP_OPTION_SHARE;
      if (defaults) fputs("# ", out);
      if (number)
        fprintf(out, "%s: %s\n", row->name, value);
      else
        fsdp_yaml_print(row->name, value, out);
      free(value);
    }
  }
}

void fsdp_run_options_print(const fsdp_options *options, FILE *out) {
  print(options, true, out);
}

void fsdp_run_options_print_start(const fsdp_options *options, const char *from, FILE *out) {
  const fsdp_option_row *schedule = fsdp_option_find("resume-schedule");
  fputs("# Until a checkpoint of its own is saved:\n", out);
  if (strcmp(from, "auto") != 0) fsdp_yaml_print("resume", from, out);
  if (!fsdp_options_given(options, schedule->name)) return;
  char *value = fsdp_options_value(options, schedule);
  fsdp_yaml_print(schedule->name, value, out);
  free(value);
}

static char *print_run(const fsdp_options *options) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "a run's options");
  print(options, false, out);
  fclose(out);
  return text;
}

// ---- Reading

// What run.yaml says, with the file's lines as places.
typedef struct kept {
  fsdp_options options;
  const char *path;
  bool gives_way[FSDP_OPTION_MAX]; // by row: it contradicts what is given
} kept;

static fsdp_status take_kept(void *context, const char *name, const char *text, int line, fsdp_error *error) {
  kept *k = context;
  char place[sizeof k->options.place[0]];
  snprintf(place, sizeof place, "%.110s:%d", k->path, line);
  return fsdp_options_set(&k->options, FSDP_PROGRAM_TRAIN, name, text, place, error);
}

static void note(char *text, const char *format, const char *name, const char *from, const char *to) {
  size_t used = strlen(text);
  if (used < NOTE_BYTES) snprintf(text + used, NOTE_BYTES - used, format, used ? ", " : "", name, from, to);
}

// A mesh, its short forms and the sharding over it are one choice: giving one of them replaces all.
static const char *const places[] = {"mesh",
                                     "tensor-parallel",
                                     "context-parallel",
                                     "expert-parallel",
                                     "op-strategies",
                                     "sharding",
                                     "shard",
                                     "extra-data-axis",
                                     NULL};

static bool gives_place(const fsdp_options *options) {
  bool is_given = false;
  for (int i = 0; places[i]; i++) is_given |= fsdp_options_given(options, places[i]);
  return is_given;
}

// Sets in `options` what they do not give, but for what gives way, and lists what is otherwise.
static fsdp_status complete(fsdp_options *options, const kept *k, char *changed, fsdp_error *error) {
  fsdp_status status = FSDP_OK;
  const bool own_place = gives_place(options);
  for (const fsdp_option_row *row = fsdp_option_table; row->name && status == FSDP_OK; row++) {
    const bool is_given = fsdp_options_given(options, row->name);
    const bool is_kept = fsdp_options_given(&k->options, row->name);
    if (!is_written(row, false) || (!is_given && !is_kept)) continue;
    char *text = fsdp_options_value(&k->options, row); // of one that is not kept the default
    if (!is_given &&
        (k->gives_way[fsdp_option_index(row)] || (own_place && fsdp_option_is_one_of(row->name, places)))) {
      note(changed, "%s--%s %s → %s", row->name, text, row->fallback ? row->fallback : "none");
    } else if (!is_given) {
      status = fsdp_options_set(options, FSDP_PROGRAM_TRAIN, row->name, text,
                                fsdp_options_place(&k->options, row->name), error);
    } else {
      char *now = fsdp_options_value(options, row);
      const char *before = is_kept || row->fallback ? text : "none";
      if (strcmp(text, now) != 0) note(changed, "%s--%s %s → %s", row->name, before, now);
      free(now);
    }
    free(text);
  }
  return status;
}

// A run that was started with --resume or --resume-schedule restart and has saved nothing since begins so
// again, unless another checkpoint is named now.
static fsdp_status take_start(fsdp_options *options, const kept *k, fsdp_error *error) {
  static const char *const names[] = {"resume", "resume-schedule"};
  fsdp_status status = FSDP_OK;
  if (strcmp(options->resume, "auto") != 0) return FSDP_OK;
  for (int i = 0; i < 2 && status == FSDP_OK; i++) {
    if (!fsdp_options_given(&k->options, names[i]) || (i == 1 && fsdp_options_given(options, names[i])))
      continue;
    char *text = fsdp_options_value(&k->options, fsdp_option_find(names[i]));
    status = fsdp_options_set(options, FSDP_PROGRAM_TRAIN, names[i], text,
                              fsdp_options_place(&k->options, names[i]), error);
    free(text);
  }
  return status;
}

// The options that are given, completed but for what gives way, and checked.
static fsdp_status read_all(fsdp_options *options, int argc, char **argv, const kept *k,
                            char changed[NOTE_BYTES], fsdp_error *error) {
  *changed = 0;
  fsdp_status status = fsdp_options_read(options, FSDP_PROGRAM_TRAIN, argc, argv, error);
  if (status == FSDP_OK) status = complete(options, k, changed, error);
  if (status == FSDP_OK) status = take_start(options, k, error);
  return status == FSDP_OK ? fsdp_options_check(options, FSDP_PROGRAM_TRAIN, error) : status;
}

// Whether the option is as the file says it.
static bool is_taken(const fsdp_options *options, const kept *k, const char *name) {
  return fsdp_options_given(&k->options, name) &&
         strcmp(fsdp_options_place(options, name), fsdp_options_place(&k->options, name)) == 0;
}

// Whether the options agree once one more of the file gives way. If so, `options` are those.
static bool agrees_without_one(fsdp_options *options, int argc, char **argv, kept *k,
                               char changed[NOTE_BYTES]) {
  for (int i = 0; fsdp_option_table[i].name; i++) {
    if (k->gives_way[i] || !is_taken(options, k, fsdp_option_table[i].name)) continue;
    fsdp_options tried;
    fsdp_error ignored;
    char without[NOTE_BYTES];
    k->gives_way[i] = true;
    const bool agrees = read_all(&tried, argc, argv, k, without, &ignored) == FSDP_OK;
    fsdp_options_destroy(agrees ? options : &tried);
    if (agrees) {
      *options = tried;
      memcpy(changed, without, NOTE_BYTES);
      return true;
    }
    k->gives_way[i] = false;
  }
  return false;
}

// The row of the file's option that a message names first, by its place; -1: it names none.
static int named_in(const char *message, const fsdp_options *options, const kept *k) {
  int named = -1;
  const char *first = NULL;
  for (int i = 0; fsdp_option_table[i].name; i++) {
    const char *name = fsdp_option_table[i].name;
    char place[sizeof k->options.place[0] + 3];
    if (k->gives_way[i] || !is_taken(options, k, name)) continue;
    snprintf(place, sizeof place, "(%s)", fsdp_options_place(options, name));
    const char *at = strstr(message, place);
    if (at && (!first || at < first)) first = at, named = i;
  }
  return named;
}

// All of the file's options with those that are given. Where they contradict each other one of the file gives
// way, the one without which they do not; if there is none, the one that the message names, and so on. If
// that does not help, the error that names none of the file.
static fsdp_status reconcile(fsdp_options *options, int argc, char **argv, kept *k, char changed[NOTE_BYTES],
                             fsdp_error *error) {
  fsdp_options_destroy(options);
  fsdp_status status = read_all(options, argc, argv, k, changed, error);
  fsdp_error later = *error;
  while (status == FSDP_ERR_OPTION && !agrees_without_one(options, argc, argv, k, changed)) {
    const int named = named_in(later.message, options, k);
    if (named < 0) { // what is left is of the options that are given
      *error = later;
      return FSDP_ERR_OPTION;
    }
    k->gives_way[named] = true;
    fsdp_options_destroy(options);
    status = read_all(options, argc, argv, k, changed, &later);
  }
  if (status == FSDP_ERR_OPTION) status = FSDP_OK; // of the options without one more
  if (status != FSDP_OK) *error = later;
  return error->status = status;
}

static fsdp_status read_kept(fsdp_options *options, int argc, char **argv, const char *path,
                             fsdp_error *error) {
  char changed[NOTE_BYTES];
  kept k = {.path = path};
  fsdp_options_create(&k.options);
  fsdp_status status = fsdp_yaml_read(path, take_kept, &k, error);
  if (status == FSDP_OK) status = reconcile(options, argc, argv, &k, changed, error);
  if (status == FSDP_OK) {
    const int length =
        asprintf(&options->run_note, "%s%s%s", path, *changed ? "; given otherwise: " : "", changed);
    FSDP_NEED_MEMORY(length >= 0, "a note");
    options->run_ranks = fsdp_options_given(&k.options, "ranks") ? k.options.ranks : 0;
  }
  fsdp_options_destroy(&k.options);
  return status;
}

// Whether the option is as run.yaml says it.
static bool is_of_file(const fsdp_options *options, const char *name) {
  char path[PATH_BYTES];
  fsdp_run_options_path(options, path, sizeof path);
  const size_t shown = strlen(path) < 110 ? strlen(path) : 110; // as take_kept cuts it
  return strncmp(fsdp_options_place(options, name), path, shown) == 0;
}

// A mesh has its ranks; its short forms leave the others to the strategy.
static bool fits(const fsdp_options *options, int ranks) {
  if (options->mesh) return ranks == options->run_ranks;
  return ranks % (options->tensor_parallel * options->context_parallel * options->expert_parallel) == 0;
}

fsdp_status fsdp_run_options_fit(fsdp_options *options, int ranks, fsdp_error *error) {
  char gone[512] = "";
  if (!options->run_note || fits(options, ranks)) return FSDP_OK;
  for (int i = 0; places[i]; i++) {
    const fsdp_option_row *row = fsdp_option_find(places[i]);
    if (!fsdp_options_given(options, row->name) || !is_of_file(options, row->name)) continue;
    char *text = fsdp_options_value(options, row);
    size_t used = strlen(gone);
    snprintf(gone + used, sizeof gone - used, "%s--%s %.100s", used ? ", " : "", row->name, text);
    free(text);
    fsdp_option_reset(options, row);
  }
  if (!*gone) return FSDP_OK;
  char *note;
  const int length =
      asprintf(&note, "%s; not for %d rank%s: %s", options->run_note, ranks, fsdp_plural(ranks), gone);
  FSDP_NEED_MEMORY(length >= 0, "a note");
  free(options->run_note);
  options->run_note = note;
  free(options->run_config);
  options->run_config = print_run(options);
  return fsdp_options_check(options, FSDP_PROGRAM_TRAIN, error);
}

// Whether the option's value is a relative path, or a list that begins with one, that is not there.
static bool is_missing_path(const char *value, const char *message) {
  char first[PATH_BYTES];
  snprintf(first, sizeof first, "%.*s", (int)strcspn(value, ","), value);
  return *first && *first != '/' && strstr(message, first) && access(first, F_OK) != 0;
}

void fsdp_run_options_explain(const fsdp_options *options, fsdp_error *error) {
  static const char *const paths[] = {"model", "data", "eval-data", "tokenizer"};
  if (!options->run_note) return;
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    if (!fsdp_options_given(options, paths[i]) || !is_of_file(options, paths[i])) continue;
    char *value = fsdp_options_value(options, fsdp_option_find(paths[i])), file[PATH_BYTES];
    const bool missing = is_missing_path(value, error->message);
    free(value);
    if (!missing) continue;
    const fsdp_error before = *error;
    fsdp_run_options_path(options, file, sizeof file);
    fsdp_fail(error, before.status,
              "%.800s; paths in %.90s are relative to the folder where the run was started: start it there",
              before.message, file);
    return;
  }
}

// With --resume off: what the file says and this start is not given. A file that cannot be read says nothing.
static void note_left_out(fsdp_options *options, const char *path) {
  char text[NOTE_BYTES] = "";
  kept k = {.path = path};
  fsdp_error ignored = {0};
  fsdp_options_create(&k.options);
  const fsdp_status status = fsdp_yaml_read(path, take_kept, &k, &ignored);
  for (const fsdp_option_row *row = fsdp_option_table; row->name && status == FSDP_OK; row++) {
    if (!is_written(row, false) || !fsdp_options_given(&k.options, row->name)) continue;
    if (fsdp_options_given(options, row->name)) continue;
    char *value = fsdp_options_value(&k.options, row);
    note(text, "%s--%s %s%s", row->name, value, "");
    free(value);
  }
  if (*text) options->run_left_out = fsdp_strdup(text, "what a run begins without");
  fsdp_options_destroy(&k.options);
}

// ---- Names of experiments

// "run2" is a name like "run1", and no misspelt one.
static bool differ_in_digits(const char *a, const char *b) {
  for (;;) {
    while (isdigit((unsigned char)*a)) a++;
    while (isdigit((unsigned char)*b)) b++;
    if (*a != *b) return false;
    if (!*a) return true;
    a++, b++;
  }
}

void fsdp_run_options_near(const fsdp_options *options, char question[FSDP_NEAREST_TEXT]) {
  char **names = NULL;
  int count = 0;
  bool has_series = false;
  DIR *listing = opendir(options->save_dir);
  for (struct dirent *entry; listing && (entry = readdir(listing));) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s/run.yaml", options->save_dir, entry->d_name);
    if (strcmp(entry->d_name, options->experiment) == 0 || access(path, F_OK) != 0) continue;
    has_series = has_series || differ_in_digits(entry->d_name, options->experiment);
    names = fsdp_realloc(names, (size_t)(count + 1) * sizeof *names);
    names[count++] = fsdp_strdup(entry->d_name, "an experiment's name");
  }
  if (listing) closedir(listing);
  fsdp_nearest_question(options->experiment, (const char *const *)names, has_series ? 0 : count, question);
  for (int i = 0; i < count; i++) free(names[i]);
  free(names);
}

// Of -e alone, which continues what is there: a misspelt name would train the defaults.
static fsdp_status check_name(const fsdp_options *options, fsdp_error *error) {
  char folder[PATH_BYTES], question[FSDP_NEAREST_TEXT];
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    if (is_written(row, false) && fsdp_options_given(options, row->name)) return FSDP_OK;
  snprintf(folder, sizeof folder, "%s/%s", options->save_dir, options->experiment);
  if (fsdp_options_given(options, "config") || access(folder, F_OK) == 0) return FSDP_OK;
  fsdp_run_options_near(options, question);
  if (!*question) return FSDP_OK;
  return fsdp_refuse(options, error, FSDP_ERR_OPTION,
                     "{Q experiment-name}: there is no %s%s; to start it, give its options, such as --model "
                     "and --data, or --resume off",
                     folder, question);
}

// ---- All

fsdp_status fsdp_run_options_parse(fsdp_options *options, int argc, char **argv, fsdp_error *error) {
  char path[PATH_BYTES];
  fsdp_status status = fsdp_options_read(options, FSDP_PROGRAM_TRAIN, argc, argv, error);
  if (status != FSDP_OK || options->help || options->version) return status;
  const bool starts_over = strcmp(options->resume, "off") == 0;
  if (options->experiment) fsdp_run_options_path(options, path, sizeof path);
  const bool has_file = options->experiment && access(path, F_OK) == 0;
  if (has_file && !starts_over)
    status = read_kept(options, argc, argv, path, error);
  else
    status = fsdp_options_check(options, FSDP_PROGRAM_TRAIN, error);
  if (options->experiment && !has_file && !starts_over && status == FSDP_OK)
    status = check_name(options, error);
  if (status == FSDP_OK && (options->experiment || options->print_config))
    status = check_kept(options, error);
  if (has_file && starts_over && status == FSDP_OK) note_left_out(options, path);
  if (status == FSDP_OK && options->experiment) options->run_config = print_run(options);
  return status;
}
