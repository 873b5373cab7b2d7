// The parts of the search: bounds before planning, estimates from drafts, and the settings of a kind.
#pragma once

#include "runtime/plan/search/search_config.h"

#define SEARCH_SETS_MAX     6 // of values that are not kept
#define SEARCH_WRAPS_MAX    4
#define SEARCH_KEEP         4 // settings of a kind that may become its finalist
#define SEARCH_BATCHES_MAX  64
#define SEARCH_PREFETCH_MAX 2
// Estimates may be so much too high: those from a few layers, and all where waits for memory order what
// shares a link better than its streams do.
#define SEARCH_TOO_HIGH 0.03

// ---- Estimates (search_estimate.c)

typedef struct search_estimate {
  double step_s;
  // Of it the least that any prefetch, wrap or accumulation leaves: compute, what it waits for of `tensor`
  // and `context`, and updates on the host.
  double work_s;
  // The same of layers alone, which no strategy changes, and what collectives over `tensor` and `context`
  // take of the links inside nodes and between them. Not of estimates between two.
  double layers_s, axes_node_s, axes_network_s;
  double links_s; // the least that no prefetch or one as deep leaves: what the busiest link carries
  double comm_s, copies_s, update_s;
  int64_t bytes[FSDP_SPACE_COUNT]; // peaks, with what lies beside the device's arena
} search_estimate;

// A setting and what it is estimated to take.
typedef struct search_setting {
  fsdp_plan_config config;
  search_estimate estimate;
  int chain, set, layers; // of the chain: `set` for the first `layers` layers, the one before for the others
} search_setting;

// From drafts of two numbers of layers, or of the whole model if its layers are not alike or too few. The
// peaks of each part of a step are extended by themselves, as an affine function of the number of layers.
// Adds how many drafts were made to *drafts.
fsdp_status search_estimate_make(const fsdp_search_config *search, const fsdp_plan_config *config,
                                 int64_t *drafts, search_estimate *estimate, fsdp_error *error);

// From one draft of all layers: what the whole plan takes but for waits for memory.
fsdp_status search_estimate_whole(const fsdp_search_config *search, const fsdp_plan_config *config,
                                  int64_t *drafts, search_estimate *estimate, fsdp_error *error);

// The estimate between two settings that differ in what the first layers save.
search_estimate search_estimate_between(const search_estimate *none, const search_estimate *all, int layers,
                                        int of);

// Bytes above the limits, 0 if it fits. *space (may be NULL): where it is above most.
int64_t search_excess(const fsdp_search_config *search, const int64_t bytes[FSDP_SPACE_COUNT],
                      fsdp_space *space);

// Adds what lies beside the device's arena.
void search_need_of(const fsdp_plan *plan, int64_t bytes[FSDP_SPACE_COUNT]);

fsdp_search_bound search_bound_of(double step_s, double comm_s, double copies_s, double update_s);

// ---- Estimates that are remembered (search_drafts.c)

typedef struct search_known search_known;

// Of a search; {0} at first.
typedef struct search_drafts {
  search_known *known;
  int64_t size, used;
  int64_t count; // plans that were made
} search_drafts;

// The estimate of a setting, made once. False, and nothing is written, if there is no such plan.
bool search_estimate_of(const fsdp_search_config *search, const fsdp_plan_config *config,
                        search_drafts *drafts, search_estimate *estimate);
// The same from a draft of all layers (search_estimate_whole).
bool search_whole_of(const fsdp_search_config *search, const fsdp_plan_config *config, search_drafts *drafts,
                     search_estimate *estimate);
// The peaks of all layers without packing, with what lies beside the device's arena.
bool search_peaks_of(const fsdp_search_config *search, const fsdp_plan_config *config, search_drafts *drafts,
                     int64_t bytes[FSDP_SPACE_COUNT]);
void search_drafts_release(search_drafts *drafts);

// ---- What is enumerated (search_space.c)

// Of the first layers, these values are recomputed and offloaded; "": none.
typedef struct search_saved {
  char recompute[FSDP_SAVING_TEXT_BYTES / 8], offload[FSDP_SAVING_TEXT_BYTES / 8];
} search_saved;

// Sets of which each saves less than the one before. All chains begin with what is fixed.
typedef struct search_chain {
  search_saved sets[SEARCH_SETS_MAX];
  int count;
} search_chain;

#define SEARCH_CHAINS_MAX 4

