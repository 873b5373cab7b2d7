// The settings of a kind, best first.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>
#include <string.h>

// About a forward's share of a step's work; and the error of a predicted step, which is too high where more
// work hides communication that is exposed with everything kept.
#define FORWARD_SHARE    (1.0 / 3)
#define PREDICTION_ERROR (4 * FSDP_EVALUATION_ERROR)

typedef struct walk {
  const fsdp_search_config *search;
  const search_space *space;
  int first_chain, chain_end; // of the space
  const fsdp_search_kind *kind;
  const search_floor *floor;
  double cut_s;
  search_deltas *deltas;
  fsdp_evaluator *evaluator;
  search_best *best;
} walk;

// A micro-batch, with what its first setting takes with everything kept.
typedef struct batch_choice {
  int64_t batch;
  int micro_batches;
  fsdp_evaluation first;
} batch_choice;

static bool is_open(const walk *w, fsdp_search_field field) {
  return !w->search->fixed[field];
}

// Estimates of what is offloaded are too low where copies wait for memory: they do not replace others.
static bool offloads(const search_setting *setting) {
  return fsdp_saving_offloads(&setting->config.saving);
}

// The cut, or if less `share` more than the fastest that is kept.
static double cut_above(const walk *w, double share) {
  const search_best *best = w->best;
  for (int i = 0; i < best->count; i++)
    if (!offloads(&best->settings[i])) return fmin(w->cut_s, best->settings[i].estimate.step_s * (1 + share));
  return w->cut_s;
}

// Settings must be faster than this. Others of the kind are kept for when packing needs more than a peak.
static double cut_of(const walk *w) {
  return cut_above(w, FSDP_EVALUATION_ERROR);
}

// Removes the slowest of `most` settings that offload, or that do not, as `setting` does; with `batch` of
// those of its micro-batch. False if `setting` would be slower.
static bool make_room_among(search_best *best, const search_setting *setting, bool batch, int most) {
  int same = 0, last = -1;
  for (int i = 0; i < best->count; i++) {
    if (offloads(&best->settings[i]) != offloads(setting)) continue;
    if (batch && best->settings[i].config.batch != setting->config.batch) continue;
    same++;
    last = i;
  }
  if (same < most) return true;
  if (best->settings[last].estimate.step_s <= setting->estimate.step_s) return false;
  memmove(&best->settings[last], &best->settings[last + 1],
          (size_t)(--best->count - last) * sizeof *best->settings);
  return true;
}

// Of several micro-batches where they offload: how long copies wait for memory differs between these.
static bool make_room(search_best *best, const search_setting *setting) {
  if (offloads(setting) && !make_room_among(best, setting, true, SEARCH_KEEP / 4)) return false;
  return make_room_among(best, setting, false, SEARCH_KEEP / 2);
}

// Whether a setting of `seconds` is left out; notes it in best->left_out.
static bool is_cut(walk *w, double seconds) {
  w->best->left_out = w->best->left_out || seconds >= w->cut_s;
  return seconds >= cut_of(w);
}

// Lower bound on a setting's step with any further recomputing or offloading.
static double floor_of(const fsdp_evaluation *estimate) {
  return fmax(estimate->work_s, estimate->links_s);
}

// The same with this wrap, accumulation and prefetch: what is made again or copied may hide what is exposed,
// and takes nothing else away.
static double hidden_floor_of(const fsdp_evaluation *estimate) {
  return fmax(floor_of(estimate), estimate->step_s - estimate->comm_s - estimate->copies_s);
}

// Chains begin alike, so that one setting is found by several.
static bool is_same_setting(const search_setting *a, const search_setting *b) {
  const fsdp_plan_config *x = &a->config, *y = &b->config;
  const search_units units = search_units_of(x), others = search_units_of(y);
  return x->batch == y->batch && search_units_equal(&units, &others) && x->prefetch == y->prefetch &&
         x->accumulate == y->accumulate && fsdp_saving_equal(&x->saving, &y->saving);
}

