// Of the kinds' settings the finalists: planned whole, and improved.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/search.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Sharper estimates

int search_compare_settings(const void *a, const void *b) {
  const search_setting *x = a, *y = b;
  if (x->estimate.step_s != y->estimate.step_s) return x->estimate.step_s < y->estimate.step_s ? -1 : 1;
  return x->chain - y->chain;
}

// The step of a setting from drafts of several layers, or of all where they differ in what they save.
static void sharpen(searcher *r, search_setting *setting) {
  const bool alike = setting->set == 0 || setting->layers == (int)r->config->base.model.num_layers;
  fsdp_evaluation e;
  if (fsdp_evaluate(&r->evaluator, &setting->config, alike ? FSDP_EVALUATE_SEVERAL : FSDP_EVALUATE_DRAFT, &e))
    setting->estimate.step_s = e.step_s;
}

void search_sharpen_settings(searcher *r, search_best *best, double enough) {
  for (int i = 0; i < best->count; i++) {
    search_setting *setting = &best->settings[i];
    if (setting->estimate.step_s * (1 - FSDP_EVALUATION_ERROR) >= enough) continue;
    sharpen(r, setting);
    enough = fmin(enough, setting->estimate.step_s);
  }
  qsort(best->settings, (size_t)best->count, sizeof *best->settings, search_compare_settings);
}

// ---- Whole plans

// The setting planned for what the search allows: it may fill all that there is, and spread where a margin
// stays free.
static fsdp_plan_config within_limits(const fsdp_search_config *search, const fsdp_plan_config *setting) {
  fsdp_plan_config config = *setting;
  memcpy(config.limits.bytes, search->limit_bytes, sizeof config.limits.bytes);
  config.limits.shared_bytes = search->shared_limit_bytes;
  config.limits.room_bytes = fsdp_search_allowed(search).room_bytes;
  return config;
}

static fsdp_status price(const fsdp_search_config *search, const fsdp_plan_config *setting,
                         fsdp_evaluator *evaluator, fsdp_search_plan *out) {
  const fsdp_plan_config config = within_limits(search, setting);
  fsdp_evaluation e;
  if (!fsdp_evaluate(evaluator, &config, FSDP_EVALUATE_PLAN, &e)) return FSDP_ERR_OPTION;
  if (fsdp_excess_of(&evaluator->allowed, e.bytes, NULL) > 0) return FSDP_ERR_CAPACITY;
  *out = (fsdp_search_plan){.config = config,
                            .step_s = e.step_s,
                            .unhindered_s = e.unhindered_s,
                            .tokens_per_s = (double)(search->global_batch * config.seq) / e.step_s,
                            .mfu = e.mfu,
                            .comm_s = e.comm_s,
                            .copies_s = e.copies_s,
                            .bound = search_bound_of(&e),
                            .hash = e.hash,
                            .kind = -1};
  memcpy(out->bytes, e.bytes, sizeof out->bytes);
  return FSDP_OK;
}

fsdp_evaluator search_evaluator_of(const fsdp_search_config *search) {
  return (fsdp_evaluator){.profile = search->profile,
                          .ranks_per_node = search->ranks_per_node,
                          .allowed = fsdp_search_allowed(search),
                          .unhindered = true};
}

fsdp_status fsdp_search_price(const fsdp_search_config *search, const fsdp_plan_config *setting,
                              fsdp_search_plan *out) {
  fsdp_evaluator evaluator = search_evaluator_of(search);
  const fsdp_status status = price(search, setting, &evaluator, out);
  fsdp_evaluator_release(&evaluator);
  return status;
}

static const int64_t no_bytes[FSDP_SPACE_COUNT] = {0};

// Whether a setting fits by its peaks and `more` bytes, without packing, with `room` of the device left free.
static bool fits_by_peaks(searcher *r, const fsdp_plan_config *setting, double room,
                          const int64_t more[FSDP_SPACE_COUNT]) {
  int64_t bytes[FSDP_SPACE_COUNT];
  if (!fsdp_evaluate_bytes(&r->evaluator, setting, bytes)) return false;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) bytes[s] += more[s];
  bytes[FSDP_SPACE_DEVICE] = (int64_t)((double)bytes[FSDP_SPACE_DEVICE] / (1 - room));
  return fsdp_excess_of(&r->evaluator.allowed, bytes, NULL) == 0;
}

