#include "runtime/plan/search/search.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/search_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *fsdp_search_bound_name(fsdp_search_bound bound) {
  static const char *const names[FSDP_BOUND_COUNT] = {"compute", "communication", "copies to the host",
                                                      "optimizer updates"};
  return names[bound];
}

const char *fsdp_search_untried(void) {
  return "not tried: precisions; other prefetch than 0 to 2, 0 to 4 near the best, and 0 to 8 of the best; "
         "units of several layers, of parts of layers in more than two ways, and of experts in other blocks "
         "than 2, 4 or 8; context of less than 256 rows a rank, or of 16 where sequences are too few for the "
         "ranks or not divided by them, unless heads are too few too; tensor or context outside of other "
         "axes, but where nodes divide their groups unevenly or tensor spans nodes; tensor of more ranks "
         "than heads but for few sequences inside a node; savings that differ between layers but for the "
         "first ones";
}

// ---- Kinds

static int compare_order(const void *a, const void *b, void *context) {
  const fsdp_search_kind *kinds = context, *x = &kinds[*(const int *)a], *y = &kinds[*(const int *)b];
  if (x->step_s != y->step_s) return x->step_s < y->step_s ? -1 : 1;
  return *(const int *)a - *(const int *)b;
}

// Whether a kind cannot fit, by its least bytes.
static bool is_too_large(const searcher *r, const fsdp_search_kind *kind, int64_t *least, fsdp_space *space) {
  int64_t bytes[FSDP_SPACE_COUNT] = {0};
  *least = search_least_bytes(r->config, &r->space, kind, space);
  bytes[*space] = *least;
  return fsdp_excess_of(&r->evaluator.allowed, bytes, NULL) > 0;
}

// By bounds alone: what cannot fit, and the order in which the others are tried.
static void order_kinds(searcher *r) {
  fsdp_search_result *result = r->result;
  r->order = fsdp_alloc((size_t)result->kind_count * sizeof *r->order);
  for (int k = 0; k < result->kind_count; k++) {
    fsdp_search_kind *kind = &result->kinds[k];
    r->order[k] = k;
    kind->step_s = kind->bound_s = search_least_s(r->config, &r->space, kind, NULL, &kind->bound);
    kind->outcome =
        is_too_large(r, kind, &kind->bytes, &kind->space) ? FSDP_SEARCH_TOO_LARGE : FSDP_SEARCH_TOO_SLOW;
  }
  qsort_r(r->order, (size_t)result->kind_count, sizeof *r->order, compare_order, result->kinds);
}

// The step time that a kind must be below to be among the best.
static double cut_of(const searcher *r) {
  const int wanted = search_plans_wanted(r->config);
  int different = 0; // equal programs have equal estimates
  double last = 0;
  for (int i = 0; i < r->ranked_count && different < wanted; i++) {
    const double step_s = r->ranked[i].best.settings[0].estimate.step_s;
    different += step_s != last;
    last = step_s;
  }
  if (different < wanted) last = INFINITY;
  return r->config->below_s > 0 ? fmin(last, r->config->below_s) : last;
}

static void rank(searcher *r, int k, search_best *best) {
  fsdp_search_kind *kind = &r->result->kinds[k];
  search_sharpen_settings(r, best, cut_of(r));
  const fsdp_evaluation *e = &best->settings[0].estimate;
  kind->outcome = FSDP_SEARCH_SLOWER;
  kind->step_s = e->step_s;
  kind->bound = search_bound_of(e);
  int at = r->ranked_count++;
  for (; at > 0 && r->ranked[at - 1].best.settings[0].estimate.step_s > e->step_s; at--)
    r->ranked[at] = r->ranked[at - 1];
  r->ranked[at].kind = k;
  r->ranked[at].best = *best;
}

static void note_unfit_kind(searcher *r, fsdp_search_kind *kind, const search_best *best) {
  if (!best->planned) {
    kind->outcome = FSDP_SEARCH_IMPOSSIBLE;
    return;
  }
  if (!best->least_bytes) return; // every setting is slower than the best kinds: the bound stands
  kind->outcome = FSDP_SEARCH_TOO_LARGE;
  kind->left_out = best->left_out;
  kind->space = best->least_space;
  kind->bytes = best->least_bytes + r->evaluator.allowed.bytes[best->least_space];
  if (r->least_excess && best->least_bytes >= r->least_excess) return;
  r->least_excess = best->least_bytes;
  r->result->least = best->least;
}

static const search_floor *floor_of(searcher *r, const fsdp_search_kind *kind) {
  return search_floor_of(r->config, &r->space, kind, true, &r->floors, &r->evaluator);
}

