#include "launcher/options/options.h"

#include "launcher/options/option_alias.h"
#include "launcher/options/option_check.h"
#include "launcher/options/yaml_options.h"
#include "runtime/base/check.h"
#include "runtime/base/nearest.h"
#include "runtime/base/paths.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES 64 // of an option's name

static const char command_line[] = "command line";

static const char *program_name(fsdp_program_kind program) {
  if (program == FSDP_PROGRAM_EVAL) return "fsdp_eval";
  return program == FSDP_PROGRAM_TRAIN ? "fsdp_train" : "fsdp_plan";
}

// ---- Names

// "learning_rate" is learning-rate. Returns `out`.
static const char *with_dashes(const char *name, char out[NAME_BYTES]) {
  snprintf(out, NAME_BYTES, "%s", name);
  for (char *at = out; *at; at++) *at = *at == '_' ? '-' : *at;
  return out;
}

// The option meant by `name`, which may be another trainer's; *alias is NULL if it is ours. NULL if
// there is none.
static const fsdp_option_row *find_meant(const char *name, const fsdp_option_alias **alias) {
  char dashed[NAME_BYTES];
  const fsdp_option_row *row = fsdp_option_find(with_dashes(name, dashed));
  *alias = row ? NULL : fsdp_option_alias_find(dashed);
  return *alias && (*alias)->name ? fsdp_option_find((*alias)->name) : row;
}

// What sets our option as `text` does that of an alias (NULL: it is ours).
static const char *find_value(const fsdp_option_alias *alias, const char *text) {
  bool on;
  if (!alias || !alias->on || !fsdp_value_flag(text, &on)) return text;
  return on ? alias->on : alias->off;
}

// The nearest name of an option, NULL if none is near.
static const char *nearest_name(fsdp_program_kind program, const char *name) {
  enum { NAMES_MAX = 384 };
  const char *names[NAMES_MAX], *meant[NAMES_MAX];
  int alias_count, known = 0;
  const fsdp_option_alias *aliases = fsdp_option_alias_table(&alias_count);
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    if (fsdp_option_belongs(row, program) && !row->knob) names[known] = meant[known] = row->name, known++;
  FSDP_CHECK(known + alias_count <= NAMES_MAX, "%d names of options", known + alias_count);
  for (int i = 0; i < alias_count; i++) {
    if (aliases[i].name) names[known] = aliases[i].alias, meant[known++] = aliases[i].name;
  }
  int nearest = fsdp_nearest_phrase(name, names, known);
  return nearest >= 0 ? meant[nearest] : NULL;
}

static fsdp_status fail_unknown(fsdp_program_kind program, const char *name, const char *place,
                                fsdp_error *error) {
  char dashed[NAME_BYTES];
  const fsdp_option_alias *alias;
  const fsdp_option_row *row = find_meant(name, &alias);
  if (row && row->knob)
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "unknown option '--%s' (%s): it is a knob of experiments; use --set %s=%s", name, place,
                     row->name, row->argument);
  if (row) {
    const char *advice = "";
    if (strcmp(row->name, "search") == 0) advice = "; --auto searches at the start of a run";
    if (strcmp(row->name, "auto") == 0) advice = "; --search finds plans here";
    const fsdp_program_kind trains = FSDP_PROGRAM_TRAIN;
    const char *owner = program_name(program != trains && fsdp_option_belongs(row, trains) ? trains
                                     : fsdp_option_belongs(row, FSDP_PROGRAM_PLAN)         ? FSDP_PROGRAM_PLAN
                                                                                   : FSDP_PROGRAM_EVAL);
    return fsdp_fail(error, FSDP_ERR_OPTION, "--%s (%s) is an option of %s%s", name, place, owner, advice);
  }
  if (alias) {
    return fsdp_fail(error, FSDP_ERR_OPTION, "unknown option '--%s' (%s): %s%s%s", name, place, alias->advice,
                     alias->script ? " " : "", alias->script ? fsdp_script(alias->script) : "");
  }
  const char *nearest = nearest_name(program, with_dashes(name, dashed));
  if (nearest) {
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "unknown option '--%s' (%s): did you mean --%s? (%s --help lists all)", name, place,
                     nearest, program_name(program));
  }
  return fsdp_fail(error, FSDP_ERR_OPTION, "unknown option '--%s' (%s): %s --help lists all", name, place,
                   program_name(program));
}

