// A device profile: what single operators and links of a machine measure. From it alone an instruction is
// priced (price.h); no time of a whole step ever enters one.
//
//   products      rate by element type, form and shape (m, n, k)
//   grouped       rate of products grouped by expert, by kernel, element type, form and rows of an expert
//   attention     rate by kernel, element type, head dimension, direction and sequence length
//   ops           bytes per second of every other op, by element type and the bytes that it moves
//   copies        bytes per second to and from the host
//   collectives   seconds by kind, group and bytes
//
// Rates on a CPU depend on how many ranks of the node compute at the same time: entries have that number
// (`ranks`). Those with the greatest number that does not exceed the node's count; 0 stands for any number. A
// GPU computes for one rank.
//
// Times are in seconds, rates in bytes or FLOPs per second. launcher/profile/profile_file.h reads and writes
// profiles as YAML, with the source of each number.
#pragma once

#include "models/graph/op.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/plan/program/schedule.h"

#include <stdbool.h>

#define FSDP_PROFILE_NAME_BYTES   64
#define FSDP_PROFILE_ASKED_BYTES  200
#define FSDP_PROFILE_SHOWN_BYTES  (FSDP_PROFILE_ASKED_BYTES + FSDP_PROFILE_NAME_BYTES + 8)
#define FSDP_PROFILE_KERNEL_BYTES 24

// A point of a curve: seconds (or a rate) at a size.
typedef struct fsdp_profile_point {
  double size, value;
} fsdp_profile_point;

typedef struct fsdp_profile_curve {
  fsdp_profile_point *points; // by increasing size
  int count;
} fsdp_profile_curve;

// A gemm, c (m,n) = a (m,k) * b (k,n) of `dtype` operands, alone on the device.
typedef struct fsdp_profile_product {
  int ranks;
  fsdp_dtype dtype;
  fsdp_op_product_form form; // FSDP_PRODUCT_FORM_COUNT: any
  int64_t m, n, k;
  double flops_per_s;
} fsdp_profile_product;

// A launch of products grouped by expert.
typedef struct fsdp_profile_grouped {
  char kernel[FSDP_PROFILE_KERNEL_BYTES]; // "fsdp-mma", "torch", ...
  bool estimated;                         // of a kernel that no such device has run yet
  int ranks;
  fsdp_dtype dtype;
  fsdp_op_product_form form; // FSDP_PRODUCT_FORM_COUNT: any
  fsdp_profile_curve rate;   // FLOPs per second, by the rows of an expert where all have as many
} fsdp_profile_grouped;

typedef enum fsdp_profile_direction {
  FSDP_ATTENTION_FORWARD,
  FSDP_ATTENTION_BACKWARD,
  FSDP_ATTENTION_BOTH // the two together: the rate of each
} fsdp_profile_direction;

typedef struct fsdp_profile_attention {
  char kernel[FSDP_PROFILE_KERNEL_BYTES]; // "fsdp-wgmma", "flash2", ...; "": every kernel
  bool estimated;                         // of a kernel that no such device has run yet
  int ranks;
  fsdp_dtype dtype;
  int head_dim;
  fsdp_profile_direction direction;
  fsdp_profile_curve rate; // FLOPs per second, causal attention counted as half, by sequence length
} fsdp_profile_attention;

#define FSDP_PROFILE_ANY_DTYPE FSDP_DTYPE_COUNT

typedef struct fsdp_profile_op {
  int ranks;
  fsdp_op_kind op;         // FSDP_OP_ROW_COUNT: every op without an entry
  fsdp_dtype dtype;        // of activations and weights; FSDP_PROFILE_ANY_DTYPE
  fsdp_profile_curve rate; // bytes read and written per second, by these bytes
} fsdp_profile_op;

// Where a group's ranks lie.
typedef enum fsdp_profile_link { FSDP_LINK_NODE, FSDP_LINK_NETWORK, FSDP_LINK_COUNT } fsdp_profile_link;

typedef struct fsdp_profile_collective {
  fsdp_collective_kind kind;
  fsdp_profile_link link;
  int ranks;                  // of the group
  int ranks_per_node;         // of the group, on a network
  int groups;                 // of the node that communicate at the same time
  fsdp_profile_curve seconds; // by bytes of the whole buffer (what a gather makes, what a reduction reads)
} fsdp_profile_collective;

// Lower and upper end of what was measured over its median: quartiles of a measurement's repetitions, in the
// mean over measurements, together with octiles of one product over the minutes of measuring; 0: not said.
typedef struct fsdp_profile_spread {
  double compute_low, compute_high, collective_low, collective_high;
} fsdp_profile_spread;

