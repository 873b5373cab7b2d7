#include "launcher/profile/profile_file.h"

#include "runtime/data/yaml_file.h"
#include "runtime/plan/text/decimal.h"
#include "runtime/plan/text/profile_keys.h"
#include "runtime/plan/text/profile_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- Reading

static char *find(const char *path) {
  return access(path, F_OK) == 0 ? realpath(path, NULL) : NULL;
}

fsdp_status fsdp_profile_read(const char *name_or_path, fsdp_device_profile **profile, fsdp_error *error) {
  return fsdp_profile_read_with(name_or_path, find, fsdp_yaml_visit_file, profile, error);
}

// ---- Printing

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
  fprintf(out, "%s%s", before, fsdp_decimal_print(value, exponent, text));
}

static void print_curve(const fsdp_profile_curve *curve, int exponent, FILE *out) {
  fputc('{', out);
  for (int i = 0; i < curve->count; i++) {
    print_number(i ? ", " : "", curve->points[i].size, 0, out);
    print_number(": ", curve->points[i].value, exponent, out);
  }
  fputc('}', out);
}

static double value_of(const fsdp_device_profile *p, const fsdp_profile_number *number) {
  double value;
  memcpy(&value, (const char *)p + number->offset, sizeof value);
  return value;
}

// A mapping of those of its numbers that are not 0.
static void print_section(const fsdp_device_profile *p, const fsdp_profile_section *section, FILE *out) {
  bool any = false;
  for (int i = 0; i < section->count; i++) {
    const fsdp_profile_number *number = &section->numbers[i];
    if (value_of(p, number) == 0) continue;
    if (any)
      fputs(", ", out);
    else
      fprintf(out, "%s: {", section->key);
    const bool marked = number->mark && *((const bool *)p + number->mark);
    fputs(number->key, out);
    print_number(marked ? ": {value: " : ": ", value_of(p, number), number->exponent, out);
    if (marked) fputs(", estimated: true}", out);
    any = true;
  }
  if (any) fputs("}\n", out);
}

static void print_top(const fsdp_device_profile *p, FILE *out) {
  fprintf(out, "device: %s\nprocessors: %d\n", p->device == FSDP_OP_CUDA ? "cuda" : "cpu", p->processors);
  for (int i = 0; i < FSDP_PROFILE_NUMBERS; i++) {
    const fsdp_profile_number *number = &fsdp_profile_numbers[i];
    if (value_of(p, number) == 0) continue;
    fputs(number->key, out);
    print_number(": ", value_of(p, number), number->exponent, out);
    fputc('\n', out);
  }
  for (int i = 0; i < FSDP_PROFILE_SECTIONS; i++) print_section(p, &fsdp_profile_sections[i], out);
  fprintf(out, "tiles: %s\n", p->tiles ? "true" : "false");
}

static void print_use(const fsdp_device_profile *p, FILE *out) {
  const char *const kernels[] = {p->attention_kernel, p->grouped_kernel};
  static const char *const names[] = {"attention: ", "grouped: "};
  bool any = false;
  for (int i = 0; i < 2; i++) {
    if (!*kernels[i]) continue;
    fputs(any ? ", " : "use: {", out);
    fputs(names[i], out);
    print_quoted(kernels[i], out);
    any = true;
  }
  if (any) fputs("}\n", out);
}

// The word that stands for a field's value, or NULL: none does, as for an op of any dtype, or false.
static const char *word_of(const fsdp_profile_field *field, const void *at) {
  if (field->type == FSDP_FIELD_FLAG) return *(const bool *)at ? "true" : NULL;
  const int word = *(const int *)at - field->number;
  return word < field->word_count ? field->words[word] : NULL;
}

static void print_field(const fsdp_profile_field *field, const void *at, const char *before, FILE *out) {
  const bool is_word = field->type == FSDP_FIELD_WORD || field->type == FSDP_FIELD_FLAG;
  const char *word = is_word ? word_of(field, at) : "";
  if (!word) return;
  fprintf(out, "%s%s: %s", before, field->key, word);
  if (field->type == FSDP_FIELD_WHOLE) fprintf(out, "%d", *(const int *)at);
  if (field->type == FSDP_FIELD_LONG) fprintf(out, "%lld", (long long)*(const int64_t *)at);
  if (field->type == FSDP_FIELD_NAME) print_quoted(at, out);
  if (field->type == FSDP_FIELD_RATE) print_number("", *(const double *)at, field->number, out);
  if (field->type == FSDP_FIELD_CURVE) print_curve(at, field->number, out);
}

static void print_list(const fsdp_device_profile *p, fsdp_profile_list list, FILE *out) {
  int count;
  const char *rows = fsdp_device_profile_rows(p, list, &count);
  if (count) fprintf(out, "%s:\n", fsdp_profile_lists[list].key);
  for (int i = 0; i < count; i++, rows += fsdp_device_profile_row_bytes(list)) {
    fputs("- {", out);
    for (int f = 0; f < fsdp_profile_lists[list].count; f++) {
      const fsdp_profile_field *field = &fsdp_profile_lists[list].fields[f];
      print_field(field, rows + field->offset, f ? ", " : "", out);
    }
    fputs("}\n", out);
  }
}

void fsdp_profile_print(const fsdp_device_profile *profile, const char *source, FILE *out) {
  fputs("name: ", out);
  print_quoted(profile->name, out);
  fputs("\nsource: ", out);
  print_quoted(source, out);
  fputc('\n', out);
  print_top(profile, out);
  for (int list = 0; list < FSDP_PROFILE_LISTS; list++) {
    print_list(profile, (fsdp_profile_list)list, out);
    if (list == FSDP_PROFILE_ATTENTION) print_use(profile, out);
  }
}
