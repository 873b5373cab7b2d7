// What a search is asked, and what it says of kinds and plans.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/simulate.h"

// What may be fixed; everything else is searched.
typedef enum fsdp_search_field {
  FSDP_SEARCH_MESH,
  FSDP_SEARCH_STRATEGY,
  FSDP_SEARCH_WRAP,
  FSDP_SEARCH_EXPERT_BLOCKS,
  FSDP_SEARCH_RECOMPUTE,
  FSDP_SEARCH_OFFLOAD_ACTIVATIONS,
  FSDP_SEARCH_CPU_OFFLOAD,
  FSDP_SEARCH_PREFETCH,
  FSDP_SEARCH_BATCH,
  FSDP_SEARCH_MICRO_BATCHES,
  FSDP_SEARCH_ACCUMULATE,
  FSDP_SEARCH_SEQUENCE_PARALLEL, // where rules say what lies where, they say this too
  FSDP_SEARCH_FIELD_COUNT
} fsdp_search_field;

typedef struct fsdp_search_progress {
  int kinds, kinds_done;
  int64_t drafts; // planned so far
} fsdp_search_progress;

typedef struct fsdp_search_config {
  fsdp_plan_config base;               // values of what is fixed, and of all that is never searched
  bool fixed[FSDP_SEARCH_FIELD_COUNT]; // of a fixed mesh, short forms included
  int ranks, ranks_per_node;
  int fixed_tensor, fixed_context; // sizes of these axes that are given without a mesh; 0: searched
  int fixed_expert;                // the same
  int64_t global_batch;            // sequences of a step
  const fsdp_device_profile *profile;
  // Bytes that a rank may take of each space, with what lies beside the device's arena; 0: no limit. And of
  // both together, where one memory holds them.
  int64_t limit_bytes[FSDP_SPACE_COUNT], shared_limit_bytes;
  // One plan is wanted, near the best, and it takes less than `below_s` if that is not 0: neighbours of plans
  // are not tried, and without a plan there is no `least`.
  bool coarse;
  double below_s;
  double margin; // share of the device's limit, and of the shared one, that plans leave free
  void (*progress)(const fsdp_search_progress *progress, void *context); // NULL: no callback
  void *context;
} fsdp_search_config;

// The part that takes most of a step's time beside the gemms.
typedef enum fsdp_search_bound {
  FSDP_BOUND_COMPUTE,
  FSDP_BOUND_COMMUNICATION,
  FSDP_BOUND_COPIES, // to and from the host
  FSDP_BOUND_UPDATE, // of the optimizer, on the device or the host
  FSDP_BOUND_COUNT
} fsdp_search_bound;

// A plan that was made and priced whole.
typedef struct fsdp_search_plan {
  fsdp_plan_config config;
  double step_s;  // priced whole
  double draft_s; // extended from drafts of some layers, or of all: what ranked its kind
  // From a draft of all layers, with the share of a step that plans of its kind wait for memory. It is
  // measured on the plan itself if it is the first of its kind, or waits for another share.
  double estimate_s;
  double unhindered_s;      // priced whole if no instruction waited for memory to be free
  double tokens_per_s, mfu; // mfu 0: the device's peak is unknown
  double comm_s, copies_s;  // exposed
  int64_t bytes[FSDP_SPACE_COUNT];
  fsdp_search_bound bound;
  uint64_t hash; // of its program
  int kind;      // among the result's; -1: of none
} fsdp_search_plan;

typedef enum fsdp_search_outcome {
  FSDP_SEARCH_FINALIST,  // among the plans
  FSDP_SEARCH_SAME,      // its best setting makes the program of a plan of another kind
  FSDP_SEARCH_SLOWER,    // its best setting, `step_s`, is estimated
  FSDP_SEARCH_TOO_SLOW,  // no setting can be faster than `step_s`, a bound
  FSDP_SEARCH_TOO_LARGE, // no setting fits; the least found needs `bytes`; with left_out, of those that could
                         // be among the best
  FSDP_SEARCH_IMPOSSIBLE // there is no plan: the batch cannot be divided so, or an axis the model
} fsdp_search_outcome;

// Plans that share a mesh, a strategy, where the states lie, and whether tensor cuts rows too.
typedef struct fsdp_search_kind {
  fsdp_mesh mesh;
  fsdp_strategy strategy;
  bool cpu_offload, sequence_parallel;
  int batch_parts; // into which the mesh cuts a step's sequences; 0: rules do not go with it
  fsdp_search_outcome outcome;
  bool left_out;
  double step_s, bound_s;  // bound_s: no setting is faster
  fsdp_search_bound bound; // of step_s
  fsdp_space space;        // of `bytes`
  int64_t bytes;
  uint64_t hash; // of its best plan, if one was made whole; else 0
} fsdp_search_kind;

#define FSDP_SEARCH_PLANS 10

typedef struct fsdp_search_result {
  fsdp_search_plan plans[FSDP_SEARCH_PLANS]; // the fastest first, of a kind and a program each
  int count;                                 // 0: nothing fits
  fsdp_search_kind *kinds;                   // all, in the order of the enumeration
  int kind_count;
  fsdp_plan_config least; // without plans: the setting that needs least
  int64_t drafts, whole;  // plans that were made
  double least_cut_s;     // the least bound of the kinds that bounds alone left out; 0: none was
} fsdp_search_result;

// A limit less its margin; 0: no limit.
int64_t fsdp_search_without_margin(int64_t bytes, double margin);

// The limits of plans, less the margins; 0: no limit. room_bytes: as the device.
fsdp_memory_limits fsdp_search_allowed(const fsdp_search_config *config);