void search_best_insert(search_best *best, const search_setting *setting) {
  for (int i = 0; i < best->count; i++)
    if (is_same_setting(&best->settings[i], setting)) return;
  if (!make_room(best, setting)) return;
  int at = best->count++;
  for (; at > 0 && best->settings[at - 1].estimate.step_s > setting->estimate.step_s; at--)
    best->settings[at] = best->settings[at - 1];
  best->settings[at] = *setting;
}

// Estimates from few layers may be too low by more than what they are too high by: what is a little slower is
// kept for sharper ones.
static void keep(walk *w, const search_setting *setting) {
  w->best->left_out = w->best->left_out || setting->estimate.step_s >= w->cut_s;
  if (setting->estimate.step_s < cut_above(w, SEARCH_DEPTH * FSDP_EVALUATION_ERROR))
    search_best_insert(w->best, setting);
}

static void note_unfit(walk *w, const search_setting *setting) {
  search_best *best = w->best;
  fsdp_space space = FSDP_SPACE_DEVICE;
  const int64_t excess = fsdp_excess_of(&w->evaluator->allowed, setting->estimate.bytes, &space);
  if (best->least_bytes && excess >= best->least_bytes) return;
  best->least_bytes = excess;
  best->least_space = space;
  best->least = setting->config;
}

// The fewest layers with which the estimate between the two fits; all of them do.
static int fewest_layers(const walk *w, const fsdp_evaluation *none, const fsdp_evaluation *all) {
  const int layers = (int)w->search->base.model.num_layers;
  int low = 1, high = layers;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    const fsdp_evaluation between = fsdp_estimate_between(none, all, middle, layers);
    if (fsdp_excess_of(&w->evaluator->allowed, between.bytes, NULL) == 0)
      high = middle;
    else
      low = middle + 1;
  }
  return high;
}

// Estimates a set of a chain in all layers; false if it makes no plan.
static bool estimate_set(walk *w, int chain, int set, const search_setting *first, search_setting *out) {
  *out = *first;
  out->chain = chain;
  out->set = set;
  if (set == 0) return true;
  out->layers = (int)w->search->base.model.num_layers;
  out->config.saving = search_saving_of(w->search, &w->space->chains[chain], set, out->layers);
  return fsdp_evaluate(w->evaluator, &out->config, FSDP_EVALUATE_FEW, &out->estimate);
}

static double rows_of(const search_setting *setting) {
  return (double)setting->config.batch;
}

// Whether the changes of `known` are noted for settings like `first`.
static bool is_delta_of(const search_deltas *deltas, const search_delta *known, const search_setting *first) {
  const search_units units = search_units_of(&first->config), others = search_units_of(&known->first.config);
  return !deltas->is_exact ||
         (first->config.batch == known->first.config.batch && search_units_equal(&units, &others));
}

// Where the changes are noted that sets make for a sequence, with the first setting that asks.
static search_delta *delta_of(walk *w, const search_setting *first) {
  const fsdp_mesh *mesh = &w->kind->mesh;
  const int tensor = fsdp_mesh_size(mesh, FSDP_AXIS_TENSOR),
            context = fsdp_mesh_size(mesh, FSDP_AXIS_CONTEXT),
            expert = fsdp_mesh_size(mesh, FSDP_AXIS_EXPERT);
  for (int i = 0; i < w->deltas->count; i++) {
    search_delta *known = w->deltas->items[i];
    if (known->tensor == tensor && known->context == context && known->expert == expert &&
        known->sequence_parallel == w->kind->sequence_parallel && is_delta_of(w->deltas, known, first))
      return known;
  }
  w->deltas->items =
      fsdp_realloc(w->deltas->items, (size_t)(w->deltas->count + 1) * sizeof *w->deltas->items);
  search_delta *delta = fsdp_alloc_zeroed(1, sizeof *delta);
  *delta = (search_delta){.tensor = tensor,
                          .context = context,
                          .expert = expert,
                          .sequence_parallel = w->kind->sequence_parallel,
                          .finer = w->space->finer_count / 2,
                          .first = *first};
  return w->deltas->items[w->deltas->count++] = delta;
}

