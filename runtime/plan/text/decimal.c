#include "runtime/plan/text/decimal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool fsdp_decimal_read(const char *text, int exponent, double *value) {
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
  errno = 0;
  *value = strtod(whole, &end);
  return !*end && end != whole && isfinite(*value);
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

const char *fsdp_decimal_print(double value, int exponent, char out[FSDP_DECIMAL_BYTES]) {
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
