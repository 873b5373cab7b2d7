// The parts of the search: bounds before planning, estimates from drafts, and the settings of a kind.
#pragma once

#include "runtime/plan/program/saved.h"
#include "runtime/plan/search/evaluate.h"
#include "runtime/plan/search/search_config.h"

// How far estimates are believed is said by three constants: FSDP_EVALUATION_ERROR (estimate.h), what an
// estimate may be off by in time and in bytes, and the two here. A chain's prediction before its drafts has
// its own (search_kind.c), and a bound has the share of a gemm that no setting spares (search_bounds.c).
// The other numbers say how much is enumerated.

// A smaller share of a step is not worth another plan.
#define SEARCH_TIE 1e-3
// How far each search around an estimate goes: the kinds of which all near settings are planned whole, the
// layers added to what packing leaves above a limit, the steps of room given to what waits for memory.
#define SEARCH_DEPTH 3

// What is enumerated.
#define SEARCH_SETS_MAX         12 // of values that are not kept
#define SEARCH_ITEMS_MAX        20 // values of a layer that are decided apart
#define SEARCH_WRAPS_MAX        4  // and of routed models those with blocks of experts
#define SEARCH_BLOCKS_MAX       8  // of a rank's experts in a layer
#define SEARCH_USUAL_UNITS_MAX  (SEARCH_WRAPS_MAX + 3)
#define SEARCH_UNITS_MAX        (SEARCH_USUAL_UNITS_MAX + 4)
#define SEARCH_KEEP             8 // settings of a kind that may become its finalist, half of them offloading
#define SEARCH_BATCHES_MAX      64
#define SEARCH_PREFETCH_MAX     2
#define SEARCH_PREFETCH_DEEPEST 4 // of the best plans

// Of what the search allows.
fsdp_evaluator search_evaluator_of(const fsdp_search_config *search);

// How many plans a search lists at most.
static inline int search_plans_wanted(const fsdp_search_config *search) {
  return search->coarse ? 1 : FSDP_SEARCH_PLANS;
}

// A setting and how it is judged.
typedef struct search_setting {
  fsdp_plan_config config;
  fsdp_evaluation estimate;
  int chain, set, layers; // of the chain: `set` for the first `layers` layers, the one before for the others
  bool is_forced;         // in all layers, although fewer would fit
  int neighbour;          // of a plan, by number
} search_setting;

// The part that takes most of a step's time beside computation.
fsdp_search_bound search_bound_of(const fsdp_evaluation *evaluation);

// ---- What is enumerated (search_space.c)

#define SEARCH_LIST_BYTES ((SEARCH_ITEMS_MAX + 1) * FSDP_SAVED_NAME_BYTES)

// Of the first layers, these values are recomputed and offloaded; "": none.
typedef struct search_saved {
  char recompute[SEARCH_LIST_BYTES], offload[SEARCH_LIST_BYTES];
} search_saved;

// Sets of which each saves less than the one before. All chains begin with what is fixed.
typedef struct search_chain {
  search_saved sets[SEARCH_SETS_MAX];
  int count;
} search_chain;

// Chains of every setting, and further ones for the best plans alone.
#define SEARCH_USUAL_CHAINS_MAX   4
#define SEARCH_FINER_CHAINS_MAX   (4 * SEARCH_ITEMS_MAX + 2) // and two ladders
#define SEARCH_SINGLE_CHAINS_MAX  SEARCH_ITEMS_MAX
#define SEARCH_OFFLOAD_CHAINS_MAX (SEARCH_ITEMS_MAX + 1)
#define SEARCH_PAIR_CHAINS_MAX    64
#define SEARCH_CHAINS_MAX                                                                                    \
  (SEARCH_USUAL_CHAINS_MAX + SEARCH_FINER_CHAINS_MAX + SEARCH_SINGLE_CHAINS_MAX +                            \
   SEARCH_OFFLOAD_CHAINS_MAX + SEARCH_PAIR_CHAINS_MAX)

// What is gathered together.
typedef struct search_units {
  fsdp_wrap_policy wrap;
  int expert_blocks;
} search_units;

static inline search_units search_units_of(const fsdp_plan_config *config) {
  return (search_units){config->wrap, config->expert_blocks};
}

static inline bool search_units_equal(const search_units *a, const search_units *b) {
  return a->wrap.kind == b->wrap.kind && a->wrap.numel == b->wrap.numel &&
         a->expert_blocks == b->expert_blocks;
}

static inline void search_units_set(fsdp_plan_config *config, const search_units *units) {
  config->wrap = units->wrap;
  config->expert_blocks = units->expert_blocks;
}