static void find_delta(walk *w, search_delta *delta, int chain, int set) {
  const search_setting *first = &delta->first;
  search_setting setting;
  delta->known[chain][set] = true;
  if (!estimate_set(w, chain, set, first, &setting)) return;
  delta->work_s[chain][set] =
      (setting.estimate.work_s - first->estimate.work_s) / rows_of(first) / first->config.micro_batches;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    delta->bytes[chain][set][s] =
        (double)(setting.estimate.bytes[s] - first->estimate.bytes[s]) / rows_of(first);
}

// What copying takes at least that a setting does and `first` does not.
static double least_copies_s(const walk *w, const search_setting *first, const fsdp_evaluation *e) {
  const fsdp_device_profile *profile = w->search->profile;
  const int64_t bytes = e->bytes[FSDP_SPACE_HOST] - first->estimate.bytes[FSDP_SPACE_HOST];
  if (bytes <= 0) return 0;
  return (double)bytes * first->config.micro_batches / fmin(profile->down_rate, profile->up_rate);
}

// The estimate of `first` with a set of a chain in all layers; its step: a lower bound.
static fsdp_evaluation predict(walk *w, const search_setting *first, search_delta *delta, int chain,
                               int set) {
  fsdp_evaluation e = first->estimate;
  if (set > 0 && !delta->known[chain][set]) find_delta(w, delta, chain, set);
  e.work_s += delta->work_s[chain][set] * rows_of(first) * first->config.micro_batches;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    e.bytes[s] += (int64_t)(delta->bytes[chain][set][s] * rows_of(first));
  if (set == 0) return e;
  e.links_s = fmax(e.links_s, least_copies_s(w, first, &e));
  e.step_s = floor_of(&e);
  return e;
}

// Whether drafts of a set are worth making: it may fit, and its work may be less than the cut.
static bool is_promising(walk *w, const search_setting *first, search_delta *delta, int chain, int set) {
  const fsdp_evaluation before = predict(w, first, delta, chain, set - 1);
  const fsdp_evaluation all = predict(w, first, delta, chain, set);
  const int layers = (int)w->search->base.model.num_layers;
  int64_t hopeful[FSDP_SPACE_COUNT];
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    hopeful[s] = (int64_t)((double)all.bytes[s] * (1 - FSDP_EVALUATION_ERROR));
  if (fsdp_excess_of(&w->evaluator->allowed, hopeful, NULL) > 0) {
    search_setting unfit = *first;
    unfit.estimate = all;
    unfit.config.saving = search_saving_of(w->search, &w->space->chains[chain], set, layers);
    note_unfit(w, &unfit);
    return false;
  }
  const bool fits = fsdp_excess_of(&w->evaluator->allowed, all.bytes, NULL) == 0;
  const int fewest = fits ? fewest_layers(w, &before, &all) : layers;
  const fsdp_evaluation between = fsdp_estimate_between(&before, &all, fewest, layers);
  return !is_cut(w, floor_of(&between) * (1 - SEARCH_TIE));
}

// Whether a set fits, and its estimate will not be less than the cut: as many layers as must, or one less,
// take at least their part of what all layers take.
static bool is_too_slow(walk *w, const search_setting *first, search_delta *delta, int chain, int set) {
  const fsdp_evaluation before = predict(w, first, delta, chain, set - 1);
  const fsdp_evaluation all = predict(w, first, delta, chain, set);
  const int layers = (int)w->search->base.model.num_layers;
  if (fsdp_excess_of(&w->evaluator->allowed, all.bytes, NULL) > 0) return false;
  const int fewest = fewest_layers(w, &before, &all);
  const fsdp_evaluation between = fsdp_estimate_between(&before, &all, fewest, layers);
  const fsdp_evaluation less = fsdp_estimate_between(&before, &all, fewest - 1, layers);
  return is_cut(w, fmin(between.step_s, less.step_s) * (1 - SEARCH_TIE));
}

