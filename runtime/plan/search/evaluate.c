// What is known of settings: open addressing by a hash of all that differs between the settings of a query.
#include "runtime/plan/search/evaluate.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/price/simulate.h"
#include "runtime/plan/proof/waits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define KEY_BYTES (FSDP_MESH_TEXT_BYTES + 2 * FSDP_SAVING_TEXT_BYTES + 512)

struct fsdp_known_evaluation {
  char *key; // NULL: free
  bool makes_plan;
  fsdp_evaluation evaluation;
};

void fsdp_need_of(const fsdp_plan *plan, int64_t bytes[FSDP_SPACE_COUNT]) {
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) bytes[s] = plan->memory.space[s].arena_bytes;
  bytes[FSDP_SPACE_DEVICE] += fsdp_plan_reserve_bytes(plan);
}

int64_t fsdp_excess_of(const fsdp_memory_limits *limits, const int64_t bytes[FSDP_SPACE_COUNT],
                       fsdp_space *space) {
  int64_t most = 0, sum = 0;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) {
    const int64_t above = bytes[s] - limits->bytes[s];
    sum += bytes[s];
    if (!limits->bytes[s] || above <= most) continue;
    most = above;
    if (space) *space = (fsdp_space)s;
  }
  if (limits->shared_bytes && sum - limits->shared_bytes > most) {
    most = sum - limits->shared_bytes;
    if (space) *space = FSDP_SPACE_DEVICE;
  }
  return most;
}

// ---- Whole plans, and peaks

static void note_plan(const fsdp_plan *plan, fsdp_evaluation *out) {
  *out = (fsdp_evaluation){.hash = fsdp_program_hash(plan->program),
                           .sent_bytes = fsdp_traffic_sent_bytes(&plan->traffic)};
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    out->bytes[s] = out->peak_bytes[s] = plan->memory.space[s].peak_bytes;
  out->bytes[FSDP_SPACE_DEVICE] += fsdp_plan_reserve_bytes(plan);
}

static fsdp_status evaluate_peaks(fsdp_evaluator *e, const fsdp_plan_config *config, fsdp_evaluation *out) {
  fsdp_plan_config drafted = *config;
  fsdp_plan *plan;
  drafted.draft = drafted.peaks = true;
  const fsdp_status status = fsdp_plan_create_among(&drafted, &e->recent, &plan, NULL);
  if (status) return status;
  note_plan(plan, out);
  fsdp_plan_destroy(plan);
  return FSDP_OK;
}

// What a step takes if every tensor has an address of its own. Consumes the plan: overwrites its addresses
// and waits.
static double unhindered_s(fsdp_plan *plan, const fsdp_pricing *pricing) {
  fsdp_memory_report spread;
  fsdp_step_price price;
  fsdp_memory_draft(plan->program, false, &spread);
  fsdp_waits_infer(plan->program);
  fsdp_simulation *simulation = fsdp_simulation_create(pricing);
  fsdp_simulation_run(simulation, &price);
  fsdp_step_price_release(&price);
  fsdp_simulation_destroy(simulation);
  return price.step_s;
}

static fsdp_status price_plan(const fsdp_evaluator *e, fsdp_plan *plan, fsdp_evaluation *out) {
  fsdp_pricing pricing;
  fsdp_step_price price;
  const fsdp_status status = fsdp_pricing_create(plan, e->profile, e->ranks_per_node, &pricing, NULL);
  if (status) return status;
  fsdp_simulation *simulation = fsdp_simulation_create(&pricing);
  fsdp_simulation_run(simulation, &price);
  out->step_s = price.step_s;
  out->comm_s = price.comm_s;
  out->copies_s = price.h2d_s + price.d2h_s;
  out->update_s = price.kind_s[FSDP_PRICE_UPDATE];
  out->tokens_per_s = fsdp_plan_step_tokens(plan) / price.step_s;
  out->mfu = fsdp_pricing_mfu(&pricing, price.step_s, FSDP_FLOPS_CAUSAL);
  fsdp_step_price_release(&price);
  fsdp_simulation_destroy(simulation);
  if (e->unhindered) out->unhindered_s = unhindered_s(plan, &pricing);
  return FSDP_OK;
}

static fsdp_status evaluate_plan(fsdp_evaluator *e, const fsdp_plan_config *config, fsdp_evaluation *out) {
  fsdp_plan_config unproved = *config;
  fsdp_plan *plan;
  unproved.unproved = true;
  fsdp_status status = fsdp_plan_create_among(&unproved, &e->recent, &plan, NULL);
  if (status) return status;
  int64_t need[FSDP_SPACE_COUNT];
  fsdp_need_of(plan, need);
  const bool fits = fsdp_excess_of(&e->allowed, need, NULL) == 0;
  if (fits) fsdp_plan_prove(plan);
  note_plan(plan, out);
  memcpy(out->bytes, need, sizeof out->bytes);
  if (e->profile && fits) status = price_plan(e, plan, out);
  fsdp_plan_destroy(plan);
  return status;
}

// ---- What is known

