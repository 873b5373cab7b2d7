// Whole numbers for people.
#pragma once

#include <stddef.h>
#include <stdint.h>

// With commas: "1,318,912". Returns `out`.
const char *fsdp_print_int(int64_t value, char *out, size_t out_bytes);
