#include "runtime/plan/text/option_store.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/text/value.h"

#include <stdlib.h>
#include <string.h>

static void *field(fsdp_options *options, const fsdp_option_row *row) {
  return (char *)options + row->offset;
}

// What a row allows, in words.
static void describe_allowed(const fsdp_option_row *row, char *out, size_t bytes) {
  size_t used = 0;
  switch (row->kind) {
  case FSDP_OPTION_INT:
    if (row->high == INT64_MAX) {
      snprintf(out, bytes, "a whole number, at least %lld", (long long)row->low);
    } else {
      snprintf(out, bytes, "a whole number from %lld to %lld", (long long)row->low, (long long)row->high);
    }
    return;
  case FSDP_OPTION_SIZE:
    snprintf(out, bytes, "a size such as 80GB (10^9 bytes) or 80GiB (2^30), at least 1 byte");
    return;
  case FSDP_OPTION_REAL:
    snprintf(out, bytes, "a number %s %g %s %g", row->open_low ? "above" : "from", row->real_low,
             row->open_high ? "and below" : "to", row->real_high);
    return;
  case FSDP_OPTION_SHARE:
    snprintf(out, bytes, "a share such as 3%% or 0.03, from %g%% %s %g%%", 100 * row->real_low,
             row->open_high ? "and below" : "to", 100 * row->real_high);
    return;
  case FSDP_OPTION_FLAG:
    snprintf(out, bytes, "on or off");
    return;
  case FSDP_OPTION_TEXT:
  case FSDP_OPTION_LIST:
  case FSDP_OPTION_REPEAT:
    snprintf(out, bytes, "a non-empty value");
    return;
  case FSDP_OPTION_WRAP:
    snprintf(out, bytes, "size, block, none or module:NAME,... (class names)");
    return;
  case FSDP_OPTION_MESH:
    snprintf(
        out, bytes,
        "data=R,fsdp=F: names, each once, with sizes from 1 (at most 1048576 ranks, and three names "
        "besides data, fsdp, tensor, context and expert, each a letter and up to %d letters, digits and _, "
        "not null and none ending in " FSDP_AXIS_REPLICA "), or two sizes, of fsdp and tensor",
        FSDP_AXIS_NAME_BYTES - 2);
    return;
  case FSDP_OPTION_SET:
    snprintf(out, bytes, "KEY=VALUE");
    return;
  case FSDP_OPTION_STEPS:
    snprintf(out, bytes, "A:B, the first and the last step, from 1 to %lld, B not before A",
             (long long)row->high);
    return;
  case FSDP_OPTION_CHOICE:
    break;
  }
  out[0] = 0;
  for (const fsdp_choice *choice = row->choices; choice->name && used < bytes; choice++) {
    used += (size_t)snprintf(out + used, bytes - used, "%s%s%s%s%s", used ? ", " : "", choice->name,
                             choice->aliases ? " (" : "", choice->aliases ? choice->aliases : "",
                             choice->aliases ? ")" : "");
  }
}

fsdp_status fsdp_option_fail_value(const fsdp_option_row *row, const char *name, const char *text,
                                   const char *place, fsdp_error *error) {
  char allowed[512];
  describe_allowed(row, allowed, sizeof allowed);
  return fsdp_fail(error, FSDP_ERR_OPTION, "--%s '%s' (%s): use %s%s%s", name, text, place, allowed,
                   row->otherwise ? "; " : "", row->otherwise ? row->otherwise : "");
}

// Of what may be given several times a later text comes behind.
static void keep_text(fsdp_options *options, const fsdp_option_row *row, const char *text) {
  char **kept = field(options, row), *made;
  const bool adds = *kept && (row->kind == FSDP_OPTION_REPEAT || row->kind == FSDP_OPTION_SET);
  const int length = asprintf(&made, "%s%s%s", adds ? *kept : "", adds ? ";" : "", text);
  FSDP_NEED_MEMORY(length >= 0, "an option's value");
  free(*kept);
  *kept = made;
}