// The estimates of a setting with its set, and with the one before it, in all layers. False if one makes no
// plan.
static bool estimate_ends(searcher *r, const search_setting *setting, fsdp_evaluation *before,
                          fsdp_evaluation *whole) {
  const search_chain *chain = &r->space.chains[setting->chain];
  const int all = (int)r->config->base.model.num_layers;
  fsdp_plan_config config = setting->config;
  config.saving = search_saving_of(r->config, chain, setting->set - 1, all);
  if (!fsdp_evaluate(&r->evaluator, &config, FSDP_EVALUATE_FEW, before)) return false;
  config.saving = search_saving_of(r->config, chain, setting->set, all);
  return fsdp_evaluate(&r->evaluator, &config, FSDP_EVALUATE_FEW, whole);
}

// The estimate of a setting whose layers have changed.
static void estimate_layers(searcher *r, search_setting *setting) {
  fsdp_evaluation before, whole;
  if (!estimate_ends(r, setting, &before, &whole)) return;
  setting->estimate =
      fsdp_estimate_between(&before, &whole, setting->layers, (int)r->config->base.model.num_layers);
}

// The fewest layers of the setting's set with which its peaks fit: as estimated, or a few more or less. What
// one layer less takes is told by estimates.
static void settle_layers(searcher *r, search_setting *setting, double room) {
  const search_chain *chain = &r->space.chains[setting->chain];
  const int all = (int)r->config->base.model.num_layers;
  int low = 1, high = all; // high: fits, as far as is known
  int64_t layer[FSDP_SPACE_COUNT] = {0};
  fsdp_evaluation before, whole;
  if (estimate_ends(r, setting, &before, &whole))
    for (int s = 0; s < FSDP_SPACE_COUNT; s++) layer[s] = (before.bytes[s] - whole.bytes[s]) / all;
  for (int tried = (int)fsdp_max_i64(1, setting->layers), step = 1; low < high;) {
    setting->config.saving = search_saving_of(r->config, chain, setting->set, tried);
    if (fits_by_peaks(r, &setting->config, room, no_bytes)) {
      high = tried;
      if (!fits_by_peaks(r, &setting->config, room, layer)) break;
      tried = (int)fsdp_max_i64(low, tried - step);
    } else {
      low = tried + 1;
      tried = (int)fsdp_min_i64(high, tried + step);
    }
    if (tried < low || tried > high || tried == high) tried = low + (high - low) / 2;
    step *= 2;
  }
  setting->layers = high;
  setting->config.saving = search_saving_of(r->config, chain, setting->set, high);
  estimate_layers(r, setting);
}

// Prices the setting whole with other layers of its set; true, and it takes the plan's place, if faster.
static bool try_layers(searcher *r, int layers, search_setting *setting, fsdp_search_plan *out) {
  search_setting other = *setting;
  fsdp_search_plan plan;
  other.layers = layers;
  other.config.saving = search_saving_of(r->config, &r->space.chains[setting->chain], setting->set, layers);
  if (price(r->config, &other.config, &r->evaluator, &plan) || plan.step_s >= out->step_s) return false;
  estimate_layers(r, &other);
  *setting = other;
  *out = plan;
  return true;
}

// As few layers as are faster still, down to `least`.
static void try_fewer(searcher *r, int least, search_setting *setting, fsdp_search_plan *out) {
  for (int step = (int)fsdp_max_i64(1, (setting->layers - least) / 2); step > 0;) {
    const int layers = setting->layers - step;
    if (layers < least || !try_layers(r, layers, setting, out)) step /= 2;
  }
}

// Keeps less, so that memory is reused later and without waits; takes the plan's place if it is faster.
static void try_room(searcher *r, double room, search_setting *setting, fsdp_search_plan *out) {
  const search_chain *chain = &r->space.chains[setting->chain];
  const int all = (int)r->config->base.model.num_layers;
  search_setting roomy = *setting;
  for (roomy.set = (int)fsdp_max_i64(1, setting->set); roomy.set < chain->count; roomy.set++) {
    roomy.config.saving = search_saving_of(r->config, chain, roomy.set, all);
    if (fits_by_peaks(r, &roomy.config, room, no_bytes)) break;
  }
  if (roomy.set == chain->count) return;
  settle_layers(r, &roomy, room);
  if (roomy.estimate.step_s < out->step_s && try_layers(r, roomy.layers, &roomy, out)) *setting = roomy;
}