// Raises the bound of the kind at `at` of the order by what its layers take with the largest micro-batch or,
// if that does not, with any; and moves it behind those whose bounds are lower then. False if it stays as it
// is.
static bool raise_bound(searcher *r, int at) {
  fsdp_search_kind *kinds = r->result->kinds, *kind = &kinds[r->order[at]];
  const int moved = r->order[at];
  fsdp_search_bound bound = kind->bound;
  double least_s = 0;
  for (int all = 0; all < 2 && least_s <= kind->bound_s; all++) {
    const search_floor *floor = search_floor_of(r->config, &r->space, kind, all, &r->floors, &r->evaluator);
    least_s = search_least_s(r->config, &r->space, kind, floor, &bound);
  }
  if (least_s <= kind->bound_s) return false;
  kind->step_s = kind->bound_s = least_s;
  kind->bound = bound;
  for (; at + 1 < r->result->kind_count && compare_order(&moved, &r->order[at + 1], kinds) > 0; at++)
    r->order[at] = r->order[at + 1];
  r->order[at] = moved;
  return true;
}

// Bounds left a kind out if nothing of it was estimated.
static void note_cut(fsdp_search_result *result, double bound_s) {
  if (result->least_cut_s == 0 || bound_s < result->least_cut_s) result->least_cut_s = bound_s;
}

static void try_kinds(searcher *r) {
  fsdp_search_result *result = r->result;
  r->ranked = fsdp_alloc((size_t)result->kind_count * sizeof *r->ranked);
  for (int i = 0; i < result->kind_count; i++) {
    fsdp_search_kind *kind = &result->kinds[r->order[i]];
    const fsdp_search_progress progress = {result->kind_count, i, r->evaluator.drafts};
    if (r->config->progress) r->config->progress(&progress, r->config->context);
    if (kind->outcome == FSDP_SEARCH_TOO_LARGE) continue;
    if (kind->step_s >= cut_of(r)) {
      note_cut(result, kind->bound_s);
      continue;
    }
    if (raise_bound(r, i)) {
      i--;
      continue;
    }
    search_best best;
    search_kind_settings(r->config, &r->space, kind, floor_of(r, kind), false, cut_of(r), &r->deltas,
                         &r->evaluator, &best);
    if (best.count)
      rank(r, r->order[i], &best);
    else
      note_unfit_kind(r, kind, &best);
  }
}

// Adds what the variants of a kind are to what is known of it.
static void rerank(searcher *r, int k, search_best *best) {
  for (int i = 0; i < r->ranked_count; i++) {
    if (r->ranked[i].kind != k) continue;
    for (int s = 0; s < r->ranked[i].best.count; s++)
      search_best_insert(best, &r->ranked[i].best.settings[s]);
    memmove(&r->ranked[i], &r->ranked[i + 1], (size_t)(--r->ranked_count - i) * sizeof *r->ranked);
  }
  rank(r, k, best);
}

// All variants of all micro-batches where one may be faster than the best so far or, if there is none, fit.
static void try_variants(searcher *r) {
  fsdp_search_result *result = r->result;
  for (int i = 0; i < result->kind_count; i++) {
    fsdp_search_kind *kind = &result->kinds[r->order[i]];
    int64_t least;
    fsdp_space space;
    const bool any = r->ranked_count > 0;
    const double cut = any ? r->ranked[0].best.settings[0].estimate.step_s * (1 - SEARCH_TIE) : cut_of(r);
    const bool is_left_out =
        any ? kind->outcome == FSDP_SEARCH_TOO_LARGE : is_too_large(r, kind, &least, &space);
    if (kind->bound_s >= cut || is_left_out) continue;
    search_best best;
    search_kind_settings(r->config, &r->space, kind, floor_of(r, kind), true, cut, &r->deltas, &r->evaluator,
                         &best);
    if (best.count) rerank(r, r->order[i], &best);
  }
}

// Adds the settings of a kind with units that leave a part of each layer to the root's where these are faster
// than all that it has, by more than the order of estimates is likely to be off by.
static void add_other_units(searcher *r, const search_best *usual, search_best *best) {
  const double enough = usual->settings[0].estimate.step_s * (1 - FSDP_EVALUATION_ERROR / SEARCH_DEPTH);
  for (int s = 0; s < usual->count; s++) {
    search_setting setting = usual->settings[s];
    for (int u = r->space.usual_units_count; u < r->space.units_count; u++) {
      search_units_set(&setting.config, &r->space.units[u]);
      if (search_estimate_below(r, FSDP_EVALUATE_FEW, enough, &setting)) search_best_insert(best, &setting);
    }
  }
}

// Tries other units for kinds within a tenth of the best: where links are busy, units decide about as much.
// Kinds whose plans get other units later (search_improve_plans) are left out.
static void try_other_units(searcher *r) {
  const double best_s = r->ranked_count ? r->ranked[0].best.settings[0].estimate.step_s : 0;
  for (int k = 0; k < r->result->kind_count; k++) {
    int at = 0;
    while (at < r->ranked_count && r->ranked[at].kind != r->order[k]) at++;
    if (at == r->ranked_count) continue;
    const search_best usual = r->ranked[at].best;
    const double step_s = usual.settings[0].estimate.step_s;
    const bool later = at < FSDP_SEARCH_PLANS && step_s * (1 - 2 * FSDP_EVALUATION_ERROR) < best_s;
    if (later || step_s * (1 - 4 * FSDP_EVALUATION_ERROR) >= best_s) continue;
    search_best best = usual;
    add_other_units(r, &usual, &best);
    if (best.settings[0].estimate.step_s < step_s) rerank(r, r->order[k], &best);
  }
}