// Records each alias that was used, once; of a switch, what the value that it was given sets.
static void note_alias(fsdp_options *options, const fsdp_option_alias *alias, const char *given,
                       const char *set) {
  char entry[256];
  const bool is_on = !alias->on || strcmp(set, alias->on) == 0;
  snprintf(entry, sizeof entry, "--%s%s%.60s is --%s%s%.60s", alias->alias, is_on ? "" : " ",
           is_on ? "" : given, alias->name, alias->on ? " " : "", alias->on ? set : "");
  size_t used = strlen(options->aliases);
  if (strstr(options->aliases, entry) || used + strlen(entry) + 3 > sizeof options->aliases) return;
  snprintf(options->aliases + used, sizeof options->aliases - used, "%s%s", used ? ", " : "", entry);
}

static fsdp_status fail_knob(const char *key, const char *place, fsdp_error *error) {
  enum { KNOBS_MAX = 32 };
  const char *names[KNOBS_MAX];
  char question[FSDP_NEAREST_TEXT];
  int known = 0;
  for (const fsdp_option_row *row = fsdp_option_table; row->name && known < KNOBS_MAX; row++)
    if (row->knob) names[known++] = row->name;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--set '%.60s' (%s): no knob has this name%s; --help all lists them last", key, place,
                   fsdp_nearest_question(key, names, known, question));
}

// Sets the knobs that "KEY=VALUE;..." names.
static fsdp_status set_knobs(fsdp_options *options, const char *text, const char *place, fsdp_error *error) {
  for (const char *at = text; *at;) {
    char part[NAME_BYTES], key[NAME_BYTES];
    const size_t length = strcspn(at, ";");
    snprintf(part, sizeof part, "%.*s", (int)length, at);
    at += length + (at[length] == ';');
    char *value = strchr(part, '=');
    if (length >= sizeof part || !value)
      return fsdp_fail(error, FSDP_ERR_OPTION, "--set '%.60s' (%s): use KEY=VALUE", part, place);
    *value++ = 0;
    const fsdp_option_row *row = fsdp_option_find(with_dashes(part, key));
    if (!row || !row->knob) return fail_knob(part, place, error);
    if (!fsdp_option_store(options, row, value)) {
      char named[2 * NAME_BYTES];
      snprintf(named, sizeof named, "set %s", row->name);
      return fsdp_option_fail_value(row, named, value, place, error);
    }
    snprintf(options->place[fsdp_option_index(row)], sizeof options->place[0], "--set, %.100s", place);
  }
  return FSDP_OK;
}

// Of "recompute: true", which another trainer has as a switch: what that sets, "block". NULL if the text is
// no word for on, or the option has no such alias.
static const char *meant_by_true(const fsdp_option_row *row, const char *text) {
  bool on;
  int count;
  const fsdp_option_alias *aliases = fsdp_option_alias_table(&count);
  if (strcmp(row->name, "recompute") != 0 || !fsdp_value_flag(text, &on) || !on) return NULL;
  for (int i = 0; i < count; i++)
    if (aliases[i].name && strcmp(aliases[i].name, row->name) == 0 && aliases[i].on) return aliases[i].on;
  return NULL;
}