typedef struct search_space {
  search_chain *chains;         // SEARCH_CHAINS_MAX of them
  int chain_count, usual_count; // the usual ones come first
  // The first chains that recompute one item, that offload one, and that recompute one and offload another.
  int first_single, first_offload, first_pair;
  // Finer chains that offload more and more of what is made once, and recompute what is cheap.
  int finer[SEARCH_ITEMS_MAX], finer_count;
  search_units units[SEARCH_UNITS_MAX]; // the first is what a kind is tried with
  int units_count, usual_units_count;   // the others are tried around the best plans
  bool has_blocks;                      // some of them cut a layer's experts, and the first does not
  int64_t layer_params, params;         // of a layer, and in all
  double value_bytes;                   // of a sequence: the largest value that a layer saves or makes again
} search_space;

// The caller releases *space.
fsdp_status search_space_create(const fsdp_search_config *search, search_space *space, fsdp_error *error);
void search_space_release(search_space *space);

// The chains of a space, of what layers of `graph` save that no given rule names (search_chains.c). The graph
// has a layer of each sort.
void search_list_chains(const fsdp_search_config *search, search_space *space, const fsdp_graph *graph);

// The rules of set `set` of a chain for the first `layers` layers and the one before it for all others.
fsdp_saving search_saving_of(const fsdp_search_config *search, const search_chain *chain, int set,
                             int layers);

// All kinds that the number of ranks and what is fixed allow. The caller frees them.
fsdp_search_kind *search_kinds_create(const fsdp_search_config *search, const search_space *space,
                                      int *count);

// Sequences of a micro-batch and micro-batches of a step: entry `index` of those that make the global batch
// with this kind, the smallest micro-batch first. False after the last.
bool search_batch(const fsdp_search_config *search, const fsdp_search_kind *kind, int index, int64_t *batch,
                  int *micro_batches);

static inline fsdp_accumulate search_usual_accumulation(fsdp_strategy strategy) {
  return strategy == FSDP_ZERO1 ? FSDP_ACCUMULATE_LOCAL : FSDP_ACCUMULATE_REDUCE;
}

// The least bytes on the device of a rank's part of a layer's largest value, of `batch` sequences.
int64_t search_value_bytes(const search_space *space, const fsdp_search_kind *kind, int64_t batch);

// What a kind is tried with first, but for its micro-batch.
fsdp_plan_config search_first_config(const fsdp_search_config *search, const search_space *space,
                                     const fsdp_search_kind *kind);

// The micro-batch `index` of a kind. False after the last, and if a single value that a layer makes of it is
// above the limits; the first is there in any case, so that the least that a kind needs is known.
bool search_next_batch(const fsdp_search_config *search, const fsdp_evaluator *evaluator,
                       const search_space *space, const fsdp_search_kind *kind, int index,
                       fsdp_plan_config *config);

// ---- Bounds (search_bounds.c)

// Lower bounds on the time of all layers with one micro-batch under any strategy: the longest path of
// computation and collectives over `tensor` and `context`, and the links' time of these collectives inside
// nodes and between them.
typedef struct search_batch_floor {
  double layers_s, node_s, network_s;
} search_batch_floor;

// Of all kinds that cut layers alike, with one size of `tensor`, `context` and `expert`; by micro-batch
// (search_batch).
typedef struct search_floor {
  fsdp_mesh mesh; // of the kind that was drafted
  bool sequence_parallel;
  int batch_parts, count;
  int drafted; // the first of those that were drafted: all, or the largest alone
  search_batch_floor batches[SEARCH_BATCHES_MAX];
} search_floor;

typedef struct search_floors {
  search_floor *items;
  int count;
} search_floors;

// The least time of a kind's steps: FLOPs at the best rate of the profile, or bytes of weights and gradients
// over the links that they must take; with `floor` (may be NULL), of its micro-batches the least. Where the
// largest alone was drafted, others may take less by FSDP_EVALUATION_ERROR: they fill more tiles, but seldom
// better. And the least of a micro-batch.
double search_least_s(const fsdp_search_config *search, const search_space *space,
                      const fsdp_search_kind *kind, const search_floor *floor, fsdp_search_bound *bound);
double search_batch_least_s(const fsdp_search_config *search, const search_space *space,
                            const fsdp_search_kind *kind, int micro_batches, const search_batch_floor *floor);
// The least bytes of a kind's states and of one layer's parameters.
int64_t search_least_bytes(const fsdp_search_config *search, const search_space *space,
                           const fsdp_search_kind *kind, fsdp_space *where);

// Lower bound on the busiest link's traffic when units are smaller than a layer or up to two are prefetched,
// as a fraction of `links_s`: at most one layer, and the root unit, stay gathered between their forward and
// their backward.
double search_links_left(const fsdp_search_config *search, const search_space *space);

// The bounds that all kinds with this one's tensor, context and expert share, from drafts of the first: of
// the largest micro-batch, or of `all`. Valid until the next call.
const search_floor *search_floor_of(const fsdp_search_config *search, const search_space *space,
                                    const fsdp_search_kind *kind, bool all, search_floors *floors,
                                    fsdp_evaluator *evaluator);

// ---- Settings of a kind (search_kind.c)

