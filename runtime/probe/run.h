// What the parts of the probe share: who measures, the memory for operands, and how a time is taken.
#pragma once

#include "kernels/kernels.h"
#include "runtime/base/dtype.h"
#include "runtime/exec/session.h"
#include "runtime/plan/price/device_profile.h"

#define PROBE_GROUPS_MAX 12

// Part of the device arena, handed out from its start again when it is used up.
typedef struct probe_region {
  unsigned char *memory;
  int64_t bytes, used;
} probe_region;

// Sums over measurements of the logarithms of their lower and upper end over their median.
typedef struct probe_spread {
  double low, high;
  int count;
} probe_spread;

typedef enum probe_spread_kind {
  PROBE_COMPUTE,
  PROBE_COLLECTIVE, // as probe_load.agreed
  PROBE_DRIFT,
  PROBE_SPREAD_COUNT
} probe_spread_kind;

#define PROBE_DRIFT_MAX 1024

// Seconds of one product, measured again and again while everything else is: how the machine's rates change
// within seconds to minutes, which repetitions of a short time do not tell.
typedef struct probe_drift {
  double seconds[PROBE_DRIFT_MAX], next_s; // when to measure it again
  int count;
} probe_drift;

#define PROBE_SWEEPS_MAX 3

// A machine's rates change within seconds: ops and products are measured in several sweeps, which are alike,
// and the median of each counts.
typedef struct probe_sweeps {
  double (*seconds)[PROBE_SWEEPS_MAX]; // (count, sweeps), by the order of measurements in a sweep
  int next, count;                     // the measurement that comes; those of a sweep
  int layers;                          // of products in a sweep: as many as the first had time for
  int sweep, wanted;                   // under way; in all
} probe_sweeps;

typedef struct probe {
  // As in fsdp_probe_config.
  fsdp_world *world;
  const fsdp_gpu *gpu;
  int64_t gpu_bytes;    // of the smallest GPU
  int64_t opened_bytes; // that this rank's GPU holds before the session
  double seconds;
  int cores; // of the node that has fewest
  int (*bind)(void *context, int ranks);
  void *bind_context;
  fsdp_device_profile *profile;
  probe_spread *spread; // by probe_spread_kind
  probe_drift *drift;
  probe_sweeps *sweeps; // NULL: what is measured is measured once
  int64_t start_ns;
  int ranks;     // of each node that compute at the same time
  bool active;   // this rank is one of them
  bool crowded;  // they share cores: what a rank takes is its time, and that of others on its core
  int scope;     // of the profile's entries: `ranks`, or 0
  int threads;   // of this rank
  double unit_s; // for one measurement
  bool coarse;   // every other size: there is little time
  fsdp_session session;
  fsdp_op_device device;
  fsdp_op_gpu target; // what its kernels depend on
  const fsdp_kernel_table *kernels;
  const fsdp_kernel_backend *backend; // NULL: the CPU's
  fsdp_comm_group groups[PROBE_GROUPS_MAX];
  fsdp_profile_collective links[PROBE_GROUPS_MAX]; // where each group's ranks lie
  int group_count;
  // Of `dtype` elements: normal numbers that nothing overwrites, and what kernels write.
  fsdp_dtype dtype;
  probe_region inputs, outputs;
} probe;

// One operation on rotating operands.
typedef struct probe_load {
  void (*run)(void *context, const fsdp_stream_context *stream, int set);
  void (*refresh)(void *context, const fsdp_stream_context *stream, int set); // before each run; may be NULL
  void *context;
  fsdp_stream stream;
  int sets;
  bool agreed;          // every rank makes as many runs: collectives
  int few;              // runs of a pass, which continues where the one before ended; 0: every set once
  int64_t cooled_bytes; // of other memory, read by each thread before each pass: caches hold no code or data
} probe_load;

// A share of the arena for `bytes` bytes, aligned as a tensor; NULL: more than the region has.
void *probe_take(probe_region *region, int64_t bytes);

// Of the measurement that comes, which took `seconds` in this sweep: the median of all sweeps until now.
double probe_sweeps_median(probe_sweeps *sweeps, double seconds);

