// What differs little from the best plans.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/search/search.h"
#include "runtime/plan/search/search_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- What a plan's neighbours are

// All units, and the plan's own, with every prefetch; the other accumulation; the micro-batches next in size,
// with two prefetches; of other kinds four strategies, the other place of the states, rows cut or not, with
// three.
#define KINDS_MAX      6
#define NEIGHBOURS_MAX ((SEARCH_UNITS_MAX + 1) * (SEARCH_PREFETCH_DEEPEST + 1) + 5 + 3 * KINDS_MAX)

typedef struct neighbours {
  fsdp_plan_config settings[NEIGHBOURS_MAX]; // the plan's own first
  int kinds[NEIGHBOURS_MAX];
  int count, kind; // `kind`: of what is added
} neighbours;

static void add(neighbours *list, const fsdp_plan_config *setting) {
  FSDP_CHECK(list->count < NEIGHBOURS_MAX, "more than %d neighbours", NEIGHBOURS_MAX);
  list->kinds[list->count] = list->kind;
  list->settings[list->count++] = *setting;
}

// Units that leave a part of each layer to the root's with the plan's prefetch, one less and one more alone,
// unless `all_depths`.
static void add_wraps_ahead(const searcher *r, const fsdp_plan_config *own, bool all_depths,
                            neighbours *list) {
  const bool fixed = r->config->fixed[FSDP_SEARCH_PREFETCH];
  const search_units own_units = search_units_of(own);
  fsdp_plan_config setting = *own;
  for (int u = 0; u < r->space.units_count; u++) {
    const search_units *units = &r->space.units[u];
    const bool is_own = search_units_equal(units, &own_units);
    const bool any_depth = all_depths || is_own || u < r->space.usual_units_count;
    search_units_set(&setting, units);
    for (int depth = 0; depth <= fsdp_max_i64(SEARCH_PREFETCH_DEEPEST, own->prefetch); depth++) {
      const int apart = abs(depth - own->prefetch);
      setting.prefetch = depth;
      if (apart == 0 ? !is_own : !fixed && (any_depth || apart == 1)) add(list, &setting);
    }
  }
}

// With prefetches from `from` to `to` units ahead of the plan's, if the prefetch is open; without, its own.
static void add_depths(const searcher *r, const fsdp_plan_config *own, int from, int to, neighbours *list) {
  const bool fixed = r->config->fixed[FSDP_SEARCH_PREFETCH];
  fsdp_plan_config setting = *own;
  for (int by = fixed ? 0 : from; by <= (fixed ? 0 : to); by++) {
    setting.prefetch = own->prefetch + by;
    if (setting.prefetch >= 0 && (setting.prefetch <= SEARCH_PREFETCH_DEEPEST || by <= 0))
      add(list, &setting);
  }
}

// What a micro-batch saves takes the place of units that are gathered ahead.
static void add_batches(const searcher *r, const fsdp_search_kind *kind, const fsdp_plan_config *own,
                        neighbours *list) {
  fsdp_plan_config setting = *own, before = *own;
  for (int i = 0; search_batch(r->config, kind, i, &setting.batch, &setting.micro_batches); i++) {
    if (setting.batch > own->batch) {
      add_depths(r, &setting, -1, 0, list);
      break;
    }
    if (setting.batch < own->batch) before = setting;
  }
  if (before.batch < own->batch) add_depths(r, &before, 0, 1, list);
}

static void add_accumulation(const searcher *r, const fsdp_plan_config *own, neighbours *list) {
  fsdp_plan_config other = *own;
  if (r->config->fixed[FSDP_SEARCH_ACCUMULATE] || own->micro_batches == 1) return;
  other.accumulate =
      own->accumulate == FSDP_ACCUMULATE_LOCAL ? FSDP_ACCUMULATE_REDUCE : FSDP_ACCUMULATE_LOCAL;
  add(list, &other);
}

// The same with another strategy, with the states in the other place, or with rows cut by tensor where they
// are not, or not where they are: kinds are ranked by other units and prefetches than the best plan has now.
// What one strategy gathers ahead says little of another's: each has one unit more and one less too.
static void add_kinds(const searcher *r, int kind, const fsdp_plan_config *own, neighbours *list) {
  const fsdp_search_kind *mine = &r->result->kinds[kind];
  for (int k = 0; k < r->result->kind_count; k++) {
    const fsdp_search_kind *other = &r->result->kinds[k];
    const bool same_strategy = other->strategy == mine->strategy;
    const int changes = !same_strategy + (other->cpu_offload != mine->cpu_offload) +
                        (other->sequence_parallel != mine->sequence_parallel);
    if (changes != 1 || memcmp(&other->mesh, &mine->mesh, sizeof mine->mesh) != 0) continue;
    fsdp_plan_config setting = *own;
    setting.strategy = other->strategy;
    setting.cpu_offload = other->cpu_offload;
    setting.sequence_parallel = other->sequence_parallel;
    if (!same_strategy && !r->config->fixed[FSDP_SEARCH_ACCUMULATE])
      setting.accumulate = search_usual_accumulation(other->strategy);
    list->kind = k;
    add_depths(r, &setting, -1, 1, list);
  }
}