fsdp_status fsdp_options_set(fsdp_options *options, fsdp_program_kind program, const char *name,
                             const char *text, const char *place, fsdp_error *error) {
  const fsdp_option_alias *alias;
  const fsdp_option_row *row = find_meant(name, &alias);
  if (!row || row->knob || !fsdp_option_belongs(row, program))
    return fail_unknown(program, name, place, error);
  const char *value = find_value(alias, text);
  const char *on = alias ? NULL : meant_by_true(row, text);
  if (on)
    return fsdp_fail(error, FSDP_ERR_OPTION, "--%s '%s' (%s): is no switch: write %s for on, %s for off",
                     name, text, place, on, row->fallback);
  if (!fsdp_option_store(options, row, value)) {
    char both[2 * NAME_BYTES];
    snprintf(both, sizeof both, "%.60s (--%.60s)", name, row->name);
    return fsdp_option_fail_value(row, alias ? both : name, text, place, error);
  }
  if (row->kind == FSDP_OPTION_SET) {
    fsdp_status status = set_knobs(options, text, place, error);
    if (status) return status;
  }
  if (alias) note_alias(options, alias, text, value);
  char *kept = options->place[fsdp_option_index(row)]; // messages name ours, and here what was typed
  if (alias)
    snprintf(kept, sizeof options->place[0], "given as --%.40s, %.70s", name, place);
  else
    snprintf(kept, sizeof options->place[0], "%s", place);
  return FSDP_OK;
}

// ---- Command line

// One option and its value as given on the command line.
typedef struct argument {
  const char *name, *text;
} argument;

// Everything after the program's name, read by getopt; values are not looked at yet, since --config comes
// before them.
typedef struct arguments {
  argument *items;
  int count;
  char **words; // what getopt reads: argv, with the names that getopt does not know replaced
  char **made;  // those words that are owned
  int word_count;
} arguments;

static void destroy_arguments(arguments *read) {
  for (int i = 0; i < read->word_count; i++) free(read->made[i]);
  free(read->made);
  free(read->words);
  free(read->items);
}

// Replaces the word at `index`, if it is an option under a different name, by one that getopt knows. Returns
// the name to go by (NULL: the word stays as it is); *skip is the number of words that follow and belong to
// it.
static const char *replace_word(arguments *read, int index, int *skip) {
  const char *word = read->words[index];
  *skip = 0;
  if (!word || strncmp(word, "--", 2) != 0 || !word[2]) return NULL;
  char name[NAME_BYTES];
  size_t length = strcspn(word + 2, "=");
  if (length >= sizeof name) return NULL;
  snprintf(name, sizeof name, "%.*s", (int)length, word + 2);
  const fsdp_option_alias *alias;
  const fsdp_option_row *row = find_meant(name, &alias);
  if (!row || (!alias && strcmp(row->name, name) == 0)) return NULL;
  const char *rest = word + 2 + length, *equals = "", *next = read->words[index + 1];
  if (alias && alias->on && !*rest) { // a flag, whose value may be left out, for an option that needs one
    bool has_value = next && next[0] != '-';
    *skip = has_value;
    equals = "=";
    rest = has_value ? next : "on";
  }
  // The name as it was typed lies behind the word.
  size_t bytes = strlen(row->name) + strlen(rest) + 4;
  char *made = read->words[index] = read->made[index] = fsdp_alloc(bytes + length + 1);
  snprintf(made, bytes, "--%s%s%s", row->name, equals, rest);
  snprintf(made + bytes, length + 1, "%s", name);
  return alias ? made + bytes : row->name;
}

// What is wrong, from getopt's answer and the word it was reading.
static fsdp_status fail_argument(int answer, const char *word, fsdp_program_kind program, fsdp_error *error) {
  if (answer == ':') {
    return fsdp_fail(error, FSDP_ERR_OPTION, "%s (command line) needs a value: see %s --help", word,
                     program_name(program));
  }
  if (word[0] == '-' && word[1] == '-') {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
    return fail_unknown(program, name, command_line, error);
  }
  return fsdp_fail(error, FSDP_ERR_OPTION, "unknown option '%s' (command line): %s --help lists all", word,
                   program_name(program));
}

