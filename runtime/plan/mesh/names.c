#include "runtime/plan/mesh/names.h"

#include <stdio.h>
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