// How much longer ops of a GPU take in a step than their rates say, which are of bursts: a step keeps it busy
// for seconds, and its clock falls to what the power limit allows. What memory bounds is no slower. 0: 1.
typedef struct fsdp_profile_sustained {
  double products, attention;
} fsdp_profile_sustained;

typedef struct fsdp_device_profile {
  char name[FSDP_PROFILE_NAME_BYTES];
  char asked[FSDP_PROFILE_ASKED_BYTES]; // the name or path by which it was read; "": it was measured
  fsdp_op_device device;
  int processors;            // multiprocessors of a GPU; cores of a node
  double capability;         // compute capability of a GPU: 9.0; 0: not said
  double context_bytes;      // that a GPU's context, kernels and libraries keep beside the arena; 0: not said
  double communicator_bytes; // that each communicator of several ranks keeps there; 0: not said
  double memory_bytes;       // of a GPU; of a node without
  double host_memory_bytes;  // of a node with GPUs; 0: not said
  double peak_flops[FSDP_DTYPE_COUNT]; // dense, as its data sheet says; 0: unknown
  double memory_rate;                  // of a large copy, bytes read and written
  double launch_s;                     // from the end of one kernel to the beginning of the next
  double handoff_s;        // from the end of what an instruction waits for in another stream to its beginning
  double host_memory_rate; // of a node's host, bytes that updates there read and write; 0: unknown
  double up_rate, down_rate;           // copies from and to the host
  double up_both_rate, down_both_rate; // while the other direction runs too
  double product_slowdown;             // of compute while a collective runs beside it: 1.13
  double gather_slowdown;              // of compute beside a gather by copy engines; 0: as that
  double collective_slowdown;          // of a collective while compute runs beside it: 1.3
  fsdp_profile_spread spread;          // of what was measured again and again
  fsdp_profile_sustained sustained;
  double network_rate;                      // of a node's links to others, one direction; 0: there are none
  double network_latency_s, node_latency_s; // of a hop between nodes, and inside one
  // The kernel whose rates price attention, in place of the one that the plan runs; "": the plan's.
  char attention_kernel[FSDP_PROFILE_KERNEL_BYTES];
  char grouped_kernel[FSDP_PROFILE_KERNEL_BYTES]; // the same of products grouped by expert
  bool context_estimated, communicator_estimated; // what was not measured on such a device
  bool tiles; // products run in waves of tiles, which their shape fills more or less
  fsdp_profile_product *products;
  fsdp_profile_grouped *grouped;
  fsdp_profile_attention *attention;
  fsdp_profile_op *ops;
  fsdp_profile_collective *collectives;
  int product_count, grouped_count, attention_count, op_count, collective_count;
} fsdp_device_profile;

// An empty profile; the caller owns it.
fsdp_device_profile *fsdp_device_profile_create(void);
void fsdp_device_profile_destroy(fsdp_device_profile *profile); // NULL is allowed

// A machine of which nothing is known but a backend's ratios: every op takes what its bytes of memory or its
// FLOPs take, a collective what its bytes take in memory, a copy to the host link_ratio times as long. Its
// prices can be compared with each other, and are of no machine. The caller owns it.
fsdp_device_profile *fsdp_device_profile_nominal(const fsdp_plan_backend *backend);

// The lists of rows.
typedef enum fsdp_profile_list {
  FSDP_PROFILE_PRODUCTS,    // of fsdp_profile_product
  FSDP_PROFILE_GROUPED,     // of fsdp_profile_grouped
  FSDP_PROFILE_ATTENTION,   // of fsdp_profile_attention
  FSDP_PROFILE_OPS,         // of fsdp_profile_op
  FSDP_PROFILE_COLLECTIVES, // of fsdp_profile_collective
  FSDP_PROFILE_LISTS
} fsdp_profile_list;

// Appends a copy of a row of the list's type, points included.
void fsdp_device_profile_add(fsdp_device_profile *profile, fsdp_profile_list list, const void *row);
// Removes all rows of a list.
void fsdp_device_profile_clear(fsdp_device_profile *profile, fsdp_profile_list list);
// The list's rows, one after the other, and in *count how many there are; and the bytes of one.
const void *fsdp_device_profile_rows(const fsdp_device_profile *profile, fsdp_profile_list list, int *count);
size_t fsdp_device_profile_row_bytes(fsdp_profile_list list);

