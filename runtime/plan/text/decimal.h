// Decimal numbers in units that are powers of ten: 794.5 of 1e12 is exactly the double nearest to 794.5e12.
#pragma once

#include <stdbool.h>

#define FSDP_DECIMAL_BYTES 48

// The finite number that the text is, times 10^exponent. False: it is none.
bool fsdp_decimal_read(const char *text, int exponent, double *value);

// The shortest text that fsdp_decimal_read turns into `value` again, which is finite. Returns `out`.
const char *fsdp_decimal_print(double value, int exponent, char out[FSDP_DECIMAL_BYTES]);
