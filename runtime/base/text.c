#include "runtime/base/text.h"

#include "runtime/base/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fsdp_number_text fsdp_print_int(int64_t value) {
  fsdp_number_text grouped = {""};
  char digits[32];
  int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
  int sign = digits[0] == '-', used = 0;
  for (int i = 0; i < length; i++) {
    grouped.text[used++] = digits[i];
    int left = length - 1 - i;
    if (i >= sign && left > 0 && left % 3 == 0) grouped.text[used++] = ',';
  }
  return grouped;
}

fsdp_number_text fsdp_print_bytes(int64_t bytes) {
  fsdp_number_text out;
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = (double)bytes;
  int unit = 0;
  while (value >= 999.5 && unit < 6) {
    value /= 1000;
    unit++;
  }
  int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  snprintf(out.text, sizeof out.text, "%.*f %s", decimals, value, units[unit]);
  return out;
}

const char *fsdp_print_real(double value, char *out, size_t out_bytes) {
  const bool whole = fabs(value) < 1e6 && value == floor(value); // 20, not 2e+01
  for (int digits = whole ? 6 : 1; digits <= 17; digits++) {
    snprintf(out, out_bytes, "%.*g", digits, value);
    if (strtod(out, NULL) == value) break;
  }
  return out;
}

const char *fsdp_print_shape(int dims, const int64_t *shape, char out[96]) {
  int used = snprintf(out, 96, "(");
  for (int d = 0; d < dims; d++)
    used += snprintf(out + used, 96 - (size_t)used, "%s%lld", d ? ", " : "", (long long)shape[d]);
  snprintf(out + used, 96 - (size_t)used, ")");
  return out;
}

bool fsdp_ends_with(const char *text, const char *ending) {
  const size_t length = strlen(text), end = strlen(ending);
  return length >= end && strcmp(text + length - end, ending) == 0;
}

char *fsdp_shell_word(const char *text) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+:@%-=,";
  char *word = fsdp_alloc(4 * strlen(text) + 3), *to = word;
  const bool quote = !*text || text[strspn(text, plain)];
  if (quote) *to++ = '\'';
  for (; *text; text++) {
    if (*text == '\'') to = stpcpy(to, "'\\'");
    *to++ = *text;
  }
  if (quote) *to++ = '\'';
  *to = 0;
  return word;
}