// All that queries change of a configuration.
static void print_key(const fsdp_plan_config *c, fsdp_fidelity fidelity, char key[KEY_BYTES]) {
  char mesh[FSDP_MESH_TEXT_BYTES], recompute[FSDP_SAVING_TEXT_BYTES], offload[FSDP_SAVING_TEXT_BYTES];
  snprintf(key, KEY_BYTES,
           "%d %s %d %d %d %d %" PRId64 " %d %" PRId64 " %" PRId64 " %d %d %d %d%d%d%d %p %s %s",
           (int)fidelity, fsdp_mesh_print(&c->mesh, ",", mesh), (int)c->strategy, c->cpu_offload,
           c->sequence_parallel, (int)c->wrap.kind, c->wrap.numel, c->expert_blocks, c->seq, c->batch,
           c->micro_batches, c->prefetch, (int)c->accumulate, (int)c->param_dtype, (int)c->reduce_dtype,
           (int)c->master_dtype, (int)c->moment_dtype, (const void *)c->sharding,
           fsdp_saving_print(&c->saving, FSDP_FATE_RECOMPUTE, recompute),
           fsdp_saving_print(&c->saving, FSDP_FATE_OFFLOAD, offload));
}

// The place of a key, or the free one where it would lie.
static struct fsdp_known_evaluation *place_of(struct fsdp_known_evaluation *places, int64_t size,
                                              const char *key) {
  int64_t at = (int64_t)(XXH3_64bits(key, strlen(key)) % (uint64_t)size);
  while (places[at].key && strcmp(places[at].key, key) != 0) at = (at + 1) % size;
  return &places[at];
}

static void grow(fsdp_evaluator *e) {
  const int64_t size = e->size ? 2 * e->size : 256;
  struct fsdp_known_evaluation *places = fsdp_alloc_zeroed((size_t)size, sizeof *places);
  for (int64_t i = 0; i < e->size; i++)
    if (e->known[i].key) *place_of(places, size, e->known[i].key) = e->known[i];
  free(e->known);
  e->known = places;
  e->size = size;
}

static fsdp_status make(fsdp_evaluator *e, const fsdp_plan_config *config, fsdp_fidelity fidelity,
                        fsdp_evaluation *out) {
  FSDP_CHECK(e->profile || fidelity == FSDP_EVALUATE_PEAKS || fidelity == FSDP_EVALUATE_PLAN,
             "drafts are priced, and there is no profile");
  const fsdp_estimator estimator = {e->profile, e->ranks_per_node, &e->drafts, &e->recent};
  switch (fidelity) {
  case FSDP_EVALUATE_PEAKS:
    e->drafts++;
    return evaluate_peaks(e, config, out);
  case FSDP_EVALUATE_FEW:
    return fsdp_estimate_few(&estimator, config, out);
  case FSDP_EVALUATE_SEVERAL:
    return fsdp_estimate_several(&estimator, config, out);
  case FSDP_EVALUATE_DRAFT:
    return fsdp_estimate_whole(&estimator, config, out);
  default:
    e->plans++;
    return evaluate_plan(e, config, out);
  }
}

// The place of an evaluation, with its key; known->key is NULL if it has not been made.
static struct fsdp_known_evaluation *find(fsdp_evaluator *e, const fsdp_plan_config *setting,
                                          fsdp_fidelity fidelity, char key[KEY_BYTES]) {
  if (2 * (e->used + 1) > e->size) grow(e);
  print_key(setting, fidelity, key);
  return place_of(e->known, e->size, key);
}

bool fsdp_evaluate(fsdp_evaluator *e, const fsdp_plan_config *setting, fsdp_fidelity fidelity,
                   fsdp_evaluation *out) {
  char key[KEY_BYTES];
  struct fsdp_known_evaluation *known = find(e, setting, fidelity, key);
  if (!known->key) {
    known->makes_plan = make(e, setting, fidelity, &known->evaluation) == FSDP_OK;
    known->key = fsdp_alloc(strlen(key) + 1);
    memcpy(known->key, key, strlen(key) + 1);
    e->used++;
  }
  if (known->makes_plan) *out = known->evaluation;
  return known->makes_plan;
}

bool fsdp_evaluate_bytes(fsdp_evaluator *e, const fsdp_plan_config *setting,
                         int64_t bytes[FSDP_SPACE_COUNT]) {
  char key[KEY_BYTES];
  fsdp_evaluation evaluation;
  const bool is_drafted = find(e, setting, FSDP_EVALUATE_DRAFT, key)->key != NULL;
  if (!fsdp_evaluate(e, setting, is_drafted ? FSDP_EVALUATE_DRAFT : FSDP_EVALUATE_PEAKS, &evaluation))
    return false;
  memcpy(bytes, evaluation.bytes, sizeof evaluation.bytes);
  return true;
}

bool fsdp_evaluate_need(fsdp_evaluator *e, const fsdp_plan_config *setting, fsdp_evaluation *out) {
  if (!fsdp_evaluate(e, setting, FSDP_EVALUATE_PEAKS, out)) return false;
  return fsdp_excess_of(&e->allowed, out->bytes, NULL) > 0 ||
         fsdp_evaluate(e, setting, FSDP_EVALUATE_PLAN, out);
}

void fsdp_evaluator_release(fsdp_evaluator *e) {
  for (int64_t i = 0; i < e->size; i++) free(e->known[i].key);
  free(e->known);
  fsdp_placements_release(&e->recent);
  e->known = NULL;
  e->size = e->used = 0;
}