// Sets the network's rate and latency by the all-gather that spans nodes over the given number of ranks: what
// a large one adds to a small one, and the hops of the small one. Of one size, all its time counts as moving.
void fsdp_device_profile_set_network(fsdp_device_profile *profile, int ranks);

// For a message, what the user called it, and its own name if that is another one: "here.yaml (AMD EPYC)".
// Returns `out`.
const char *fsdp_device_profile_shown(const fsdp_device_profile *profile, char out[FSDP_PROFILE_SHOWN_BYTES]);

// The name of a kernel of this program in profiles: "fsdp-wgmma"; "fsdp" is a CPU's. Returns `out`.
const char *fsdp_profile_kernel_name(fsdp_attention_kernel kernel, char out[FSDP_PROFILE_KERNEL_BYTES]);

// What decides between kernels on the profile's GPU; all 0 of a CPU.
fsdp_op_gpu fsdp_device_profile_gpu(const fsdp_device_profile *profile);

// What one of `local_ranks` ranks of a node may take: a GPU's memory and its share of the host's, or on a CPU
// its share of the node's. What the profile does not say is 0.
fsdp_memory_limits fsdp_device_profile_memory(const fsdp_device_profile *profile, int local_ranks);

// Whether steps with these can be priced: products of the dtype, attention by the kernel, ops, and the rates
// of memory. FSDP_ERR_INPUT, with what is missing.
fsdp_status fsdp_device_profile_check(const fsdp_device_profile *profile, fsdp_dtype dtype,
                                      fsdp_attention_kernel kernel, fsdp_error *error);

// The value at `size`, between points straight in logarithms. Outside of them the nearest point's.
double fsdp_profile_curve_at(const fsdp_profile_curve *curve, double size);

// ---- Times of single operations, alone on the machine. `ranks` compute on the node at the same time.

// All launches of a gemm of an op.
double fsdp_profile_product_s(const fsdp_device_profile *profile, int ranks, fsdp_dtype dtype,
                              const fsdp_op_product *product);

// A launch of products grouped by expert, whose loads differ: the last tile of each is half full in the mean.
typedef struct fsdp_profile_grouped_call {
  fsdp_dtype dtype;
  fsdp_op_product product; // as fsdp_op_products says
  int64_t experts;
  fsdp_grouped_kernel kernel; // the plan's
} fsdp_profile_grouped_call;

// A profile without rows of the kernel has the rates of other products for it: on a GPU an estimate, of wgmma
// by the rows of mma if there are any.
// *estimated as below.
double fsdp_profile_grouped_s(const fsdp_device_profile *profile, int ranks,
                              const fsdp_profile_grouped_call *call, bool *estimated);

// The kernel whose rates price it: the profile's choice, or that of the plan's device.
const char *fsdp_profile_grouped_kernel(const fsdp_device_profile *profile,
                                        const fsdp_profile_grouped_call *call);

// FLOPs per second of the fastest product that the profile has, less what its shape leaves of the device.
double fsdp_profile_best_rate(const fsdp_device_profile *profile, int ranks, fsdp_dtype dtype);

// A launch of attention over sequences of `seq` keys.
typedef struct fsdp_profile_attention_call {
  fsdp_attention_kernel kernel;
  fsdp_dtype dtype;
  int head_dim;
  int64_t seq;
  fsdp_profile_direction direction;
  double flops; // as the op table counts them
} fsdp_profile_attention_call;

// *estimated: whether no such device has run the kernel yet.
double fsdp_profile_attention_s(const fsdp_device_profile *profile, int ranks,
                                const fsdp_profile_attention_call *call, bool *estimated);

// Any other op, which computes in `dtype` and reads and writes `bytes`. Without an entry in the dtype, one in
// another.
double fsdp_profile_op_s(const fsdp_device_profile *profile, int ranks, fsdp_op_kind op, fsdp_dtype dtype,
                         double bytes);

// What a gemm of `op` takes longer that adds to what it makes, and reads these bytes, at the rate of memory.
// A profile of another program's kernels may have entries of linear_add and linear_bias_add: of what adds the
// residual there.
double fsdp_profile_added_s(const fsdp_device_profile *profile, int ranks, fsdp_op_kind op, double bytes);

// A group of a collective.
typedef struct fsdp_profile_group {
  int ranks;          // in all
  int ranks_per_node; // of these on one node
  int groups;         // of the same node, which communicate at the same time
} fsdp_profile_group;

// 0 in a group of one rank, and where the profile has neither an entry nor a rate for the link.
double fsdp_profile_collective_s(const fsdp_device_profile *profile, fsdp_collective_kind kind,
                                 const fsdp_profile_group *group, double bytes);
