// Several plans in one table: what each needs, sends, and whether it fits.
#pragma once

#include "launcher/report/price.h"

#include <jansson.h>
#include <stdio.h>

typedef struct fsdp_compare_row {
  const char *name; // of its file
  const fsdp_plan *plan;
  const fsdp_price_report *price; // NULL: not asked for
  bool fits;
} fsdp_compare_row;

// Prints the table.
void fsdp_compare_print(const fsdp_compare_row *rows, int count, FILE *out);

// {"plans": [...]} with the table's columns, in bytes. A new reference.
json_t *fsdp_compare_json(const fsdp_compare_row *rows, int count);
