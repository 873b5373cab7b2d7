#include "runtime/plan/text/value.h"

#include "runtime/base/check.h"
#include "runtime/base/dtype.h"
#include "runtime/plan/program/schedule.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NUMBER_BYTES 64

// Copies a number without its underscores, which must stand between digits, up to the first character that no
// decimal number has. Returns the rest of `text`, or NULL if it does not begin with a number.
static const char *copy_number(const char *text, char out[NUMBER_BYTES]) {
  size_t used = 0;
  const char *at = text;
  if (*at == '+' || *at == '-') out[used++] = *at++;
  if (!isdigit((unsigned char)*at) && *at != '.') return NULL;
  for (; *at; at++) {
    bool exponent =
        (*at == 'e' || *at == 'E') &&
        (isdigit((unsigned char)at[1]) || ((at[1] == '+' || at[1] == '-') && isdigit((unsigned char)at[2])));
    bool sign = (*at == '+' || *at == '-') && (at[-1] == 'e' || at[-1] == 'E');
    if (*at == '_') {
      if (at == text || !isdigit((unsigned char)at[-1]) || !isdigit((unsigned char)at[1])) return NULL;
      continue;
    }
    if (!isdigit((unsigned char)*at) && *at != '.' && !exponent && !sign) break;
    if (used + 1 >= NUMBER_BYTES) return NULL;
    out[used++] = *at;
  }
  out[used] = 0;
  return at;
}

// The number as a real; false if it is not one or is beyond a double.
static bool to_real(const char *number, double *value) {
  char *end;
  errno = 0;
  *value = strtod(number, &end);
  return end != number && *end == 0 && isfinite(*value);
}

// A real that is a whole number within int64.
static bool real_to_int(double real, int64_t *value) {
  if (real != floor(real) || !(real > -9.2233720368547748e18 && real < 9.2233720368547748e18)) return false;
  *value = (int64_t)real;
  return true;
}

bool fsdp_value_int(const char *text, int64_t *value) {
  char number[NUMBER_BYTES];
  const char *rest = copy_number(text, number);
  if (!rest || *rest) return false;
  if (strpbrk(number, ".eE")) {
    double real;
    return to_real(number, &real) && real_to_int(real, value);
  }
  char *end;
  errno = 0;
  long long whole = strtoll(number, &end, 10);
  if (errno || *end || end == number) return false;
  *value = whole;
  return true;
}

bool fsdp_value_size(const char *text, int64_t *value) {
  static const struct {
    const char *name;
    int64_t bytes;
  } units[] = {{"", 1},
               {"B", 1},
               {"kB", 1000},
               {"MB", 1000000},
               {"GB", 1000000000},
               {"TB", 1000000000000},
               {"KiB", 1LL << 10},
               {"MiB", 1LL << 20},
               {"GiB", 1LL << 30},
               {"TiB", 1LL << 40}};
  char number[NUMBER_BYTES];
  const char *rest = copy_number(text, number);
  if (!rest) return false;
  while (*rest == ' ') rest++;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcasecmp(rest, units[i].name) != 0) continue;
    double real;
    if (!to_real(number, &real)) return false;
    // Half a byte is nothing anyone asks for: a fraction of a unit ends at a whole byte.
    return real_to_int(floor(real * (double)units[i].bytes), value);
  }
  return false;
}

bool fsdp_value_real(const char *text, double *value) {
  char number[NUMBER_BYTES];
  const char *rest = copy_number(text, number);
  return rest && !*rest && to_real(number, value);
}

bool fsdp_value_share(const char *text, double *value) {
  char number[NUMBER_BYTES];
  const char *rest = copy_number(text, number);
  if (!rest || !to_real(number, value)) return false;
  if (*rest == '%') *value /= 100, rest++;
  return !*rest;
}

// ---- Decimals

