// What is known of settings that were estimated: open addressing by a hash of what differs between settings.
#include "runtime/base/check.h"
#include "runtime/plan/search/search_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KEY_BYTES (FSDP_MESH_TEXT_BYTES + 2 * FSDP_SAVING_TEXT_BYTES + 256)

struct search_known {
  char *key; // NULL: free
  bool makes_plan;
  search_estimate estimate;
};

// All that a search changes of a configuration.
static void print_key(const fsdp_plan_config *c, char key[KEY_BYTES]) {
  char mesh[FSDP_MESH_TEXT_BYTES], recompute[FSDP_SAVING_TEXT_BYTES], offload[FSDP_SAVING_TEXT_BYTES];
  snprintf(key, KEY_BYTES, "%s %d %d %d %" PRId64 " %" PRId64 " %d %d %d %s %s",
           fsdp_mesh_print(&c->mesh, ",", mesh), (int)c->strategy, c->cpu_offload, (int)c->wrap.kind,
           c->wrap.numel, c->batch, c->micro_batches, c->prefetch, (int)c->accumulate,
           fsdp_saving_print(&c->saving, FSDP_FATE_RECOMPUTE, recompute),
           fsdp_saving_print(&c->saving, FSDP_FATE_OFFLOAD, offload));
}

// The place of a key, or the free one where it would lie.
static search_known *place_of(search_known *places, int64_t size, const char *key) {
  int64_t at = (int64_t)(XXH3_64bits(key, strlen(key)) % (uint64_t)size);
  while (places[at].key && strcmp(places[at].key, key) != 0) at = (at + 1) % size;
  return &places[at];
}

static void grow(search_drafts *drafts) {
  const int64_t size = drafts->size ? 2 * drafts->size : 256;
  search_known *places = fsdp_alloc_zeroed((size_t)size, sizeof *places);
  for (int64_t i = 0; i < drafts->size; i++)
    if (drafts->known[i].key) *place_of(places, size, drafts->known[i].key) = drafts->known[i];
  free(drafts->known);
  drafts->known = places;
  drafts->size = size;
}

bool search_estimate_of(const fsdp_search_config *search, const fsdp_plan_config *config,
                        search_drafts *drafts, search_estimate *estimate) {
  char key[KEY_BYTES];
  if (2 * (drafts->used + 1) > drafts->size) grow(drafts);
  print_key(config, key);
  search_known *known = place_of(drafts->known, drafts->size, key);
  if (!known->key) {
    known->makes_plan =
        search_estimate_make(search, config, &drafts->count, &known->estimate, NULL) == FSDP_OK;
    known->key = fsdp_alloc(strlen(key) + 1);
    memcpy(known->key, key, strlen(key) + 1);
    drafts->used++;
  }
  *estimate = known->estimate;
  return known->makes_plan;
}

void search_drafts_release(search_drafts *drafts) {
  for (int64_t i = 0; i < drafts->size; i++) free(drafts->known[i].key);
  free(drafts->known);
}