// The estimate of `first` with as much of a chain as must be; false if all of it is not enough.
static bool predict_chain(walk *w, const search_setting *first, search_delta *delta, int chain,
                          fsdp_evaluation *out) {
  const int layers = (int)w->search->base.model.num_layers;
  for (int set = 1; set < w->space->chains[chain].count; set++) {
    const fsdp_evaluation all = predict(w, first, delta, chain, set);
    if (fsdp_excess_of(&w->evaluator->allowed, all.bytes, NULL) > 0) continue;
    const fsdp_evaluation before = predict(w, first, delta, chain, set - 1);
    *out = fsdp_estimate_between(&before, &all, fewest_layers(w, &before, &all), layers);
    return true;
  }
  return false;
}

// The step of `first` with as much of a chain as must be: what it has beside work stays, and copies to the
// host are hidden behind the forward, those from it behind the rest. INFINITY if the chain is not enough.
static double predict_step_s(walk *w, const search_setting *first, search_delta *delta, int chain) {
  const fsdp_evaluation *e = &first->estimate;
  fsdp_evaluation saved;
  if (!predict_chain(w, first, delta, chain, &saved)) return INFINITY;
  const double beside_s = e->step_s - e->work_s, forward_s = e->work_s * FORWARD_SHARE;
  const double copied =
      (double)(saved.bytes[FSDP_SPACE_HOST] - e->bytes[FSDP_SPACE_HOST]) * first->config.micro_batches;
  if (copied <= 0) return beside_s + saved.work_s;
  return beside_s + fmax(forward_s, copied / w->search->profile->down_rate) +
         fmax(saved.work_s - forward_s, copied / w->search->profile->up_rate);
}

// The first set of a chain that fits in all layers, and of it only as many layers as must. `first` is the
// setting with the first set, which does not fit.
static void try_chain(walk *w, search_delta *delta, int chain, const search_setting *first) {
  const int all = (int)w->search->base.model.num_layers;
  search_setting before = *first;
  bool is_estimated = true; // `before`
  const double predicted_s = predict_step_s(w, first, delta, chain);
  if (predicted_s < INFINITY && is_cut(w, predicted_s * (1 - PREDICTION_ERROR))) return;
  for (int set = 1; set < w->space->chains[chain].count; set++) {
    search_setting setting;
    if (!is_promising(w, first, delta, chain, set)) {
      is_estimated = false;
      continue;
    }
    if (is_too_slow(w, first, delta, chain, set)) return;
    if (!is_estimated && !estimate_set(w, chain, set - 1, first, &before)) return;
    if (!estimate_set(w, chain, set, first, &setting)) return;
    is_estimated = true;
    if (fsdp_excess_of(&w->evaluator->allowed, setting.estimate.bytes, NULL) > 0) {
      note_unfit(w, &setting);
      before = setting;
      continue;
    }
    setting.layers = fewest_layers(w, &before.estimate, &setting.estimate);
    setting.estimate = fsdp_estimate_between(&before.estimate, &setting.estimate, setting.layers, all);
    setting.config.saving = search_saving_of(w->search, &w->space->chains[chain], set, setting.layers);
    keep(w, &setting);
    return;
  }
}

// The finer chain with the fastest predicted step: a descent from delta->finer, which becomes its place. -1:
// none, or not all usual chains are tried.
static int find_finer(walk *w, const search_setting *first, search_delta *delta) {
  const search_space *space = w->space;
  if (!space->finer_count || w->first_chain > 0 || w->chain_end != space->usual_count) return -1;
  int at = delta->finer;
  double least = predict_step_s(w, first, delta, space->finer[at]);
  for (int step = -1; step <= 1; step += 2) {
    for (int next = at + step; next >= 0 && next < space->finer_count; next += step) {
      const double seconds = predict_step_s(w, first, delta, space->finer[next]);
      if (seconds > least) break;
      if (seconds < least) at = next;
      least = seconds;
    }
  }
  delta->finer = at;
  return least < INFINITY ? space->finer[at] : -1;
}

