#include "runtime/base/print_int.h"

#include <stdio.h>

const char *fsdp_print_int(int64_t value, char *out, size_t out_bytes) {
  char digits[32], grouped[48];
  int length = snprintf(digits, sizeof digits, "%lld", (long long)value);
  int sign = digits[0] == '-', used = 0;
  for (int i = 0; i < length; i++) {
    grouped[used++] = digits[i];
    int left = length - 1 - i;
    if (i >= sign && left > 0 && left % 3 == 0) grouped[used++] = ',';
  }
  snprintf(out, out_bytes, "%.*s", used, grouped);
  return out;
}
