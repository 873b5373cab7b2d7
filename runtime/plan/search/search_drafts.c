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
  search_estimate estimate; // of ABOUT_PEAKS only the bytes
};

// What is asked of a setting.
typedef enum about { ABOUT_FEW, ABOUT_WHOLE, ABOUT_PEAKS } about;

// All that a search changes of a configuration.
static void print_key(const fsdp_plan_config *c, about what, char key[KEY_BYTES]) {
  char mesh[FSDP_MESH_TEXT_BYTES], recompute[FSDP_SAVING_TEXT_BYTES], offload[FSDP_SAVING_TEXT_BYTES];
  snprintf(key, KEY_BYTES, "%d %s %d %d %d %d %" PRId64 " %" PRId64 " %d %d %d %s %s", (int)what,
           fsdp_mesh_print(&c->mesh, ",", mesh), (int)c->strategy, c->cpu_offload, c->sequence_parallel,
           (int)c->wrap.kind, c->wrap.numel, c->batch, c->micro_batches, c->prefetch, (int)c->accumulate,
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

// The peaks of a plan of all layers without addresses.
static fsdp_status make_peaks(const fsdp_plan_config *config, int64_t *drafts,
                              int64_t bytes[FSDP_SPACE_COUNT]) {
  fsdp_plan_config drafted = *config;
  fsdp_plan *plan;
  drafted.draft = drafted.peaks = true;
  ++*drafts;
  const fsdp_status status = fsdp_plan_create(&drafted, &plan, NULL);
  if (status) return status;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) bytes[s] = plan->memory.space[s].peak_bytes;
  bytes[FSDP_SPACE_DEVICE] += fsdp_plan_reserve_bytes(plan);
  fsdp_plan_destroy(plan);
  return FSDP_OK;
}

static fsdp_status make(const fsdp_search_config *search, const fsdp_plan_config *config, about what,
                        int64_t *drafts, search_estimate *estimate) {
  if (what == ABOUT_PEAKS) return make_peaks(config, drafts, estimate->bytes);
  return what == ABOUT_WHOLE ? search_estimate_whole(search, config, drafts, estimate, NULL)
                             : search_estimate_make(search, config, drafts, estimate, NULL);
}

// What is asked of a setting, made once. NULL if there is no such plan. Valid until the next call.
static const search_estimate *ask(const fsdp_search_config *search, const fsdp_plan_config *config,
                                  about what, search_drafts *drafts) {
  char key[KEY_BYTES];
  if (2 * (drafts->used + 1) > drafts->size) grow(drafts);
  print_key(config, what, key);
  search_known *known = place_of(drafts->known, drafts->size, key);
  if (!known->key) {
    known->makes_plan = make(search, config, what, &drafts->count, &known->estimate) == FSDP_OK;
    known->key = fsdp_alloc(strlen(key) + 1);
    memcpy(known->key, key, strlen(key) + 1);
    drafts->used++;
  }
  return known->makes_plan ? &known->estimate : NULL;
}

bool search_estimate_of(const fsdp_search_config *search, const fsdp_plan_config *config,
                        search_drafts *drafts, search_estimate *estimate) {
  const search_estimate *known = ask(search, config, ABOUT_FEW, drafts);
  if (known) *estimate = *known;
  return known != NULL;
}

bool search_whole_of(const fsdp_search_config *search, const fsdp_plan_config *config, search_drafts *drafts,
                     search_estimate *estimate) {
  const search_estimate *known = ask(search, config, ABOUT_WHOLE, drafts);
  if (known) *estimate = *known;
  return known != NULL;
}

bool search_peaks_of(const fsdp_search_config *search, const fsdp_plan_config *config, search_drafts *drafts,
                     int64_t bytes[FSDP_SPACE_COUNT]) {
  const search_estimate *known = ask(search, config, ABOUT_PEAKS, drafts);
  if (known) memcpy(bytes, known->bytes, sizeof known->bytes);
  return known != NULL;
}

void search_drafts_release(search_drafts *drafts) {
  for (int64_t i = 0; i < drafts->size; i++) free(drafts->known[i].key);
  free(drafts->known);
}