// One micro-batch, wrap, accumulation and prefetch, with what it must not keep. `known`: its estimate with
// everything kept, or NULL.
static void try_setting(walk *w, const fsdp_plan_config *config, const fsdp_evaluation *known) {
  search_setting setting = {.config = *config};
  if (known)
    setting.estimate = *known;
  else if (!fsdp_evaluate(w->evaluator, config, FSDP_EVALUATE_FEW, &setting.estimate))
    return;
  w->best->planned = true;
  if (fsdp_excess_of(&w->evaluator->allowed, setting.estimate.bytes, NULL) == 0) {
    keep(w, &setting);
    return;
  }
  note_unfit(w, &setting);
  const double least = hidden_floor_of(&setting.estimate);
  if (is_cut(w, least)) return;
  search_delta *delta = delta_of(w, &setting);
  const int finer = find_finer(w, &setting, delta);
  if (finer >= 0) try_chain(w, delta, finer, &setting);
  for (int c = w->first_chain; c < w->chain_end && least < cut_of(w); c++) try_chain(w, delta, c, &setting);
}

// ---- Variants

typedef struct variant {
  int units, prefetch;
  bool other_accumulation;
} variant;

static fsdp_plan_config config_of(const walk *w, const fsdp_plan_config *first, const variant *v) {
  fsdp_plan_config config = *first;
  search_units_set(&config, &w->space->units[v->units]);
  config.prefetch = v->prefetch;
  if (v->other_accumulation)
    config.accumulate =
        first->accumulate == FSDP_ACCUMULATE_LOCAL ? FSDP_ACCUMULATE_REDUCE : FSDP_ACCUMULATE_LOCAL;
  return config;
}

// The most that blocks of experts save: a layer's experts, those gathered ahead, and two of their gradients.
static int64_t blocks_bytes(const walk *w) {
  const fsdp_plan_config *c = &w->search->base;
  const fsdp_mesh *mesh = &w->kind->mesh;
  if (!w->space->has_blocks) return 0;
  const int64_t experts = 3 * c->model.experts * c->model.expert_size * c->model.hidden_size /
                          fsdp_mesh_size(mesh, FSDP_AXIS_TENSOR) / fsdp_mesh_size(mesh, FSDP_AXIS_EXPERT);
  return experts * ((SEARCH_PREFETCH_MAX + 1) * fsdp_dtype_bytes(c->param_dtype) +
                    2 * fsdp_dtype_bytes(c->reduce_dtype));
}

// Lower bound on a micro-batch's work once it fits, if a variant needs less memory than the first by
// SEARCH_DEPTH times the estimate's error, or by twice that where nothing is known to fit, and by what blocks
// of experts save.
static double hopeful_work_s(walk *w, const search_setting *first) {
  const double share = (isinf(cut_of(w)) ? 2 : 1) * SEARCH_DEPTH * FSDP_EVALUATION_ERROR;
  double least = INFINITY;
  search_setting hopeful = *first;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++)
    hopeful.estimate.bytes[s] -= (int64_t)(share * (double)w->evaluator->allowed.bytes[s]);
  hopeful.estimate.bytes[FSDP_SPACE_DEVICE] -= blocks_bytes(w);
  if (fsdp_excess_of(&w->evaluator->allowed, hopeful.estimate.bytes, NULL) == 0)
    return first->estimate.work_s;
  search_delta *delta = delta_of(w, first);
  fsdp_evaluation saved;
  for (int c = w->first_chain; c < w->chain_end; c++)
    if (predict_chain(w, &hopeful, delta, c, &saved)) least = fmin(least, saved.work_s);
  const int finer = find_finer(w, &hopeful, delta);
  if (finer >= 0 && predict_chain(w, &hopeful, delta, finer, &saved)) least = fmin(least, saved.work_s);
  return least;
}

// Whether links take too long without prefetch, as they do with one module ahead. Of a deeper one that is not
// known: it keeps more units gathered from their forward to their backward.
static bool links_are_busy(walk *w, const fsdp_plan_config *first, variant v) {
  fsdp_evaluation one_ahead;
  v.prefetch = 1;
  const fsdp_plan_config config = config_of(w, first, &v);
  return fsdp_evaluate(w->evaluator, &config, FSDP_EVALUATE_FEW, &one_ahead) &&
         is_cut(w, floor_of(&one_ahead));
}