bool fsdp_value_decimal(const char *text, int exponent, double *value) {
  char whole[80], *end;
  const size_t mantissa = strcspn(text, "eE");
  if (mantissa == 0 || mantissa > 64 || strspn(text, "+-.0123456789") < mantissa) return false;
  long own = 0;
  if (text[mantissa]) {
    const char *digits = text + mantissa + 1;
    own = strtol(digits, &end, 10);
    if (end == digits || *end || labs(own) > 400) return false;
  }
  snprintf(whole, sizeof whole, "%.*se%ld", (int)mantissa, text, own + exponent);
  return to_real(whole, value);
}

// Digits d1 d2 ... with the point behind the first `whole` of them; zeros where there are none.
static void put_point(const char *digits, int whole, char *out) {
  const int count = (int)strlen(digits);
  for (int i = whole < 1 ? whole - 1 : 0; i < count || i < whole; i++) {
    if (i == whole) *out++ = '.';
    *out++ = i < 0 || i >= count ? '0' : digits[i];
  }
  *out = 0;
}

const char *fsdp_value_print_decimal(double value, int exponent, char out[FSDP_DECIMAL_BYTES]) {
  char text[FSDP_DECIMAL_BYTES], digits[FSDP_DECIMAL_BYTES];
  for (int precision = 0; precision < 17; precision++) {
    snprintf(text, sizeof text, "%.*e", precision, fabs(value));
    if (strtod(text, NULL) == fabs(value)) break;
  }
  char *e = strchr(text, 'e');
  const int power = value == 0 ? 0 : atoi(e + 1) - exponent;
  *e = 0;
  if (signbit(value)) *out = '-';
  char *begin = out + (signbit(value) != 0);
  if (power < -6 || power > 15) {
    snprintf(begin, FSDP_DECIMAL_BYTES - 1, "%.30se%d", text, power);
    return out;
  }
  // The digits stay and the point moves: nothing is rounded again.
  snprintf(digits, sizeof digits, "%c%s", text[0], text[1] ? text + 2 : "");
  put_point(digits, power + 1, begin);
  return out;
}

// ---- Words

bool fsdp_value_flag(const char *text, bool *value) {
  static const fsdp_choice words[] = {{"on", 1, "true yes 1"}, {"off", 0, "false no 0"}, {NULL, 0, NULL}};
  int found;
  if (!fsdp_value_choice(text, words, &found)) return false;
  *value = found != 0;
  return true;
}

// Whether `text` is one of the words of `list`.
static bool is_word_of(const char *text, const char *list) {
  size_t length = strlen(text);
  for (const char *at = list; at && *at;) {
    size_t word = strcspn(at, " ");
    if (word == length && strncasecmp(at, text, length) == 0) return true;
    at += word + strspn(at + word, " ");
  }
  return false;
}

bool fsdp_value_choice(const char *text, const fsdp_choice *choices, int *value) {
  for (; choices->name; choices++) {
    if (strcasecmp(text, choices->name) != 0 && !is_word_of(text, choices->aliases)) continue;
    *value = choices->value;
    return true;
  }
  return false;
}

// Whether an axis has a name that the halves of a factored one have.
static bool is_factor(const char *name) {
  size_t length = strlen(name), ending = strlen(FSDP_AXIS_REPLICA);
  return length >= ending && !strcmp(name + length - ending, FSDP_AXIS_REPLICA);
}

// Adds "NAME=SIZE" to the mesh, or a size alone, which is the next of `unnamed`.
static bool add_axis(fsdp_mesh *mesh, char *part, const char *unnamed) {
  char *value = strchr(part, '=');
  const char *name = value ? part : unnamed;
  if (value) *value++ = 0;
  int64_t size;
  if (!name || !fsdp_value_int(value ? value : part, &size) || size < 1 || size > FSDP_MESH_RANKS_MAX)
    return false;
  return !is_factor(name) && fsdp_mesh_add(mesh, name, (int)size);
}