// Of a plan of this kind; `best`: of the best plan; `fits`: with everything kept.
static void list_neighbours(const searcher *r, int kind, const fsdp_plan_config *own, bool best, bool fits,
                            neighbours *list) {
  list->count = 0;
  list->kind = kind;
  add(list, own);
  add_wraps_ahead(r, own, fits, list);
  add_batches(r, &r->result->kinds[kind], own, list);
  add_accumulation(r, own, list);
  if (best) add_kinds(r, kind, own, list);
}

// ---- What each may save

// The greatest number of settings around the best plan of which all layers are drafted, and of their layers.
// Around other plans, the fastest by estimates from few layers, a large model has fewer layers drafted.
#define DRAFTED_MAX    256
#define LAYERS_DRAFTED 1024
#define LAYERS_AROUND  384

// Settings that may be faster than the best plan, the fastest by estimate first.
typedef struct candidates {
  search_setting *settings;
  int count, capacity;
} candidates;

static candidates candidates_create(const searcher *r, bool best) {
  const int64_t few = fsdp_max_i64(LAYERS_DRAFTED / r->config->base.model.num_layers, SEARCH_KEEP);
  const int capacity = best ? DRAFTED_MAX : (int)fsdp_min_i64(few, DRAFTED_MAX);
  search_setting *settings = fsdp_alloc((size_t)(capacity + 1) * sizeof *settings);
  return (candidates){.settings = settings, .capacity = capacity};
}

// Chains may lead to the same program: that is listed once.
static void insert(candidates *list, const search_setting *setting) {
  int at = list->count;
  for (int i = 0; i < list->count; i++) {
    const fsdp_evaluation *x = &list->settings[i].estimate, *y = &setting->estimate;
    if (x->step_s == y->step_s && memcmp(x->bytes, y->bytes, sizeof x->bytes) == 0) return;
  }
  while (at > 0 && list->settings[at - 1].estimate.step_s > setting->estimate.step_s) at--;
  if (at == list->capacity) return;
  memmove(&list->settings[at + 1], &list->settings[at], (size_t)(list->count - at) * sizeof *setting);
  list->settings[at] = *setting;
  list->count = (int)fsdp_min_i64(list->count + 1, list->capacity);
}

static bool fits_whole(searcher *r, const fsdp_plan_config *setting) {
  fsdp_plan_config config = *setting;
  fsdp_evaluation e;
  config.saving = r->config->base.saving;
  config.limits = r->config->base.limits;
  return fsdp_evaluate(&r->evaluator, &config, FSDP_EVALUATE_FEW, &e) &&
         fsdp_excess_of(&r->evaluator.allowed, e.bytes, NULL) == 0;
}

// The step below which a plan takes the best one's place.
static double enough_of(const searcher *r) {
  return r->result->plans[0].step_s * (1 - SEARCH_TIE);
}

// What the first `chains` chains make of a neighbour. Where everything fits: with everything kept, and with
// one item made again or offloaded; of the best plan itself, its first neighbour, with one of each too.
static void list_savings(searcher *r, const neighbours *around, int neighbour, bool best, int chains,
                         candidates *list) {
  const fsdp_plan_config *setting = &around->settings[neighbour];
  const fsdp_search_kind *kind = &r->result->kinds[around->kinds[neighbour]];
  const bool fits = fits_whole(r, setting);
  const int end = !fits ? chains : best && neighbour == 0 ? r->space.chain_count : r->space.first_pair;
  search_setting *out = fsdp_alloc(sizeof *out);
  for (int c = 0; c < end; c++) {
    if (fits && c == 1) c = r->space.first_single;
    if (c == end) break;
    if (search_chain_setting(r->config, &r->space, kind, setting, c, fits && c > 0, enough_of(r),
                             &r->near_deltas, &r->evaluator, out)) {
      out->neighbour = neighbour;
      insert(list, out);
    }
  }
  free(out);
}

// A plan as it is with units gathered further ahead, if that fits: the best twice as far, if it waits for
// memory.
static void list_prefetches(searcher *r, const fsdp_search_plan *plan, bool best, candidates *list) {
  const fsdp_plan_config *own = &plan->config;
  const bool waits = best && plan->unhindered_s < plan->step_s * (1 - SEARCH_TIE);
  search_setting setting = {.config = *own};
  if (r->config->fixed[FSDP_SEARCH_PREFETCH]) return;
  for (int depth = own->prefetch + 1; depth <= SEARCH_PREFETCH_DEEPEST * (waits ? 2 : 1); depth++) {
    setting.config.prefetch = depth;
    if (search_estimate_below(r, FSDP_EVALUATE_DRAFT, enough_of(r), &setting)) insert(list, &setting);
    if (fsdp_excess_of(&r->evaluator.allowed, setting.estimate.bytes, NULL) > 0)
      break; // as of all further ones
  }
}