// Whether links take too long with units inside layers, whatever the prefetch, as they do with a unit for
// each layer and one ahead.
static bool links_of_layers_are_busy(walk *w, const fsdp_plan_config *first, variant v) {
  fsdp_evaluation layers;
  const search_units *units = w->space->units;
  if (units[v.units].wrap.kind == FSDP_WRAP_NONE || units[0].wrap.kind != FSDP_WRAP_BLOCK) return false;
  if (!is_open(w, FSDP_SEARCH_PREFETCH)) return false;
  v.prefetch = 1;
  v.units = 0;
  const fsdp_plan_config config = config_of(w, first, &v);
  return fsdp_evaluate(w->evaluator, &config, FSDP_EVALUATE_FEW, &layers) &&
         is_cut(w, layers.links_s * search_links_left(w->search, w->space));
}

// Variants differ from the first in the prefetch; in that, the wrap or the accumulation; in any of these.
typedef enum variant_reach { VARY_PREFETCH, VARY_ONE, VARY_ALL } variant_reach;

// Wraps x prefetch x accumulation of a micro-batch. `choice` estimates the first with everything kept.
static void try_variants(walk *w, const batch_choice *choice, const fsdp_plan_config *first,
                         variant_reach reach) {
  static const int depths[] = {1, 2, 0};
  const fsdp_evaluation *e = &choice->first;
  const bool is_large = fsdp_excess_of(&w->evaluator->allowed, e->bytes, NULL) > 0;
  const bool is_exposed = e->comm_s + e->copies_s > SEARCH_TIE * e->step_s;
  const search_setting setting = {.config = *first, .estimate = *e};
  if ((!is_large && !is_exposed) || is_cut(w, hopeful_work_s(w, &setting))) return;
  const int depth_count = is_open(w, FSDP_SEARCH_PREFETCH) ? 3 : 1;
  const int accumulations = is_open(w, FSDP_SEARCH_ACCUMULATE) && first->micro_batches > 1 ? 2 : 1;
  for (int d = 0; d < depth_count; d++) {
    if (depth_count > 1 && !(depths[d] == 1 || (depths[d] == 2 ? is_exposed : is_large))) continue;
    for (int units = 0; units < w->space->usual_units_count; units++) {
      for (int other = 0; other < accumulations; other++) {
        const int changes = (d > 0) + (units > 0) + (other > 0);
        if (changes == 0 || (reach < VARY_ALL && changes > 1) || (reach == VARY_PREFETCH && d == 0)) continue;
        const variant v = {units, depth_count > 1 ? depths[d] : first->prefetch, other > 0};
        if (links_of_layers_are_busy(w, first, v)) continue;
        if (depths[d] == 0 && links_are_busy(w, first, v)) continue;
        const fsdp_plan_config config = config_of(w, first, &v);
        try_setting(w, &config, NULL);
      }
    }
  }
}

// Lists the micro-batches that make the global batch, the fastest first, without those that bounds exclude.
// The first is always listed.
static int list_batches(walk *w, fsdp_plan_config config, batch_choice choices[SEARCH_BATCHES_MAX]) {
  int count = 0;
  for (int i = 0; search_next_batch(w->search, w->evaluator, w->space, w->kind, i, &config); i++) {
    const double least_s = search_batch_least_s(w->search, w->space, w->kind, config.micro_batches,
                                                i < w->floor->count ? &w->floor->batches[i] : NULL);
    batch_choice choice = {.batch = config.batch, .micro_batches = config.micro_batches};
    if (i > 0 && least_s >= w->cut_s) {
      w->best->left_out = true;
      continue;
    }
    if (!fsdp_evaluate(w->evaluator, &config, FSDP_EVALUATE_FEW, &choice.first)) continue;
    w->best->planned = true;
    int at = count++;
    for (; at > 0 && choices[at - 1].first.step_s > choice.first.step_s; at--) choices[at] = choices[at - 1];
    choices[at] = choice;
  }
  return count;
}