// The memory that a chain's sets save and the work that they cost, compared with keeping everything. Both
// depend on what one rank computes and hardly on the rest, so they are estimated once and show which sets are
// worth a draft. Where all that layers save is many times the memory, "hardly" may be more than what is left
// of it: around a plan they are estimated for every micro-batch and units.
typedef struct search_delta {
  int tensor, context, expert;
  bool sequence_parallel;
  int finer;            // of space.finer, the one that was predicted to be the fastest last
  search_setting first; // keeps everything
  bool known[SEARCH_CHAINS_MAX][SEARCH_SETS_MAX];
  // Of a sequence in a micro-batch.
  double work_s[SEARCH_CHAINS_MAX][SEARCH_SETS_MAX];
  double bytes[SEARCH_CHAINS_MAX][SEARCH_SETS_MAX][FSDP_SPACE_COUNT];
} search_delta;

typedef struct search_deltas {
  search_delta **items;
  int count;
  bool is_exact; // each is of settings with one micro-batch and units alone
} search_deltas;

typedef struct search_best {
  search_setting settings[SEARCH_KEEP]; // the fastest first
  int count;
  int64_t least_bytes; // of those that do not fit, the least above the limits
  fsdp_space least_space;
  fsdp_plan_config least;
  bool planned;  // some setting makes a plan
  bool left_out; // some setting takes `cut_s` or longer: it may fit
} search_best;

// Puts a setting where it belongs, unless it is there or is slower than as many of its sort as there may be.
void search_best_insert(search_best *best, const search_setting *setting);

// The fastest settings of a kind; those whose work takes `cut_s` or longer are left out. Every micro-batch is
// tried with the first wrap, accumulation and prefetch, and all others of these with the best of them, or
// with every one of them if `all_variants`. `floor`: of the kind.
void search_kind_settings(const fsdp_search_config *search, const search_space *space,
                          const fsdp_search_kind *kind, const search_floor *floor, bool all_variants,
                          double cut_s, search_deltas *deltas, fsdp_evaluator *evaluator, search_best *best);

// `setting`, of this kind, with as much of one chain as must be; false if nothing of it fits, or it takes
// `cut_s`. `whole`: with the chain's last set in all layers, although it fits
// without.
bool search_chain_setting(const fsdp_search_config *search, const search_space *space,
                          const fsdp_search_kind *kind, const fsdp_plan_config *setting, int chain,
                          bool whole, double cut_s, search_deltas *deltas, fsdp_evaluator *evaluator,
                          search_setting *out);

// ---- The search (search.c, search_finalists.c, search_neighbours.c)

typedef struct search_ranked {
  int kind;
  search_best best;
} search_ranked;

// A search as it runs.
typedef struct searcher {
  const fsdp_search_config *config;
  search_space space;
  fsdp_search_result *result;
  int *order;            // kinds by their bounds
  search_ranked *ranked; // kinds with settings that fit, by estimate
  int ranked_count;
  search_deltas deltas, near_deltas; // of kinds, and around plans
  search_floors floors;
  fsdp_evaluator evaluator;
  int64_t least_excess; // of what does not fit; 0: nothing was tried
  // Plans that another one of their kind is faster than, and would not be if they did not wait for memory.
  fsdp_search_plan *hindered;
  int hindered_count;
} searcher;

// Estimates what may be the fastest of some settings, and take less than `enough`, again, from several
// layers, or all where they differ, and orders them by that: estimates from few layers choose what is kept of
// a kind, and may be much too low where copies and collectives come into each other's way later.
void search_sharpen_settings(searcher *r, search_best *best, double enough);

// Plans what may be best of the kinds that are ranked: result->plans, the fastest first.
void search_choose_finalists(searcher *r);
// Once the plans stand: which kinds they are of, and what of their settings makes no difference.
void search_name_finalists(searcher *r);

// By their estimates, for qsort.
int search_compare_settings(const void *a, const void *b);

// Estimates a setting; whether it takes less than `enough` and fits. False of a large model whose layers
// differ in what they save, from few layers.
bool search_estimate_below(searcher *r, fsdp_fidelity fidelity, double enough, search_setting *setting);

// The step of a setting from a draft of all layers, which takes the place of the estimate from few.
bool search_refine(searcher *r, search_setting *setting);
// Prices a setting whole, with other layers of what it saves where that is faster, and corrects `waits`, the
// share by which plans of its kind take longer than drafts of all their layers, if it says otherwise.
bool search_price_estimated(searcher *r, bool best, double *waits, search_setting *setting,
                            fsdp_search_plan *out);
// Lists a plan in place of its kind's, if it is among the best.
void search_place_plan(fsdp_search_result *result, const fsdp_search_plan *plan);

// Replaces the best plans by their neighbours as long as one is faster than all: plans that differ in the
// micro-batch, in the accumulation, or in wrap and prefetch, each with finer choices of what is saved than
// kinds are tried with. Neighbours are tried of all that is
// nearly as fast as the best; of a large model, of the first few.
void search_improve_plans(searcher *r);