// A plan as it is with other units, if that fits.
static void list_units(searcher *r, const fsdp_plan_config *own, candidates *list) {
  const search_units own_units = search_units_of(own);
  search_setting setting = {.config = *own};
  for (int u = 0; u < r->space.units_count; u++) {
    if (search_units_equal(&r->space.units[u], &own_units)) continue;
    search_units_set(&setting.config, &r->space.units[u]);
    if (search_estimate_below(r, FSDP_EVALUATE_FEW, enough_of(r), &setting)) insert(list, &setting);
  }
}

// ---- Plans

// Drafts all layers of what may be faster than the best plan, and orders it by that.
static void refine(searcher *r, candidates *list) {
  int count = 0;
  for (int i = 0; i < list->count; i++) {
    search_setting *setting = &list->settings[i];
    if (search_refine(r, setting) && setting->estimate.step_s < enough_of(r))
      list->settings[count++] = *setting;
  }
  list->count = count;
  qsort(list->settings, (size_t)count, sizeof *list->settings, search_compare_settings);
}

// Whether a plan would be the fastest if it did not wait for memory: others of its kind may not.
static bool is_hindered(const fsdp_search_result *result, const fsdp_search_plan *plan) {
  return plan->unhindered_s < result->plans[0].step_s * (1 - SEARCH_TIE);
}

// The neighbours of a plan that are tried: its own with other units; those of its kind, with all choices of
// what is saved; those of other kinds that differ from it in one thing.
typedef enum search_reach { REACH_UNITS, REACH_KIND, REACH_KINDS } search_reach;

static void try_neighbours(searcher *r, fsdp_search_plan plan, search_reach reach) {
  const bool best = reach == REACH_KINDS;
  neighbours *around = fsdp_alloc(sizeof *around);
  candidates list = candidates_create(r, best);
  double waits[NEIGHBOURS_MAX][2] = {0}; // where everything is kept, and where something is not
  int priced[NEIGHBOURS_MAX] = {0};
  list_neighbours(r, plan.kind, &plan.config, best, fits_whole(r, &plan.config), around);
  for (int n = 0; n < around->count && reach != REACH_UNITS; n++)
    list_savings(r, around, n, best,
                 around->kinds[n] == plan.kind ? r->space.first_offload : r->space.usual_count, &list);
  if (reach == REACH_UNITS)
    list_units(r, &plan.config, &list);
  else
    list_prefetches(r, &plan, best, &list);
  refine(r, &list);
  for (int i = 0; i < list.count; i++) {
    search_setting *setting = &list.settings[i];
    const int n = setting->neighbour;
    double *share = &waits[n][setting->set > 0];
    fsdp_search_plan found;
    if (setting->estimate.step_s * (1 + *share) >= enough_of(r) || priced[n] == SEARCH_DEPTH) continue;
    priced[n]++;
    if (!search_price_estimated(r, true, share, setting, &found) || found.step_s >= enough_of(r)) continue;
    found.kind = around->kinds[n];
    search_place_plan(r->result, &found);
  }
  free(list.settings);
  free(around);
}

typedef struct tried_plan {
  uint64_t hash;
  search_reach reach;
} tried_plan;

// The fastest plan around which not all was tried that may make the best, and how far to go: around one of
// the first `near_max` plans near it, and around every hindered one that is not near, its kind; around others
// that are near, units. -1: none is left.
static int next_plan(const fsdp_search_result *result, int64_t near_max, const tried_plan *tried,
                     int tried_count, search_reach *reach) {
  for (int p = 0; p < result->count; p++) {
    const fsdp_search_plan *plan = &result->plans[p];
    const bool is_near = plan->step_s * (1 - 2 * FSDP_EVALUATION_ERROR) < result->plans[0].step_s;
    if (!is_near && !is_hindered(result, plan)) continue;
    *reach = p == 0 ? REACH_KINDS : is_near && p >= near_max ? REACH_UNITS : REACH_KIND;
    int t = 0;
    while (t < tried_count &&
           (tried[t].hash != plan->hash || tried[t].reach < fsdp_min_i64(*reach, REACH_KIND)))
      t++;
    if (t == tried_count) return p;
  }
  return -1;
}

// The next plan that is not listed and would be the best if it did not wait for memory; false: none is left.
static bool next_hindered(searcher *r, fsdp_search_plan *plan) {
  while (r->hindered_count > 0) {
    *plan = r->hindered[--r->hindered_count];
    if (is_hindered(r->result, plan)) return true;
  }
  return false;
}

void search_improve_plans(searcher *r) {
  const int64_t near_max = fsdp_max_i64(LAYERS_AROUND / r->config->base.model.num_layers, SEARCH_DEPTH);
  tried_plan *tried = NULL;
  fsdp_search_plan plan;
  search_reach reach;
  for (int count = 0;;) {
    const int p = next_plan(r->result, near_max, tried, count, &reach);
    if (p >= 0) {
      plan = r->result->plans[p];
      tried = fsdp_realloc(tried, (size_t)(count + 1) * sizeof *tried);
      tried[count++] = (tried_plan){plan.hash, reach};
      try_neighbours(r, plan, reach);
    } else if (next_hindered(r, &plan)) {
      try_neighbours(r, plan, REACH_KIND);
    } else {
      break;
    }
  }
  free(tried);
}