// The number of sets of operands that rotate, if one has `bytes` bytes: as much in all as a step touches
// between two uses of the same bytes, or, if they are what was written just before (`fresh`), less than
// caches.
int probe_sets(const probe *self, int64_t bytes, bool fresh);

// The median of `count` times, which it sorts; adds to `spread` the ends without a `tail`-th of them each (4:
// the quartiles), unless it is NULL or they are too few to tell.
double probe_median(double *seconds, int count, int tail, probe_spread *spread);

// Seconds of one run: of each rank the median over passes (where ranks share a core, the mean), then the mean
// over ranks. Adds their quartiles to the spread. Every rank must call it, in the same order.
double probe_measure(const probe *self, const probe_load *load);

// The mean over a longer time, in which `beside` runs on its own stream (NULL: nothing does). `load_s` and
// `beside_s`: what each takes alone, about.
double probe_measure_beside(const probe *self, const probe_load *load, double load_s,
                            const probe_load *beside, double beside_s);

// The mean over many turns of ranks that share a core, in which `op` runs again and again, and after each the
// `load` on its own stream, which the next op waits for: seconds of the two and of both handoffs. NULL: op
// alone. Every rank must call it; all make as many runs.
double probe_measure_between(const probe *self, const probe_load *op, const probe_load *load);

// The mean over `count` such turns.
double probe_time_between(const probe *self, const probe_load *op, const probe_load *load, int count);

// Processor seconds that a run takes of its stream's thread, over `count` passes of an agreed load. A CPU's.
double probe_processor_s(const probe *self, const probe_load *load, int count);

// The mean over the ranks that compute, on every rank.
double probe_mean(const probe *self, double mine);

// Seconds since the program's start of measuring, the same on every rank.
double probe_elapsed(const probe *self);

// Binds and opens a session of `ranks` ranks of each node. Every rank calls it.
fsdp_status probe_open(probe *self, int ranks, fsdp_error *error);
void probe_close(probe *self);

// Fills the inputs with normal numbers of a dtype.
void probe_fill(probe *self, fsdp_dtype dtype);

// ---- The parts

// Every op but gemms and attention, then the rows of logits.
void probe_ops(probe *self);
void probe_head(probe *self);
void probe_attention(probe *self);
// After the ops: how long they take in steps.
void probe_in_step(probe *self);
// Puts the points `met`, ascending, into a curve, whose points are the heap's. What the curve has near them
// goes, and the rest of it changes by their ratio to it.
void probe_settle_curve(fsdp_profile_curve *curve, const fsdp_profile_point *met, int count);

// Measures the product of the drift, if it is time to. probe_drift_end adds its quartiles to the spread, and
// begins anew: for another number of ranks or another dtype. Every rank calls both.
void probe_drift_watch(probe *self);
void probe_drift_end(probe *self);

// Adds products until `until_s` of probe_elapsed has passed; the coarsest grid in any case. Sweeps after the
// first have the same.
void probe_products(probe *self, double until_s);

// Adds products grouped by expert: curves by the rows of an expert.
void probe_grouped(probe *self);

// Measures one that the sweep does not have yet, and adds it; returns its seconds, 0 if its operands do not
// fit.
double probe_product_s(probe *self, const fsdp_op_product *product);

void probe_collectives(probe *self);
void probe_copies(probe *self);
void probe_contention(probe *self);
// Of a GPU, after the rates: how much longer ops take in a step than these say.
void probe_sustained(probe *self);
void probe_launches(probe *self);

// Token `i` of a text: how often the k-th most frequent one occurs goes by 1/k (Zipf's law).
int32_t probe_token(int64_t vocabulary, int64_t i);

// A call of an op with operands from its row (models/graph/ops.def).
typedef struct probe_call probe_call;

// NULL if its operands do not fit. `flat` is p.
probe_call *probe_call_create(probe *self, fsdp_op_kind kind, const fsdp_op_attrs *attrs, int64_t flat);
void probe_call_destroy(probe_call *call);
double probe_call_measure(const probe *self, probe_call *call);
probe_load probe_call_load(const probe *self, probe_call *call);
fsdp_op_work probe_call_work(const probe_call *call);
const fsdp_op_attrs *probe_call_attrs(const probe_call *call); // complete