// getopt's tables, from ours: an option's index in the table is its value.
static void make_getopt_tables(fsdp_program_kind program, struct option *longs, char *shorts) {
  enum { FIRST = 256 };
  int used = 0;
  *shorts++ = '+'; // a word that is no option ends the reading
  *shorts++ = ':'; // and getopt leaves the messages to us
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++) {
    if (!fsdp_option_belongs(row, program) || row->knob) continue;
    const bool bare = row->bare != NULL;
    longs[used++] = (struct option){row->name, bare ? optional_argument : required_argument, NULL,
                                    FIRST + fsdp_option_index(row)};
    if (!row->short_name) continue;
    *shorts++ = row->short_name;
    if (!bare) *shorts++ = ':';
  }
  longs[used] = (struct option){0};
  *shorts = 0;
}

static const fsdp_option_row *row_of_answer(int answer) {
  if (answer >= 256) return &fsdp_option_table[answer - 256];
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    if (row->short_name == answer) return row;
  return NULL;
}

// Whether `word` spells out a long option by its whole name: getopt takes "--max" for --max-steps, we do not,
// since the next option that begins alike would change what a script means.
static bool is_whole_name(const char *word, const char *name) {
  size_t length = strlen(name);
  return strncmp(word, "--", 2) != 0 ||
         (strncmp(word + 2, name, length) == 0 && (!word[2 + length] || word[2 + length] == '='));
}

// The list's first word and those that follow it, joined by commas.
static const char *take_list(arguments *read, const char *first) {
  int begin = optind;
  size_t bytes = strlen(first) + 1;
  for (; optind < read->word_count && read->words[optind][0] != '-'; optind++)
    bytes += strlen(read->words[optind]) + 1;
  if (optind == begin) return first;
  char *joined = read->made[begin] = fsdp_alloc(bytes),
       *to = stpcpy(joined, first); // the word's place owns it
  for (int at = begin; at < optind; at++) to = stpcpy(stpcpy(to, ","), read->words[at]);
  return joined;
}

static fsdp_status read_arguments(arguments *read, fsdp_program_kind program, int argc, char **argv,
                                  fsdp_error *error) {
  struct option longs[FSDP_OPTION_MAX + 1];
  char shorts[3 + 2 * FSDP_OPTION_MAX];
  make_getopt_tables(program, longs, shorts);
  *read = (arguments){.items = fsdp_alloc_zeroed((size_t)argc + 1, sizeof *read->items),
                      .words = fsdp_alloc_zeroed((size_t)argc + 1, sizeof *read->words),
                      .made = fsdp_alloc_zeroed((size_t)argc + 1, sizeof *read->made),
                      .word_count = argc};
  memcpy(read->words, argv, (size_t)argc * sizeof *argv);
  opterr = 0;
  optind = 0; // GNU: start afresh
  for (;;) {
    int at = optind ? optind : 1, skip;
    const char *name = at < argc ? replace_word(read, at, &skip) : NULL;
    const char *word = read->words[at];
    int answer = getopt_long(argc, read->words, shorts, longs, NULL);
    if (answer == -1) break;
    const fsdp_option_row *row = answer == '?' || answer == ':' ? NULL : row_of_answer(answer);
    if (!row || !is_whole_name(word, row->name)) return fail_argument(answer, argv[at], program, error);
    const char *text = optarg;
    if (name) optind += skip;
    if (row->bare && !text) {
      bool has_value = optind < argc && argv[optind][0] != '-';
      text = has_value ? argv[optind++] : row->bare;
    }
    if (row->kind == FSDP_OPTION_LIST) text = take_list(read, text);
    read->items[read->count++] = (argument){name ? name : row->name, text};
  }
  if (optind < argc) {
    const char *end = strrchr(argv[optind], '.');
    const bool is_config = end && (strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0);
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "unexpected word '%s' (command line): a value follows its option, as in --%s %s",
                     argv[optind], is_config ? "config" : "model", argv[optind]);
  }
  return FSDP_OK;
}

// ---- Options that are given twice

// Of these a later value would silently drop what an earlier one names.
static fsdp_status fail_repeated(const fsdp_option_row *row, const argument *first, const argument *second,
                                 fsdp_error *error) {
  char both[1024];
  snprintf(both, sizeof both, "--%.60s %.400s and --%.60s %.400s (%s)", first->name, first->text,
           second->name, second->text, command_line);
  if (row->kind != FSDP_OPTION_LIST)
    return fsdp_fail(error, FSDP_ERR_OPTION, "%s: one file of options is read; give one of them", both);
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "%s: give one of them, or all paths behind one, as in --%s %.300s,%.300s", both, row->name,
                   first->text, second->text);
}

