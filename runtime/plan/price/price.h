// The price of an instruction: how long it takes alone on the machine, and what it uses meanwhile.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/price/device_profile.h"

// What an instruction's time goes to.
typedef enum fsdp_price_kind {
  FSDP_PRICE_PRODUCTS, // gemms, with the rows of logits between them
  FSDP_PRICE_ATTENTION,
  FSDP_PRICE_MOVES,  // every other op: bound by memory
  FSDP_PRICE_UPDATE, // the optimizer's
  FSDP_PRICE_COLLECTIVE,
  FSDP_PRICE_COPY, // to and from the host
  FSDP_PRICE_CALL, // the caller's part: not priced
  FSDP_PRICE_KIND_COUNT
} fsdp_price_kind;

// What instructions share.
typedef enum fsdp_resource {
  FSDP_RESOURCE_PROCESSORS, // of the device; on a CPU the rank's cores
  FSDP_RESOURCE_MEMORY,     // the device's bandwidth
  FSDP_RESOURCE_HOST,       // the host's cores and memory, beside a device of its own
  FSDP_RESOURCE_NODE,       // links between the devices of a node
  FSDP_RESOURCE_NETWORK,
  FSDP_RESOURCE_UP, // link from the host
  FSDP_RESOURCE_DOWN,
  FSDP_RESOURCE_COUNT
} fsdp_resource;

typedef struct fsdp_price {
  fsdp_price_kind kind;
  double seconds; // alone
  double flops;   // of its gemms, attention counted causally
  bool estimated; // its rate: no such device has run the kernel yet
  // The share of each resource that it takes while it runs alone. Where the shares of concurrent instructions
  // add up to S > 1, one of share s takes S / max(1, s) times as long: it is not slowed by its own share.
  double share[FSDP_RESOURCE_COUNT];
} fsdp_price;

// Which of repeated measurements price instructions, by the profile's spread.
typedef enum fsdp_price_end { FSDP_PRICE_MEDIAN, FSDP_PRICE_LOW, FSDP_PRICE_HIGH } fsdp_price_end;

// The machine that a plan is priced for.
typedef struct fsdp_pricing {
  const fsdp_plan *plan;
  const fsdp_device_profile *profile;
  int ranks_per_node;                                // at most the mesh's ranks
  bool crowded;                                      // ranks share cores, on which everything takes turns
  bool copies_gathers;                               // no multiprocessor is taken by them
  fsdp_price_end end;                                // the median unless the caller sets it
  fsdp_profile_group groups[FSDP_PROGRAM_COMMS_MAX]; // by the program's communicators
} fsdp_pricing;

// Why gathers are priced as kernels of collectives; NULL: as GPUs' copy engines make them, from buffers in
// symmetric windows, which a library that has them gives to ranks of one node.
const char *fsdp_pricing_why_no_copies(const fsdp_plan *plan, const fsdp_device_profile *profile,
                                       int ranks_per_node);

// The backend of plans for the profile's machine. What a GPU's profile does not say of it is the default
// profile's (plan.h), and named in `assumed`.
fsdp_plan_backend fsdp_pricing_backend(const fsdp_device_profile *profile);

// FSDP_ERR_INPUT if the profile lacks what any plan with this dtype and offloading needs; FSDP_ERR_OPTION if
// it is of another device, or its GPU cannot run the kernel that --attention asks for.
fsdp_status fsdp_pricing_check(const fsdp_plan_config *config, const fsdp_device_profile *profile,
                               fsdp_error *error);

// FSDP_ERR_INPUT if the profile has no time for such collectives of the group.
fsdp_status fsdp_pricing_check_group(const fsdp_device_profile *profile, fsdp_collective_kind kind,
                                     const fsdp_profile_group *group, fsdp_error *error);

// FSDP_ERR_INPUT if the profile lacks what the plan needs, and as above. Plan and profile must outlive it.
fsdp_status fsdp_pricing_create(const fsdp_plan *plan, const fsdp_device_profile *profile, int ranks_per_node,
                                fsdp_pricing *pricing, fsdp_error *error);

// Where the groups over `axes` of a mesh lie, on nodes of `ranks_per_node` neighbouring ranks.
fsdp_profile_group fsdp_profile_group_of(const fsdp_mesh *mesh, fsdp_axis_set axes, int ranks_per_node);

// What an op of the plan moves and computes.
fsdp_op_work fsdp_price_work(const fsdp_plan *plan, const fsdp_instr *instr);

// The price of the instruction at `position`.
fsdp_price fsdp_price_of(const fsdp_pricing *pricing, int position);

// "products", "attention", ...
const char *fsdp_price_kind_name(fsdp_price_kind kind);
