#include "runtime/exec/product_choice.h"

#include "runtime/base/check.h"
#include "runtime/exec/product_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KIND_BYTES (FSDP_GPU_KIND_BYTES + 64)

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
  int recalled = fsdp_product_cache_recall(library, of);
  if (fsdp_products_measure(library) > 0) fsdp_product_cache_store(library, of);
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
