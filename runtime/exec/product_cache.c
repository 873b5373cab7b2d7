#include "runtime/exec/product_cache.h"

#include "runtime/base/cache_file.h"
#include "runtime/base/check.h"
#include "runtime/base/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// A line of a file: the key and the algorithm, as hexadecimal digits.
#define KEY_BYTES       sizeof(fsdp_product_key)
#define ALGORITHM_BYTES sizeof(fsdp_product_algorithm)
#define LINE_LENGTH     (2 * (KEY_BYTES + ALGORITHM_BYTES) + 2)
#define ENTRIES_MAX     4096 // of a file; the oldest ones go

typedef struct entry {
  fsdp_product_key key;
  fsdp_product_algorithm algorithm;
} entry;

typedef struct entries {
  entry *list;
  int count;
} entries;

static char *print_hex(const void *data, size_t bytes, char *out) {
  for (size_t i = 0; i < bytes; i++) out += sprintf(out, "%02x", ((const unsigned char *)data)[i]);
  return out;
}

static int digit_of(char c) {
  static const char digits[] = "0123456789abcdef";
  const char *at = c ? strchr(digits, c) : NULL;
  return at ? (int)(at - digits) : -1;
}

static bool read_hex(const char *text, void *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    int high = digit_of(text[2 * i]), low = high < 0 ? -1 : digit_of(text[2 * i + 1]);
    if (low < 0) return false;
    ((unsigned char *)data)[i] = (unsigned char)(high * 16 + low);
  }
  return true;
}

static bool read_line(const char *line, entry *out) {
  return strcspn(line, "\n") == LINE_LENGTH - 1 && read_hex(line, &out->key, KEY_BYTES) &&
         line[2 * KEY_BYTES] == ' ' && read_hex(line + 2 * KEY_BYTES + 1, &out->algorithm, ALGORITHM_BYTES);
}

// A file whose checksum is right and whose lines are not was written by another version: as good as none.
static entries parse(const char *text) {
  size_t lines = text ? strlen(text) / LINE_LENGTH : 0;
  entries e = {.list = fsdp_alloc(lines * sizeof *e.list)};
  if (text && strlen(text) % LINE_LENGTH != 0) return e;
  for (size_t i = 0; i < lines; i++) {
    if (!read_line(text + i * LINE_LENGTH, &e.list[e.count++])) {
      e.count = 0;
      return e;
    }
  }
  return e;
}

static void name_file(const char *kind, char out[64]) {
  snprintf(out, 64, "products-%016" PRIx64, XXH64(kind, strlen(kind), 0));
}

static entries read_entries(const char *kind, bool reports) {
  char name[64], why[FSDP_CACHE_WHY_BYTES];
  name_file(kind, name);
  char *text = fsdp_cache_read(name, kind, why);
  if (reports && why[0]) fsdp_job_note("%s: algorithms of products are measured again", why);
  entries e = parse(text);
  free(text);
  return e;
}

static const entry *find(const entries *e, const fsdp_product_key *key) {
  for (int i = 0; i < e->count; i++)
    if (memcmp(&e->list[i].key, key, KEY_BYTES) == 0) return &e->list[i];
  return NULL;
}

int fsdp_product_cache_recall(const fsdp_product_library *library, const char *kind) {
  int count, recalled = 0;
  fsdp_product *products = library->noted(&count);
  entries e = read_entries(kind, true);
  for (int i = 0; i < count; i++) {
    const entry *found = products[i].chosen ? NULL : find(&e, &products[i].key);
    if (!found) continue;
    products[i].algorithm = found->algorithm;
    products[i].chosen = library->runs(&products[i]);
    recalled += products[i].chosen;
  }
  free(e.list);
  return recalled;
}

void fsdp_product_cache_store(const fsdp_product_library *library, const char *kind) {
  int count, kept = 0;
  const fsdp_product *products = library->noted(&count);
  // Another run may have written since this one has read.
  entries e = read_entries(kind, false);
  entry *all = fsdp_alloc((size_t)(e.count + count) * sizeof *all);
  for (int i = 0; i < count; i++) all[kept++] = (entry){products[i].key, products[i].algorithm};
  const entries ours = {.list = all, .count = kept};
  for (int i = 0; i < e.count && kept < ENTRIES_MAX; i++)
    if (!find(&ours, &e.list[i].key)) all[kept++] = e.list[i];
  char *text = fsdp_alloc((size_t)kept * LINE_LENGTH + 1), *at = text;
  for (int i = 0; i < kept; i++) {
    at = print_hex(&all[i].key, KEY_BYTES, at);
    *at++ = ' ';
    at = print_hex(&all[i].algorithm, ALGORITHM_BYTES, at);
    *at++ = '\n';
  }
  *at = 0;
  char name[64], why[FSDP_CACHE_WHY_BYTES];
  name_file(kind, name);
  if (!fsdp_cache_write(name, kind, text, why))
    fsdp_job_note("%s: the next run measures algorithms of products again", why);
  free(text);
  free(all);
  free(e.list);
}
