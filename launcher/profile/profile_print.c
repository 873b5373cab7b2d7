#include "launcher/profile/profile_file.h"
#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/value.h"

#include <string.h>

// As in a YAML string with double quotes.
static void print_quoted(const char *text, FILE *out) {
  fputc('"', out);
  for (; *text; text++) {
    if ((unsigned char)*text < ' ')
      fprintf(out, "\\x%02x", (unsigned char)*text);
    else
      fprintf(out, strchr("\"\\", *text) ? "\\%c" : "%c", *text);
  }
  fputc('"', out);
}

static void print_number(const char *before, double value, int exponent, FILE *out) {
  char text[FSDP_DECIMAL_BYTES];
  fprintf(out, "%s%s", before, fsdp_value_print_decimal(value, exponent, text));
}

static void print_curve(const fsdp_profile_curve *curve, int exponent, FILE *out) {
  fputc('{', out);
  for (int i = 0; i < curve->count; i++) {
    print_number(i ? ", " : "", curve->points[i].size, 0, out);
    print_number(": ", curve->points[i].value, exponent, out);
  }
  fputc('}', out);
}

// The word that stands for a field's value, or NULL: none does, as for an op of any dtype, or false.
static const char *word_of(const fsdp_profile_field *field, const void *at) {
  if (field->type == FSDP_KEY_FLAG) return *(const bool *)at ? "true" : NULL;
  const int word = *(const int *)at - field->number;
  return word < field->count ? field->words[word] : NULL;
}

// Whether a field says anything.
static bool is_said(const fsdp_profile_field *field, const void *at) {
  switch (field->type) {
  case FSDP_KEY_WORD:
  case FSDP_KEY_FLAG:
    return word_of(field, at) != NULL;
  case FSDP_KEY_KERNEL:
    return *(const char *)at != 0;
  case FSDP_KEY_NUMBER:
    return *(const double *)at != 0;
  default:
    return field->type != FSDP_KEY_SOURCE;
  }
}

// A field of the struct `of`, behind `before`. False: it says nothing, and nothing is printed.
static bool print_field(const fsdp_profile_field *field, const void *of, const char *before, FILE *out) {
  const void *at = (const char *)of + field->offset;
  if (!is_said(field, at)) return false;
  fprintf(out, "%s%s: ", before, field->key);
  const bool marked = field->mark && *((const bool *)of + field->mark);
  if (field->type == FSDP_KEY_WHOLE) fprintf(out, "%d", *(const int *)at);
  if (field->type == FSDP_KEY_LONG) fprintf(out, "%lld", (long long)*(const int64_t *)at);
  if (field->type == FSDP_KEY_WORD || field->type == FSDP_KEY_FLAG) fputs(word_of(field, at), out);
  if (field->type == FSDP_KEY_NAME || field->type == FSDP_KEY_KERNEL) print_quoted(at, out);
  if (field->type == FSDP_KEY_NUMBER)
    print_number(marked ? "{value: " : "", *(const double *)at, field->number, out);
  if (marked) fputs(", estimated: true}", out);
  if (field->type == FSDP_KEY_CURVE) print_curve(at, field->number, out);
  return true;
}

// A line with those of a mapping's fields that say anything, if any does.
static void print_mapping(const char *before, const fsdp_profile_field *mapping, const void *of, FILE *out) {
  bool any = false;
  for (int i = 0; i < mapping->count; i++)
    any |= print_field(&mapping->fields[i], of, any ? ", " : before, out);
  if (any) fputs("}\n", out);
}

static void print_list(const fsdp_device_profile *p, const fsdp_profile_field *list, FILE *out) {
  const size_t bytes = fsdp_device_profile_row_bytes((fsdp_profile_list)list->number);
  int count;
  const char *rows = fsdp_device_profile_rows(p, (fsdp_profile_list)list->number, &count);
  if (count) fprintf(out, "%s:\n", list->key);
  for (int i = 0; i < count; i++) print_mapping("- {", list, rows + (size_t)i * bytes, out);
}

// The keys of the top that are of a type, each on lines of its own.
static void print_top(const fsdp_device_profile *p, fsdp_profile_field_type type, FILE *out) {
  for (int i = 0; i < fsdp_profile_top.count; i++) {
    const fsdp_profile_field *field = &fsdp_profile_top.fields[i];
    char before[32];
    if (field->type != type) continue;
    snprintf(before, sizeof before, "%s: {", field->key);
    if (type == FSDP_KEY_LIST)
      print_list(p, field, out);
    else if (field->fields)
      print_mapping(before, field, p, out);
    else if (print_field(field, p, "", out))
      fputc('\n', out);
    if (type == FSDP_KEY_LIST && field->number == FSDP_PROFILE_ATTENTION) print_top(p, FSDP_KEY_USE, out);
  }
}

void fsdp_profile_print(const fsdp_device_profile *profile, const char *source, FILE *out) {
  fputs("name: ", out);
  print_quoted(profile->name, out);
  fputs("\nsource: ", out);
  print_quoted(source, out);
  fputc('\n', out);
  print_top(profile, FSDP_KEY_WORD, out);
  print_top(profile, FSDP_KEY_WHOLE, out);
  print_top(profile, FSDP_KEY_NUMBER, out);
  print_top(profile, FSDP_KEY_MAPPING, out);
  fprintf(out, "tiles: %s\n", profile->tiles ? "true" : "false");
  print_top(profile, FSDP_KEY_LIST, out);
}
