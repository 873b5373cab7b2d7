// Numbers and words as text, for people and to be read back.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A number as text, for an argument of a call: fsdp_print_int(steps).text.
typedef struct fsdp_number_text {
  char text[48];
} fsdp_number_text;

// With commas: "1,318,912".
fsdp_number_text fsdp_print_int(int64_t value);

// Bytes for people, with three figures: "913 B", "1.50 GB" (powers of 1000).
fsdp_number_text fsdp_print_bytes(int64_t bytes);

// The shortest decimal that reads back as the same double, at most 31 characters. Returns `out`.
const char *fsdp_print_real(double value, char *out, size_t out_bytes);

// "(32, 16)". Returns `out`.
const char *fsdp_print_shape(int dims, const int64_t *shape, char out[96]);

// The ending of a noun after the number `count`: "1 step", "2 steps".
static inline const char *fsdp_plural(int64_t count) {
  return count == 1 ? "" : "s";
}

// Whether `text` ends in `ending`.
bool fsdp_ends_with(const char *text, const char *ending);

// A text as one word of a shell's command line: quoted if a shell would read something else. The caller frees
// it.
char *fsdp_shell_word(const char *text);
