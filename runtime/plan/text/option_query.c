#include "runtime/plan/text/option_query.h"

#include "runtime/base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_SHOWN 300 // bytes of a value in a message

bool fsdp_options_given(const fsdp_options *options, const char *name) {
  const fsdp_option_row *row = fsdp_option_find(name);
  FSDP_CHECK(row, "no option is called '%s'", name);
  return options->place[fsdp_option_index(row)][0] != 0;
}

const char *fsdp_options_place(const fsdp_options *options, const char *name) {
  if (!fsdp_options_given(options, name)) return "default";
  return options->place[fsdp_option_index(fsdp_option_find(name))];
}

// "--trace FILE (command line)".
static void print_option(const fsdp_options *options, const char *name, char form, FILE *out) {
  char *value = fsdp_options_value(options, fsdp_option_find(name));
  const char *quote = form == 'Q' ? "'" : "";
  fprintf(out, "--%s", name);
  if (form < 'a') fprintf(out, " %s%.*s%s", quote, VALUE_SHOWN, value, quote);
  fprintf(out, " (%s)", fsdp_options_place(options, name));
  free(value);
}

// Text with options in braces, as the header says; what else stands in braces stays. The caller frees it.
static char *expand(const fsdp_options *options, const char *text, const char *first, const char *second) {
  char *made = NULL, form = 0, name[64];
  size_t bytes = 0;
  FILE *out = open_memstream(&made, &bytes);
  FSDP_NEED_MEMORY(out, "a message");
  for (int used = 0; *text; text += used, used = 0) {
    sscanf(text, "{%c}%n", &form, &used);
    const char *named = !used ? name : form == 'b' || form == 'B' ? second : first;
    if (!used) sscanf(text, "{%c %63[a-z0-9-]}%n", &form, name, &used);
    if (used && named && form == 'n') {
      fputs(named, out);
    } else if (used && named && fsdp_option_find(named)) {
      print_option(options, named, form, out);
    } else {
      fputc(*text, out);
      used = 1;
    }
  }
  fclose(out);
  return made;
}

fsdp_status fsdp_options_fail_pair(const fsdp_options *options, fsdp_error *error, const char *first,
                                   const char *second, const char *text) {
  char *message = expand(options, text, first, second);
  fsdp_fail(error, FSDP_ERR_OPTION, "%s", message);
  free(message);
  return FSDP_ERR_OPTION;
}

fsdp_status fsdp_refuse(const fsdp_options *options, fsdp_error *error, fsdp_status status,
                        const char *format, ...) {
  char *text;
  va_list arguments;
  va_start(arguments, format);
  const int length = vasprintf(&text, format, arguments);
  va_end(arguments);
  FSDP_NEED_MEMORY(length >= 0, "a message");
  char *message = expand(options, text, NULL, NULL);
  fsdp_fail(error, status, "%s", message);
  free(message);
  free(text);
  return status;
}

bool fsdp_options_evaluate(const fsdp_options *options) {
  return options->eval_data || options->eval_split > 0;
}

// Whether a person gave it: what --auto chose needs no note.
static bool typed(const fsdp_options *options, const char *name) {
  return fsdp_options_given(options, name) && strcmp(fsdp_options_place(options, name), "--auto") != 0;
}

bool fsdp_options_note(const fsdp_options *options, int index, char *note, int note_bytes) {
  const bool one_rank =
      options->tensor_parallel == 1 && fsdp_mesh_size(&options->mesh_axes, FSDP_AXIS_TENSOR) == 1;
  const struct {
    bool holds;
    const char *text;
  } notes[] = {
      {options->config && !options->config_sets,
       "{A config} sets no option: all but those of the command line have their defaults"},
      {typed(options, "numel-to-wrap") && strcmp(options->wrap, "size") != 0,
       "{a numel-to-wrap} is the threshold of --wrap size; {A wrap} does not use it"},
      {typed(options, "sequence-parallel") && options->sequence_parallel && one_rank,
       "{a sequence-parallel} has no effect: the mesh's axis tensor has one rank (--tensor-parallel)"},
      {typed(options, "accumulate") && options->accumulate == FSDP_ACCUMULATE_LOCAL &&
           options->grad_accum == 1,
       "{A accumulate} has no effect: there is one micro-batch per step (--grad-accum 1)"}};
  if (*options->aliases && index-- == 0) {
    snprintf(note, (size_t)note_bytes, "%s", options->aliases);
    return true;
  }
  for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
    if (!notes[i].holds || index-- > 0) continue;
    char *text = expand(options, notes[i].text, NULL, NULL);
    snprintf(note, (size_t)note_bytes, "%s", text);
    free(text);
    return true;
  }
  return false;
}