bool fsdp_option_store(fsdp_options *options, const fsdp_option_row *row, const char *text) {
  int64_t whole = 0;
  double real = 0;
  int word = 0;
  switch (row->kind) {
  case FSDP_OPTION_INT:
  case FSDP_OPTION_SIZE:
    if (row->choices && fsdp_value_choice(text, row->choices, &word)) {
      *(int64_t *)field(options, row) = word;
      return true;
    }
    if (!(row->kind == FSDP_OPTION_INT ? fsdp_value_int : fsdp_value_size)(text, &whole)) return false;
    if (whole < row->low || whole > row->high) return false;
    *(int64_t *)field(options, row) = whole;
    return true;
  case FSDP_OPTION_REAL:
  case FSDP_OPTION_SHARE:
    if (!(row->kind == FSDP_OPTION_REAL ? fsdp_value_real : fsdp_value_share)(text, &real)) return false;
    if (real < row->real_low || (row->open_low && real == row->real_low)) return false;
    if (real > row->real_high || (row->open_high && real == row->real_high)) return false;
    *(double *)field(options, row) = real;
    return true;
  case FSDP_OPTION_FLAG:
    return fsdp_value_flag(text, field(options, row));
  case FSDP_OPTION_CHOICE:
    return fsdp_value_choice(text, row->choices, field(options, row));
  case FSDP_OPTION_WRAP:
    if (!fsdp_value_wrap(text, &(fsdp_wrap_policy){0})) return false;
    break;
  case FSDP_OPTION_MESH:
    if (!fsdp_value_mesh(text, &options->mesh_axes)) return false;
    break;
  case FSDP_OPTION_STEPS:
    if (!fsdp_value_range(text, row->high, &options->trace_first, &options->trace_last)) return false;
    break;
  case FSDP_OPTION_TEXT:
  case FSDP_OPTION_LIST:
  case FSDP_OPTION_REPEAT:
  case FSDP_OPTION_SET:
    if (!*text) return false;
    break;
  }
  keep_text(options, row, text);
  return true;
}

void fsdp_option_reset(fsdp_options *options, const fsdp_option_row *row) {
  char **text = field(options, row);
  options->place[fsdp_option_index(row)][0] = 0;
  if (row->kind == FSDP_OPTION_MESH) options->mesh_axes = (fsdp_mesh){0};
  if (row->fallback) {
    bool stored = fsdp_option_store(options, row, row->fallback);
    FSDP_CHECK(stored, "default of --%s", row->name);
    return;
  }
  if (row->kind < FSDP_OPTION_TEXT) {
    *(int64_t *)field(options, row) = 0; // a number that has no default
    return;
  }
  free(*text);
  *text = NULL;
}

static const char *word_of(const fsdp_option_row *row, int value) {
  const char *word = "default";
  for (const fsdp_choice *choice = row->choices; choice->name; choice++)
    if (choice->value == value) word = choice->name;
  return word;
}

char *fsdp_options_value(const fsdp_options *options, const fsdp_option_row *row) {
  FSDP_CHECK(row, "no option has this name");
  const void *value = (const char *)options + row->offset;
  char number[32];
  const char *text = number;
  switch (row->kind) {
  case FSDP_OPTION_INT:
  case FSDP_OPTION_SIZE:
    snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)value);
    break;
  case FSDP_OPTION_REAL:
  case FSDP_OPTION_SHARE:
    fsdp_print_real(*(const double *)value, number, sizeof number);
    break;
  case FSDP_OPTION_FLAG:
    text = *(const bool *)value ? "on" : "off";
    break;
  case FSDP_OPTION_CHOICE:
    text = word_of(row, *(const int *)value);
    break;
  default:
    text = *(char *const *)value;
  }
  return fsdp_strdup(text ? text : "", "an option's value");
}

void fsdp_options_create(fsdp_options *options) {
  memset(options, 0, sizeof *options);
  options->param_dtype = FSDP_DTYPE_AUTO;
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    FSDP_CHECK(!row->fallback || fsdp_option_store(options, row, row->fallback), "default of --%s",
               row->name);
}

void fsdp_options_destroy(fsdp_options *options) {
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++) {
    if (row->kind < FSDP_OPTION_TEXT) continue;
    char **text = (char **)((char *)options + row->offset);
    free(*text);
    *text = NULL;
  }
  free(options->run_config);
  free(options->run_note);
  free(options->run_left_out);
  free(options->evaluated);
  options->run_config = options->run_note = options->run_left_out = options->evaluated = NULL;
}