// Of kinds that bounds alone exclude, some setting, so that there is one to name.
static void find_least(searcher *r) {
  for (int k = 0; k < r->result->kind_count && !r->least_excess; k++) {
    fsdp_search_kind *kind = &r->result->kinds[r->order[k]];
    search_best best;
    search_kind_settings(r->config, &r->space, kind, floor_of(r, kind), false, INFINITY, &r->deltas,
                         &r->evaluator, &best);
    if (!best.count) note_unfit_kind(r, kind, &best);
  }
}

static void try_all(searcher *r) {
  free(r->order);
  free(r->ranked);
  r->ranked_count = 0;
  order_kinds(r);
  try_kinds(r);
  try_variants(r);
  try_other_units(r);
}

static fsdp_memory_limits reduced(const fsdp_memory_limits *limits, double share) {
  fsdp_memory_limits less = *limits;
  for (int s = 0; s < FSDP_SPACE_COUNT; s++) less.bytes[s] -= (int64_t)(share * (double)less.bytes[s]);
  less.shared_bytes -= (int64_t)(share * (double)less.shared_bytes);
  return less;
}

static void choose(searcher *r) {
  search_choose_finalists(r);
  if (!r->config->coarse) search_improve_plans(r);
  search_name_finalists(r);
}

// Estimates leave out what packing adds. Where all estimated settings exceed the limit by it, settings with
// smaller estimates may fit.
static void try_smaller(searcher *r) {
  const fsdp_memory_limits allowed = r->evaluator.allowed;
  for (int i = 1; i <= SEARCH_DEPTH && !r->result->count && r->ranked_count; i++) {
    r->evaluator.allowed = reduced(&allowed, i * FSDP_EVALUATION_ERROR / 2);
    try_all(r);
    r->evaluator.allowed = allowed;
    choose(r);
  }
}

fsdp_status fsdp_search_fail_undivided(const fsdp_search_config *config, fsdp_error *error) {
  const bool *fixed = config->fixed;
  const bool axes = config->fixed_tensor || config->fixed_context || config->fixed_expert;
  return fsdp_fail(error, FSDP_ERR_OPTION,
                   "--search: no mesh of %d ranks divides %lld sequences of a step as the given options say: "
                   "change --global-batch%s%s%s%s",
                   config->ranks, (long long)config->global_batch,
                   fixed[FSDP_SEARCH_BATCH] ? ", --batch-size" : "",
                   fixed[FSDP_SEARCH_MICRO_BATCHES] ? ", --grad-accum" : "",
                   fixed[FSDP_SEARCH_MESH] || axes ? ", or leave the mesh open" : "",
                   fixed[FSDP_SEARCH_STRATEGY] ? ", or leave --strategy open" : "");
}

static fsdp_status search_all(searcher *r, fsdp_error *error) {
  fsdp_search_result *result = r->result;
  result->kinds = search_kinds_create(r->config, &r->space, &result->kind_count);
  if (!result->kind_count) return fsdp_search_fail_undivided(r->config, error);
  try_all(r);
  choose(r);
  try_smaller(r);
  if (!result->count && !r->config->coarse) find_least(r);
  return FSDP_OK;
}

static void release_deltas(search_deltas *deltas) {
  for (int i = 0; i < deltas->count; i++) free(deltas->items[i]);
  free(deltas->items);
}

fsdp_status fsdp_search_run(const fsdp_search_config *config, fsdp_search_result *result, fsdp_error *error) {
  searcher r = {.config = config,
                .result = result,
                .near_deltas = {.is_exact = true},
                .evaluator = search_evaluator_of(config)};
  *result = (fsdp_search_result){0};
  fsdp_status status = fsdp_pricing_check(&config->base, config->profile, error);
  if (status == FSDP_OK) status = search_space_create(config, &r.space, error);
  if (status == FSDP_OK) status = search_all(&r, error);
  result->drafts = r.evaluator.drafts;
  result->whole = r.evaluator.plans;
  search_space_release(&r.space);
  free(r.order);
  free(r.ranked);
  free(r.hindered);
  release_deltas(&r.deltas);
  release_deltas(&r.near_deltas);
  free(r.floors.items);
  fsdp_evaluator_release(&r.evaluator);
  if (status != FSDP_OK) fsdp_search_result_release(result);
  return status;
}

void fsdp_search_result_release(fsdp_search_result *result) {
  free(result->kinds);
  result->kinds = NULL;
  result->kind_count = 0;
}