// The slowest plan that counts as one of the best so far.
static double last_s(const searcher *r) {
  const fsdp_search_result *result = r->result;
  const bool is_full = result->count >= search_plans_wanted(r->config);
  return is_full ? result->plans[result->count - 1].step_s : INFINITY;
}

// Of a plan that waits for memory and is faster than all others: more room where some helped, then every
// number of layers.
static void spare_waits(searcher *r, search_setting *setting, fsdp_search_plan *out) {
  const search_setting tight = *setting;
  const double first_s = out->step_s;
  const bool is_of_chain =
      setting->set > 0 || fsdp_saving_equal(&setting->config.saving, &r->config->base.saving);
  const bool is_slower = r->result->count > 0 && out->step_s >= r->result->plans[0].step_s;
  if (setting->is_forced || !is_of_chain || is_slower) return;
  double tight_s = INFINITY;
  for (int i = 1; i <= SEARCH_DEPTH && out->step_s < tight_s * (1 - SEARCH_TIE); i++) {
    tight_s = out->step_s;
    if (tight_s > (1 + SEARCH_TIE) * out->unhindered_s) try_room(r, i * FSDP_ARENA_ROOM, setting, out);
  }
  if (out->step_s >= first_s * (1 - SEARCH_TIE)) return;
  if (setting->set != tight.set)
    try_fewer(r, 1, setting, out);
  else if (setting->layers != tight.layers)
    try_fewer(r, tight.layers + 1, setting, out);
}

// Prices a setting whole. If packing takes a little more than its peaks, so do a few layers; with `best`, as
// many as are the fastest.
static bool price_whole(searcher *r, bool best, search_setting *setting, fsdp_search_plan *out) {
  const search_chain *chain = &r->space.chains[setting->chain];
  const int all = (int)r->config->base.model.num_layers;
  if (setting->set > 0 && !setting->is_forced) settle_layers(r, setting, 0);
  for (int more = 0; more <= SEARCH_DEPTH; more++) {
    fsdp_status status = price(r->config, &setting->config, &r->evaluator, out);
    if (status == FSDP_OK) {
      if (best) spare_waits(r, setting, out);
      return true;
    }
    if (status != FSDP_ERR_CAPACITY || setting->set == 0 || setting->layers == all) return false;
    setting->layers++;
    setting->config.saving = search_saving_of(r->config, chain, setting->set, setting->layers);
  }
  return false;
}

// Few layers cannot stand for all where a part of the layers saves less. Drafts of all are then made of
// models with at most so many.
#define LAYERS_IN_PARTS 64

bool search_estimate_below(searcher *r, fsdp_fidelity fidelity, double enough, search_setting *setting) {
  const bool parts = fidelity == FSDP_EVALUATE_FEW && fsdp_saving_has_parts(&setting->config.saving);
  if (parts && setting->config.model.num_layers > LAYERS_IN_PARTS) return false;
  return fsdp_evaluate(&r->evaluator, &setting->config, fidelity, &setting->estimate) &&
         setting->estimate.step_s < enough &&
         fsdp_excess_of(&r->evaluator.allowed, setting->estimate.bytes, NULL) == 0;
}

// The step of a setting from a draft of all layers, which takes the place of the estimate from few.
bool search_refine(searcher *r, search_setting *setting) {
  fsdp_evaluation whole;
  if (!fsdp_evaluate(&r->evaluator, &setting->config, FSDP_EVALUATE_DRAFT, &whole)) return false;
  setting->estimate.step_s = whole.step_s;
  return true;
}

// Prices a setting whole and corrects `waits`, the share by which plans of its kind take longer than drafts
// of all their layers, if it says otherwise.
bool search_price_estimated(searcher *r, bool best, double *waits, search_setting *setting,
                            fsdp_search_plan *out) {
  const double draft_s = setting->estimate.step_s;
  if (!price_whole(r, best, setting, out) || !search_refine(r, setting)) return false;
  const double free_s = setting->estimate.step_s;
  if (fabs(out->step_s / (free_s * (1 + *waits)) - 1) > SEARCH_TIE) *waits = out->step_s / free_s - 1;
  out->draft_s = draft_s;
  out->estimate_s = free_s * (1 + *waits);
  return true;
}

// Whether a draft of all layers, with the share that plans like it wait for memory, takes less than `enough`.
static bool might_take_less(searcher *r, const search_setting *setting, double waits, double enough) {
  fsdp_evaluation whole;
  return fsdp_evaluate(&r->evaluator, &setting->config, FSDP_EVALUATE_DRAFT, &whole) &&
         whole.step_s * (1 + waits) < enough;
}