// A plain option's later value counts, as in commands that scripts add to; options->replaced says so.
static fsdp_status check_repeated(fsdp_options *options, const arguments *read, fsdp_error *error) {
  for (int i = 1; i < read->count; i++) {
    const argument *later = &read->items[i], *earlier = NULL;
    const fsdp_option_alias *alias, *other = NULL, *before;
    const fsdp_option_row *row = find_meant(later->name, &alias);
    if (row->kind == FSDP_OPTION_REPEAT || row->kind == FSDP_OPTION_SET) continue;
    for (int j = 0; j < i; j++)
      if (find_meant(read->items[j].name, &before) == row) earlier = &read->items[j], other = before;
    if (!earlier || !strcmp(find_value(other, earlier->text), find_value(alias, later->text))) continue;
    if (row->kind == FSDP_OPTION_LIST || strcmp(row->name, "config") == 0)
      return fail_repeated(row, earlier, later, error);
    const size_t used = strlen(options->replaced);
    snprintf(options->replaced + used, sizeof options->replaced - used,
             "%s--%.60s %.100s replaces --%.60s %.100s", used ? ", " : "", later->name, later->text,
             earlier->name, earlier->text);
  }
  return FSDP_OK;
}

// ---- Parsing in order

typedef struct yaml_target {
  fsdp_options *options;
  fsdp_program_kind program;
} yaml_target;

// Whether a path of a file is as a shell would have to read it.
static bool is_unexpanded(const fsdp_option_row *row, const char *text) {
  const char *takes = row->argument ? row->argument : "";
  const bool is_path = strstr(takes, "FILE") || strstr(takes, "DIR") || strstr(takes, "PATH");
  return is_path && (strncmp(text, "~/", 2) == 0 || strstr(text, "${") || strstr(text, "$HOME")) &&
         access(text, F_OK) != 0;
}

static fsdp_status set_from_yaml(void *context, const char *name, const char *text, int line,
                                 fsdp_error *error) {
  const yaml_target *target = context;
  char place[sizeof target->options->place[0]];
  snprintf(place, sizeof place, "%s:%d", target->options->config, line);
  const char *const never[] = {"config", "compare", "help", "version", NULL};
  if (fsdp_option_is_one_of(name, never))
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "'%s' (%s) is not allowed in a configuration file: give it on the command line", name,
                     place);
  const fsdp_option_alias *alias;
  const fsdp_option_row *row = find_meant(name, &alias);
  target->options->config_sets = true;
  if (row && is_unexpanded(row, text))
    return fsdp_fail(error, FSDP_ERR_OPTION,
                     "'%s: %.300s' (%s): a file of options is no shell, so variables and ~ stay as they are: "
                     "write the whole path",
                     name, text, place);
  if (row &&
      target->options->place[fsdp_option_index(row)][0]) { // under a different name: the reader knows its own
    return fsdp_fail(error, FSDP_ERR_OPTION, "'%s' (%s) is --%s, which %s already sets: remove one of them",
                     name, place, row->name, target->options->place[fsdp_option_index(row)]);
  }
  // "cpu-offload:" is on, as on the command line.
  const char *bare = row && row->bare ? row->bare : row && alias && alias->on ? "on" : text;
  return fsdp_options_set(target->options, target->program, name, *text ? text : bare, place, error);
}

// An option of the command line; what the configuration file says otherwise is noted.
static fsdp_status set_over_file(fsdp_options *options, fsdp_program_kind program, const argument *given,
                                 fsdp_error *error) {
  const fsdp_option_alias *alias;
  const fsdp_option_row *row = find_meant(given->name, &alias);
  const bool of_file = options->config && strstr(options->place[fsdp_option_index(row)], options->config);
  char *before = of_file ? fsdp_options_value(options, row) : NULL;
  fsdp_status status = fsdp_options_set(options, program, given->name, given->text, command_line, error);
  if (before && status == FSDP_OK) {
    char *now = fsdp_options_value(options, row);
    const size_t used = strlen(options->overridden);
    if (strcmp(before, now) != 0)
      snprintf(options->overridden + used, sizeof options->overridden - used, "%s--%s %.60s → %.60s",
               used ? ", " : "", row->name, before, now);
    free(now);
  }
  free(before);
  return status;
}