static int count_own(const fsdp_mesh *mesh) {
  fsdp_mesh all = *mesh;
  fsdp_mesh_complete(&all);
  return all.count - fsdp_mesh_of(1, 1).count;
}

bool fsdp_value_range(const char *text, int64_t high, int64_t *first, int64_t *last) {
  char part[NUMBER_BYTES];
  size_t length = strcspn(text, ":");
  if (text[length] != ':' || length >= sizeof part) return false;
  memcpy(part, text, length);
  part[length] = 0;
  return fsdp_value_int(part, first) && fsdp_value_int(text + length + 1, last) && *first >= 1 &&
         *first <= *last && *last <= high;
}

bool fsdp_value_mesh(const char *text, fsdp_mesh *mesh) {
  static const char *const unnamed[] = {FSDP_AXIS_FSDP, FSDP_AXIS_TENSOR, NULL};
  bool is_named = strchr(text, '=') != NULL;
  *mesh = (fsdp_mesh){0};
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    char part[NUMBER_BYTES];
    if (length >= sizeof part || mesh->count > (is_named ? FSDP_MESH_AXES_MAX : 2)) return false;
    memcpy(part, at, length);
    part[length] = 0;
    if (is_named != (strchr(part, '=') != NULL)) return false;
    if (!add_axis(mesh, part, is_named ? NULL : unnamed[mesh->count])) return false;
    at += length;
    if (!*at) break;
  }
  return is_named ? count_own(mesh) <= FSDP_AXIS_OWN_MAX : mesh->count == 2;
}

static const fsdp_choice wrap_kinds[] = {{"size", FSDP_WRAP_SIZE, NULL},
                                         {"block", FSDP_WRAP_BLOCK, NULL},
                                         {"none", FSDP_WRAP_NONE, NULL},
                                         {NULL, 0, NULL}};

const char *fsdp_value_print_wrap(const fsdp_wrap_policy *policy, char *out, size_t out_bytes) {
  const fsdp_choice *kind = wrap_kinds;
  while (kind->name && kind->value != (int)policy->kind) kind++;
  FSDP_CHECK(kind->name || policy->kind == FSDP_WRAP_MODULE, "wrap policy %d has no text", (int)policy->kind);
  snprintf(out, out_bytes, "%s%s", kind->name ? kind->name : "module:", kind->name ? "" : policy->classes);
  return out;
}

// "module:" needs at least one name, none empty.
bool fsdp_value_wrap(const char *text, fsdp_wrap_policy *policy) {
  for (const fsdp_choice *k = wrap_kinds; k->name; k++) {
    if (strcmp(text, k->name) != 0) continue;
    policy->kind = (fsdp_wrap_kind)k->value;
    return true;
  }
  if (strncmp(text, "module:", 7) != 0) return false;
  policy->kind = FSDP_WRAP_MODULE;
  policy->classes = text + 7;
  for (const char *at = policy->classes;; at++) {
    size_t length = strcspn(at, ",");
    if (length == 0) return false;
    at += length;
    if (!*at) return true;
  }
}

const fsdp_choice fsdp_strategy_words[] = {
    {"full", FSDP_FULL, "FULL_SHARD zero3"},  {"grad_op", FSDP_GRAD_OP, "SHARD_GRAD_OP zero2"},
    {"no", FSDP_NO, "NO_SHARD ddp zero0"},    {"hybrid", FSDP_HYBRID, "HYBRID_SHARD hsdp"},
    {"zero1", FSDP_ZERO1, "SHARD_OPTIMIZER"}, {NULL, 0, NULL}};
const fsdp_choice fsdp_accumulate_words[] = {
    {"reduce", FSDP_ACCUMULATE_REDUCE, NULL}, {"local", FSDP_ACCUMULATE_LOCAL, NULL}, {NULL, 0, NULL}};
const fsdp_choice fsdp_dtype_words[] = {
    {"bf16", FSDP_BF16, "bfloat16"}, {"fp32", FSDP_F32, "float32"}, {NULL, 0, NULL}};
