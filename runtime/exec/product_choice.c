#include "runtime/exec/product_choice.h"

#include "runtime/base/cache_file.h"
#include "runtime/base/check.h"
#include "runtime/base/job.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KIND_BYTES (FSDP_GPU_KIND_BYTES + 64)

// ---- What is remembered, in a file of each kind of GPU, driver and library

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

// Chooses, of the products without an algorithm, those that are remembered and that the library runs; returns
// their number.
static int recall(const fsdp_product_library *library, const char *kind) {
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

// Remembers all products noted, beside those of other programs.
static void store(const fsdp_product_library *library, const char *kind) {
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

// ---- The choice

static int world_size(const fsdp_world *world) {
  return world ? world->size : 1;
}

// Shapes are the same on all ranks, as the program is; where a rank's matrix lies may not be.
static fsdp_status agree_on_shapes(fsdp_world *world, const fsdp_product_library *library,
                                   fsdp_error *error) {
  int count;
  fsdp_product *products = library->noted(&count);
  uint64_t shapes = (uint64_t)count;
  for (int i = 0; i < count; i++) shapes = XXH64(&products[i].key, FSDP_PRODUCT_SHAPE_BYTES, shapes);
  if (!world) return FSDP_OK;
  fsdp_status status = fsdp_world_agree(world, "the list of products", shapes, error);
  if (status || count == 0) return status;
  int64_t *least = fsdp_alloc((size_t)(count * FSDP_PRODUCT_MATRICES) * sizeof *least);
  for (int i = 0; i < count * FSDP_PRODUCT_MATRICES; i++)
    least[i] = products[i / FSDP_PRODUCT_MATRICES].key.alignment[i % FSDP_PRODUCT_MATRICES];
  fsdp_world_reduce(world, FSDP_REDUCE_MIN, least, count * FSDP_PRODUCT_MATRICES);
  for (int i = 0; i < count * FSDP_PRODUCT_MATRICES; i++)
    products[i / FSDP_PRODUCT_MATRICES].key.alignment[i % FSDP_PRODUCT_MATRICES] = (uint32_t)least[i];
  free(least);
  return FSDP_OK;
}

// The lowest rank whose GPU and library are the same, by rank.
static int *find_leaders(fsdp_world *world, const char *kind) {
  int size = world_size(world);
  int *leaders = fsdp_alloc((size_t)size * sizeof *leaders);
  uint64_t mine = XXH64(kind, strlen(kind), 0), *all = fsdp_alloc((size_t)size * sizeof *all);
  all[0] = mine;
  if (world) fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  for (int r = 0; r < size; r++) {
    leaders[r] = 0;
    while (all[leaders[r]] != all[r]) leaders[r]++;
  }
  free(all);
  return leaders;
}

// On the leader.
static int choose(const fsdp_product_library *library, const char *kind) {
  char of[KIND_BYTES + 32];
  snprintf(of, sizeof of, "%s, the fastest of %d", kind, library->candidates());
  const int recalled = recall(library, of);
  if (fsdp_products_measure(library) > 0) store(library, of);
  return recalled;
}

// Takes the leader's algorithms.
static void take(const fsdp_product_library *library, const fsdp_product_algorithm *algorithms, int leader,
                 fsdp_error *error) {
  int count;
  fsdp_product *products = library->noted(&count);
  for (int i = 0; i < count; i++) {
    const fsdp_product_key *key = &products[i].key;
    products[i].algorithm = algorithms[i];
    products[i].chosen = true;
    if (library->runs(&products[i])) continue;
    fsdp_fail(error, FSDP_ERR_PEER,
              "this rank cannot run the algorithm that rank %d chose for products of %" PRId64 " x %" PRId64
              " x %" PRId64 ": use the same version of CUDA's libraries on every node",
              leader, key->m, key->n, key->k);
    return;
  }
}

static uint64_t digest_of(const fsdp_product_library *library) {
  int count;
  const fsdp_product *products = library->noted(&count);
  uint64_t digest = (uint64_t)count;
  for (int i = 0; i < count; i++) {
    digest = XXH64(&products[i].key, sizeof products[i].key, digest);
    digest = XXH64(&products[i].algorithm, sizeof products[i].algorithm, digest);
  }
  return digest;
}

// Each kind's leader hands out its algorithms, one kind after the other.
static void hand_out(fsdp_world *world, const fsdp_product_library *library, const int *leaders,
                     fsdp_error *error) {
  int count;
  const fsdp_product *products = library->noted(&count);
  fsdp_product_algorithm *algorithms = fsdp_alloc((size_t)count * sizeof *algorithms);
  for (int r = 0; r < world->size && count > 0; r++) {
    if (leaders[r] != r) continue;
    for (int i = 0; i < count; i++) algorithms[i] = products[i].algorithm;
    fsdp_world_broadcast_from(world, r, algorithms, (int64_t)((size_t)count * sizeof *algorithms));
    if (leaders[world->rank] == r && r != world->rank) take(library, algorithms, r, error);
  }
  free(algorithms);
}

// Every rank's must be its leader's. The result is of all of them.
static uint64_t compare(fsdp_world *world, uint64_t mine, const int *leaders, int *kinds, fsdp_error *error) {
  int size = world_size(world);
  uint64_t *all = fsdp_alloc((size_t)size * sizeof *all), digest = 0;
  all[0] = mine;
  if (world) fsdp_world_gather(world, &mine, (int64_t)sizeof mine, all);
  *kinds = 0;
  for (int r = 0; r < size; r++) {
    if (leaders[r] == r) {
      digest = (*kinds)++ == 0 ? all[r] : XXH64(&all[r], sizeof all[r], digest);
    } else if (all[r] != all[leaders[r]] && error->status == FSDP_OK) {
      fsdp_fail(error, FSDP_ERR_PEER,
                "algorithms of products differ between ranks %d (%016" PRIx64 ") and %d (%016" PRIx64 ")",
                leaders[r], all[leaders[r]], r, all[r]);
    }
  }
  free(all);
  return digest;
}

fsdp_status fsdp_product_choice_make(fsdp_world *world, const fsdp_gpu *gpu,
                                     const fsdp_product_library *library, fsdp_product_choice *choice,
                                     fsdp_error *error) {
  char kind[KIND_BYTES], device[FSDP_GPU_KIND_BYTES];
  const int rank = world ? world->rank : 0;
  *choice = (fsdp_product_choice){0};
  error->status = FSDP_OK;
  if (agree_on_shapes(world, library, error) != FSDP_OK) return error->status;
  library->name(choice->library, sizeof choice->library);
  snprintf(kind, sizeof kind, "%s, %s", fsdp_gpu_kind(gpu, device), choice->library);
  int *leaders = find_leaders(world, kind);
  if (leaders[rank] == rank) choice->remembered = choose(library, kind);
  if (world) {
    hand_out(world, library, leaders, error);
    fsdp_world_share_error(world, error);
  }
  library->noted(&choice->count);
  if (error->status == FSDP_OK)
    choice->digest = compare(world, digest_of(library), leaders, &choice->kinds, error);
  free(leaders);
  return error->status;
}

const char *fsdp_product_choice_print(const fsdp_product_choice *choice, char *out, size_t bytes) {
  char kinds[80] = "";
  if (choice->kinds > 1)
    snprintf(kinds, sizeof kinds, ", on %d kinds of GPU, by the lowest rank of each", choice->kinds);
  snprintf(out, bytes, "%d by %s (%d remembered)%s, algorithms %016" PRIx64, choice->count, choice->library,
           choice->remembered, kinds, choice->digest);
  return out;
}