// Whether plans of both wait for memory for like reasons: meshes make little difference.
static bool waits_alike(const fsdp_plan_config *a, const fsdp_plan_config *b) {
  const search_units units = search_units_of(a), others = search_units_of(b);
  return a->strategy == b->strategy && a->cpu_offload == b->cpu_offload && a->prefetch == b->prefetch &&
         (a->micro_batches > 1) == (b->micro_batches > 1) && search_units_equal(&units, &others) &&
         fsdp_saving_offloads(&a->saving) == fsdp_saving_offloads(&b->saving);
}

static void note_hindered(searcher *r, int kind, const fsdp_search_plan *slower, double least_s) {
  if (slower->unhindered_s >= least_s * (1 - SEARCH_TIE)) return;
  r->hindered = fsdp_realloc(r->hindered, (size_t)(r->hindered_count + 1) * sizeof *r->hindered);
  r->hindered[r->hindered_count] = *slower;
  r->hindered[r->hindered_count++].kind = kind;
}

// The best of a kind's settings, or the first that fits unless another might be much faster; false if none
// fits after all.
static bool choose_of_kind(searcher *r, search_ranked *item, bool best, fsdp_search_plan *out) {
  bool found = false;
  double waits = 0; // as far as is known, of settings like the one that was planned last
  fsdp_plan_config planned;
  for (int i = 0; i < item->best.count; i++) {
    search_setting *setting = &item->best.settings[i];
    const double enough =
        found ? out->step_s * (best ? 1 : 1 - FSDP_EVALUATION_ERROR / SEARCH_DEPTH) : INFINITY;
    fsdp_search_plan plan;
    if (setting->estimate.step_s >= enough) break;
    const bool alike =
        found && setting->config.batch == planned.batch && waits_alike(&setting->config, &planned);
    if (found && !might_take_less(r, setting, alike ? waits : 0, enough)) continue;
    if (!search_price_estimated(r, best, &waits, setting, &plan)) continue;
    planned = setting->config;
    if (found && plan.step_s >= out->step_s) {
      note_hindered(r, item->kind, &plan, out->step_s);
      continue;
    }
    if (found) note_hindered(r, item->kind, out, plan.step_s);
    *out = plan;
    found = true;
  }
  return found;
}

// Estimates of different prefetch differ, also where nothing is gathered ahead: the plan says the usual one.
static void name_usual_prefetch(searcher *r, fsdp_search_plan *plan) {
  if (r->config->fixed[FSDP_SEARCH_PREFETCH] || plan->config.prefetch == 1) return;
  fsdp_plan_config usual = plan->config;
  fsdp_evaluation with_usual, as_found; // without addresses: equal ones make equal plans
  usual.prefetch = 1;
  if (fsdp_evaluate(&r->evaluator, &usual, FSDP_EVALUATE_PEAKS, &with_usual) &&
      fsdp_evaluate(&r->evaluator, &plan->config, FSDP_EVALUATE_PEAKS, &as_found) &&
      with_usual.hash == as_found.hash)
    plan->config.prefetch = 1;
}

// What became of the kinds of which a plan was made whole.
static void note_finalists(fsdp_search_result *result) {
  for (int k = 0; k < result->kind_count; k++) {
    fsdp_search_kind *kind = &result->kinds[k];
    for (int p = 0; p < result->count; p++) {
      const bool same = kind->hash == result->plans[p].hash; // 0 is of no program that was made
      if (same) kind->outcome = result->plans[p].kind == k ? FSDP_SEARCH_FINALIST : FSDP_SEARCH_SAME;
    }
  }
}

// Whether drafts of all layers say that no setting of the kind is among the best found so far.
static bool is_beaten(searcher *r, const search_ranked *item) {
  const double last = last_s(r);
  double least = INFINITY;
  for (int i = 0; i < item->best.count && least >= last && last < INFINITY; i++) {
    search_setting setting = item->best.settings[i];
    if (setting.estimate.step_s * (1 - FSDP_EVALUATION_ERROR) >= last) continue;
    if (search_refine(r, &setting)) least = fmin(least, setting.estimate.step_s);
  }
  if (least < last || last == INFINITY) return false;
  if (least < INFINITY) r->result->kinds[item->kind].step_s = least;
  return true;
}