// The micro-batch of which variants are tried: the fastest setting's, or where none is kept the one with the
// fastest prediction that may still be below the cut; else NULL. With a prediction well above the cut, the
// only variant is another prefetch.
static const batch_choice *choose_batch(walk *w, const batch_choice *choices, int count,
                                        const fsdp_plan_config *config, variant_reach *reach) {
  const batch_choice *best = NULL;
  double least = w->cut_s / (1 - PREDICTION_ERROR);
  *reach = VARY_ONE;
  for (int i = 0; i < count; i++) {
    if (w->best->count && choices[i].batch == w->best->settings[0].config.batch) return &choices[i];
    if (w->best->count || is_cut(w, floor_of(&choices[i].first))) continue;
    search_setting first = {.config = *config, .estimate = choices[i].first};
    first.config.batch = choices[i].batch;
    first.config.micro_batches = choices[i].micro_batches;
    search_delta *delta = delta_of(w, &first);
    const int finer = find_finer(w, &first, delta);
    const double seconds = finer >= 0 ? predict_step_s(w, &first, delta, finer) : INFINITY;
    if (seconds >= least) continue;
    least = seconds;
    best = &choices[i];
  }
  if (least * (1 - FSDP_EVALUATION_ERROR) >= w->cut_s) *reach = VARY_PREFETCH;
  return best;
}

void search_kind_settings(const fsdp_search_config *search, const search_space *space,
                          const fsdp_search_kind *kind, const search_floor *floor, bool all_variants,
                          double cut_s, search_deltas *deltas, fsdp_evaluator *evaluator, search_best *best) {
  walk w = {search, space, 0, space->usual_count, kind, floor, cut_s, deltas, evaluator, best};
  batch_choice choices[SEARCH_BATCHES_MAX];
  memset(best, 0, sizeof *best);
  const fsdp_plan_config config = search_first_config(search, space, kind);
  const int count = list_batches(&w, config, choices);
  fsdp_plan_config first = config;
  for (int i = 0; i < count; i++) {
    first.batch = choices[i].batch;
    first.micro_batches = choices[i].micro_batches;
    if (!is_cut(&w, floor_of(&choices[i].first))) try_setting(&w, &first, &choices[i].first);
    if (all_variants) try_variants(&w, &choices[i], &first, VARY_ALL);
  }
  variant_reach reach;
  const batch_choice *choice = all_variants ? NULL : choose_batch(&w, choices, count, &first, &reach);
  if (!choice) return;
  first.batch = choice->batch;
  first.micro_batches = choice->micro_batches;
  try_variants(&w, choice, &first, reach);
}

// A chain's last set in all layers, if its work leaves it a chance.
static void try_whole_set(walk *w, int chain, const fsdp_plan_config *config) {
  const int last = w->space->chains[chain].count - 1;
  search_setting first = {.config = *config}, setting;
  if (!fsdp_evaluate(w->evaluator, config, FSDP_EVALUATE_FEW, &first.estimate)) return;
  if (is_cut(w, hidden_floor_of(&first.estimate))) return;
  search_delta *delta = delta_of(w, &first);
  const fsdp_evaluation predicted = predict(w, &first, delta, chain, last);
  if (is_cut(w, floor_of(&predicted) * (1 - SEARCH_TIE))) return;
  first.is_forced = true;
  if (estimate_set(w, chain, last, &first, &setting) &&
      fsdp_excess_of(&w->evaluator->allowed, setting.estimate.bytes, NULL) == 0)
    keep(w, &setting);
}

bool search_chain_setting(const fsdp_search_config *search, const search_space *space,
                          const fsdp_search_kind *kind, const fsdp_plan_config *setting, int chain,
                          bool whole, double cut_s, search_deltas *deltas, fsdp_evaluator *evaluator,
                          search_setting *out) {
  search_best best = {.count = 0};
  walk w = {search, space, chain, chain + 1, kind, NULL, cut_s, deltas, evaluator, &best};
  fsdp_plan_config config = *setting;
  config.saving = search->base.saving;
  config.limits = search->base.limits;
  if (whole)
    try_whole_set(&w, chain, &config);
  else
    try_setting(&w, &config, NULL);
  if (best.count) *out = best.settings[0];
  return best.count > 0;
}