typedef struct search_space {
  search_chain chains[SEARCH_CHAINS_MAX];
  int chain_count;
  fsdp_wrap_policy wraps[SEARCH_WRAPS_MAX]; // the first is what a kind is tried with
  int wrap_count;
  int64_t layer_params, params; // of a layer, and in all
  double value_bytes;           // of a sequence: the largest value that a layer saves or makes again
} search_space;

fsdp_status search_space_create(const fsdp_search_config *search, search_space *space, fsdp_error *error);

// The rules of set `set` of a chain for the first `layers` layers and the one before it for all others.
fsdp_saving search_saving_of(const fsdp_search_config *search, const search_chain *chain, int set,
                             int layers);

// All kinds that the number of ranks and what is fixed allow. The caller frees them.
fsdp_search_kind *search_kinds_create(const fsdp_search_config *search, int *count);

// Sequences of a micro-batch and micro-batches of a step: entry `index` of those that make the global batch
// with this kind, the smallest micro-batch first. False after the last.
bool search_batch(const fsdp_search_config *search, const fsdp_search_kind *kind, int index, int64_t *batch,
                  int *micro_batches);

// ---- Bounds (search_bounds.c)

// What layers take at least with one micro-batch, whatever the strategy: the longest path of computation and
// collectives over `tensor` and `context`, and what these take of the links inside nodes and between them.
typedef struct search_batch_floor {
  double layers_s, node_s, network_s;
} search_batch_floor;

// Of all kinds that cut layers alike: one size of `tensor` and of `context`; by micro-batch (search_batch).
typedef struct search_floor {
  fsdp_mesh mesh; // of the kind that was drafted
  bool sequence_parallel;
  int batch_parts, count;
  search_batch_floor batches[SEARCH_BATCHES_MAX];
} search_floor;

typedef struct search_floors {
  search_floor *items;
  int count;
} search_floors;

// The least time of a kind's steps: FLOPs at the best rate of the profile, or bytes of weights and gradients
// over the links that they must take; with `floor` (may be NULL), of its micro-batches the least. And the
// least of a micro-batch.
double search_least_s(const fsdp_search_config *search, const search_space *space,
                      const fsdp_search_kind *kind, const search_floor *floor, fsdp_search_bound *bound);
double search_batch_least_s(const fsdp_search_config *search, const search_space *space,
                            const fsdp_search_kind *kind, int micro_batches, const search_batch_floor *floor);
// The least bytes of a kind's states and of one layer's parameters.
int64_t search_least_bytes(const fsdp_search_config *search, const search_space *space,
                           const fsdp_search_kind *kind, fsdp_space *where);

// The least bytes on the device of a rank's part of a layer's largest value, of `batch` sequences.
int64_t search_value_bytes(const search_space *space, const fsdp_search_kind *kind, int64_t batch);

// The share that the busiest link takes at least if not a unit for each layer is gathered one ahead, but
// parts of layers are, or another number of units up to two: at most one layer, and what is in none, stays
// gathered from its forward to its backward besides.
double search_links_left(const fsdp_search_config *search, const search_space *space);

// ---- Settings of a kind (search_kind.c)

// What a chain's sets save of memory and cost in work, beside keeping everything. It depends on what one rank
// computes and hardly on the rest, so that it is estimated once and tells which sets are worth a draft.
typedef struct search_delta {
  int tensor, context;
  bool sequence_parallel;
  // Of a sequence in a micro-batch.
  double work_s[SEARCH_CHAINS_MAX][SEARCH_SETS_MAX];
  double bytes[SEARCH_CHAINS_MAX][SEARCH_SETS_MAX][FSDP_SPACE_COUNT];
} search_delta;

typedef struct search_deltas {
  search_delta *items;
  int count;
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

// What all kinds with this one's tensor and context have in common, from drafts of the one that asks first.
// Valid until the next call.
const search_floor *search_floor_of(const fsdp_search_config *search, const search_space *space,
                                    const fsdp_search_kind *kind, search_floors *floors,
                                    search_drafts *drafts);

// The fastest settings of a kind; those whose work takes `cut_s` or longer are left out. Every micro-batch is
// tried with the first wrap, accumulation and prefetch, and all others of these with the best of them, or
// with every one of them if `all_variants`. `floor`: of the kind.
void search_kind_settings(const fsdp_search_config *search, const search_space *space,
                          const fsdp_search_kind *kind, const search_floor *floor, bool all_variants,
                          double cut_s, search_deltas *deltas, search_drafts *drafts, search_best *best);