// A program has one place, under the kind that is enumerated first.
static void insert_plan(fsdp_search_result *result, const fsdp_search_plan *plan) {
  for (int p = 0; p < result->count; p++) {
    if (result->plans[p].hash != plan->hash) continue;
    if (plan->kind < result->plans[p].kind) result->plans[p] = *plan;
    return;
  }
  if (result->count == FSDP_SEARCH_PLANS && plan->step_s >= result->plans[result->count - 1].step_s) return;
  int at = result->count < FSDP_SEARCH_PLANS ? result->count++ : FSDP_SEARCH_PLANS - 1;
  for (; at > 0 && result->plans[at - 1].step_s > plan->step_s; at--)
    result->plans[at] = result->plans[at - 1];
  result->plans[at] = *plan;
}

// A kind has one plan, which says what became of it.
void search_place_plan(fsdp_search_result *result, const fsdp_search_plan *plan) {
  fsdp_search_kind *kind = &result->kinds[plan->kind];
  kind->step_s = plan->step_s;
  kind->bound = plan->bound;
  kind->hash = plan->hash;
  for (int p = 0; p < result->count; p++) {
    if (result->plans[p].kind != plan->kind) continue;
    result->count--;
    memmove(&result->plans[p], &result->plans[p + 1], (size_t)(result->count - p) * sizeof *result->plans);
  }
  insert_plan(result, plan);
}

// ---- The order in which kinds are planned

// A kind's predicted step: its estimate, times the least ratio of step to estimate among plans of `planned`
// that are like it.
static double predict_plan_s(const search_ranked *item, const fsdp_search_plan *planned, int count) {
  const search_setting *first = &item->best.settings[0];
  double more = INFINITY;
  for (int i = 0; i < count; i++)
    if (waits_alike(&first->config, &planned[i].config))
      more = fmin(more, planned[i].step_s / planned[i].draft_s);
  return first->estimate.step_s * (more < INFINITY ? more : 1);
}

// The kind of those that were not tried that is predicted to be the fastest, of which *seconds.
static search_ranked *next_kind(searcher *r, const bool *tried, const fsdp_search_plan *planned, int count,
                                double *seconds) {
  search_ranked *next = NULL;
  *seconds = INFINITY;
  for (int i = 0; i < r->ranked_count; i++) {
    if (tried[i]) continue;
    const double predicted_s = predict_plan_s(&r->ranked[i], planned, count);
    if (next && predicted_s >= *seconds) continue;
    next = &r->ranked[i];
    *seconds = predicted_s;
  }
  return next;
}

// Plans a kind whole. False if nothing of it fits.
static bool plan_kind(searcher *r, search_ranked *item, fsdp_search_plan *plan) {
  fsdp_search_result *result = r->result;
  fsdp_search_kind *kind = &result->kinds[item->kind];
  if (choose_of_kind(r, item, result->count == 0, plan)) {
    plan->kind = item->kind;
    search_place_plan(result, plan);
    return true;
  }
  kind->outcome = FSDP_SEARCH_TOO_LARGE;
  kind->bytes = item->best.settings[0].estimate.bytes[FSDP_SPACE_DEVICE];
  if (!r->least_excess) result->least = item->best.settings[0].config; // above by what packing takes
  r->least_excess = r->least_excess ? r->least_excess : 1;
  return false;
}

// Estimates order kinds; where the plans that are like one take longer than estimated, so does it, by about
// as much as the order of estimates is off by.
void search_choose_finalists(searcher *r) {
  bool *tried = fsdp_alloc_zeroed((size_t)r->ranked_count + 1, sizeof *tried);
  fsdp_search_plan *planned = fsdp_alloc((size_t)(r->ranked_count + 1) * sizeof *planned);
  search_ranked *item;
  double predicted_s;
  for (int count = 0; (item = next_kind(r, tried, planned, count, &predicted_s)) != NULL;) {
    const double last = last_s(r);
    tried[item - r->ranked] = true;
    if (item->best.settings[0].estimate.step_s * (1 - FSDP_EVALUATION_ERROR) >= last) continue;
    if (predicted_s * (1 - FSDP_EVALUATION_ERROR / SEARCH_DEPTH) >= last) {
      r->result->kinds[item->kind].step_s = predicted_s;
      continue;
    }
    if (!is_beaten(r, item)) count += plan_kind(r, item, &planned[count]);
  }
  free(tried);
  free(planned);
}

void search_name_finalists(searcher *r) {
  for (int p = 0; p < r->result->count; p++) name_usual_prefetch(r, &r->result->plans[p]);
  note_finalists(r->result);
}
