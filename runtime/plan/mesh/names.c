#include "runtime/plan/mesh/names.h"

#include <string.h>

// The part at `at` up to the next dot; `next` is what follows, or NULL.
static size_t part_of(const char *at, const char **next) {
  size_t length = strcspn(at, ".");
  *next = at[length] ? at + length + 1 : NULL;
  return length;
}

static bool is_integer(const char *part, size_t length) {
  return length > 0 && strspn(part, "0123456789") >= length;
}

static bool is_any(const char *part, size_t length) {
  return length == 1 && *part == '*';
}

bool fsdp_name_matches(const char *rule, const char *name) {
  while (rule && name) {
    const char *next_rule, *next_name;
    size_t of_rule = part_of(rule, &next_rule), of_name = part_of(name, &next_name);
    bool same = of_rule == of_name && memcmp(rule, name, of_rule) == 0;
    if (!same && !(is_any(rule, of_rule) && is_integer(name, of_name))) return false;
    rule = next_rule;
    name = next_name;
  }
  return !rule && !name;
}

bool fsdp_name_wins(const char *a, const char *b) {
  while (a && b) {
    const char *next_a, *next_b;
    bool any_a = is_any(a, part_of(a, &next_a)), any_b = is_any(b, part_of(b, &next_b));
    if (any_a != any_b) return any_b;
    a = next_a;
    b = next_b;
  }
  return false;
}

void fsdp_name_pattern(const char *name, char out[FSDP_NAME_BYTES]) {
  size_t used = 0;
  for (const char *at = name, *next; at && used < FSDP_NAME_BYTES; at = next) {
    size_t length = part_of(at, &next);
    bool integer = is_integer(at, length);
    used += (size_t)snprintf(out + used, FSDP_NAME_BYTES - used, "%.*s%s", integer ? 1 : (int)length,
                             integer ? "*" : at, next ? "." : "");
  }
}

// ---- Listings

fsdp_name_line fsdp_name_line_of(const char *name, int output, const char *text, const char *note) {
  fsdp_name_line line = {.text = text, .note = note};
  char index[16] = "", pattern[FSDP_NAME_BYTES];
  if (output >= 0) snprintf(index, sizeof index, "[%d]", output);
  fsdp_name_pattern(name, pattern);
  snprintf(line.name, sizeof line.name, "%s%s", name, index);
  snprintf(line.pattern, sizeof line.pattern, "%s%s", pattern, index);
  return line;
}

static bool same(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

// Whether line `at` is the first of its pattern; *alike: all of them say the same.
static bool opens(const fsdp_name_line *lines, int count, int at, bool by_notes, bool *alike) {
  *alike = true;
  for (int i = 0; i < count; i++) {
    if (i == at || !same(lines[i].pattern, lines[at].pattern)) continue;
    if (i < at) return false;
    *alike =
        *alike && same(lines[i].text, lines[at].text) && (!by_notes || same(lines[i].note, lines[at].note));
  }
  return true;
}

// The line, with the notes of those of its pattern among the `count` from it on.
static void print_line(const fsdp_name_line *line, const char *name, int count, int column, FILE *out) {
  const char *quote = *name && *name != '[' ? "" : "'"; // a name that is empty, or begins with its index
  const int used = fprintf(out, "%s%s%s: %s", quote, name, quote, line->text);
  bool any = false;
  for (int i = 0; i < count; i++) {
    int known = 0;
    if (!line[i].note || !same(line[i].pattern, line->pattern)) continue;
    while (known < i && !(same(line[known].pattern, line->pattern) && same(line[known].note, line[i].note)))
      known++;
    if (known < i) continue;
    if (any) fprintf(out, "; %s", line[i].note);
    if (!any) fprintf(out, "%*s  # %s", used < column ? column - used : 0, "", line[i].note);
    any = true;
  }
  fputc('\n', out);
}

void fsdp_name_lines_print(const fsdp_name_line *lines, int count, bool by_notes, int column, FILE *out) {
  for (int i = 0; i < count; i++) {
    bool alike;
    if (!opens(lines, count, i, by_notes, &alike)) continue;
    if (alike) print_line(&lines[i], lines[i].pattern, count - i, column, out);
    for (int j = i; j < count && !alike; j++)
      if (same(lines[j].pattern, lines[i].pattern)) print_line(&lines[j], lines[j].name, 1, column, out);
  }
}