// `compared` is one of the files to compare.
static fsdp_status read_options(fsdp_options *options, fsdp_program_kind program, int argc, char **argv,
                                const char *compared, fsdp_error *error) {
  fsdp_options_create(options);
  arguments read;
  fsdp_status status = read_arguments(&read, program, argc, argv, error);
  if (status == FSDP_OK) status = check_repeated(options, &read, error);
  for (int i = 0; i < read.count && status == FSDP_OK; i++) {
    const char *name = read.items[i].name;
    bool early = strcmp(name, "config") == 0 || strcmp(name, "help") == 0 || strcmp(name, "version") == 0;
    if (early) status = fsdp_options_set(options, program, name, read.items[i].text, command_line, error);
  }
  if (status == FSDP_OK && compared)
    status = fsdp_options_set(options, program, "config", compared, command_line, error);
  bool stop = status != FSDP_OK || options->help || options->version;
  if (!stop && options->config) {
    yaml_target target = {options, program};
    status = fsdp_yaml_read(options->config, set_from_yaml, &target, error);
    stop = status != FSDP_OK;
  }
  for (int i = 0; i < read.count && !stop; i++) {
    status = set_over_file(options, program, &read.items[i], error);
    stop = status != FSDP_OK;
  }
  destroy_arguments(&read);
  return status;
}

fsdp_status fsdp_options_read(fsdp_options *options, fsdp_program_kind program, int argc, char **argv,
                              fsdp_error *error) {
  return read_options(options, program, argc, argv, NULL, error);
}

// --machines of the command line names ranks and profiles in place of a file's own.
static void let_machines_win(fsdp_options *options) {
  static const char *const names[] = {"ranks", "ranks-per-node", "profile"};
  if (strcmp(fsdp_options_place(options, "machines"), command_line) != 0) return;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const bool of_file = fsdp_options_given(options, names[i]) &&
                         strcmp(fsdp_options_place(options, names[i]), command_line) != 0;
    if (of_file) fsdp_option_reset(options, fsdp_option_find(names[i]));
  }
}

fsdp_status fsdp_options_parse_compared(fsdp_options *options, fsdp_program_kind program, int argc,
                                        char **argv, const char *compared, fsdp_error *error) {
  fsdp_status status = read_options(options, program, argc, argv, compared, error);
  if (status != FSDP_OK || options->help || options->version) return status;
  if (!compared) let_machines_win(options);
  if (compared) {
    status = fsdp_options_check_compared(options, error);
    fsdp_option_reset(options, fsdp_option_find("compare")); // from here on it is one plan
  }
  return status == FSDP_OK ? fsdp_options_check(options, program, error) : status;
}

fsdp_status fsdp_options_parse(fsdp_options *options, fsdp_program_kind program, int argc, char **argv,
                               fsdp_error *error) {
  return fsdp_options_parse_compared(options, program, argc, argv, NULL, error);
}

char *fsdp_options_describe(const fsdp_options *options) {
  char *out = NULL;
  size_t bytes = 0;
  FILE *stream = open_memstream(&out, &bytes);
  FSDP_NEED_MEMORY(stream, "the text of options");
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++) {
    // Their contents count, not how they were given.
    if (strcmp(row->name, "config") == 0 || row->kind == FSDP_OPTION_SET) continue;
    if (strcmp(row->name, "prompt") == 0) continue; // rank 0's alone is used, and it may have several lines
    char *value = fsdp_options_value(options, row);
    fprintf(stream, "%s=%s\n", row->name, value);
    free(value);
  }
  fclose(stream);
  return out;
}
