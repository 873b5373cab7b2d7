// The plan: from a model, a mesh and a strategy to a proved step program with every tensor at an address.
//
//   config ─► graph ─► units ─► program ─► memory plan ─► waits ─► verify
//                            (schedule.h)   (memory.h)  (waits.h) (verify.h)
//
// Pure: no device, no file, no MPI; the same input gives the same plan, and the same hash, on every rank.
#pragma once

#include "models/model.h"
#include "runtime/plan/memory/memory.h"
#include "runtime/plan/placement.h"
#include "runtime/plan/program/program.h"
#include "runtime/plan/program/schedule.h"
#include "runtime/plan/sharding/op_specs.h"
#include "runtime/plan/sharding/seeds.h"

// The two backends; static, not to be freed.
const fsdp_plan_backend *fsdp_plan_backend_cpu(void);
// Needs no GPU and no toolkit. Its figures are the default profile's, which plans without a profile are for:
// the build takes them from its file. fsdp_pricing_backend (price.h) has another profile's.
const fsdp_plan_backend *fsdp_plan_backend_cuda(void);
// "h100-sxm"
const char *fsdp_plan_default_profile(void);
// With the default profile's numbers for those that are not known (0).
fsdp_op_gpu fsdp_plan_gpu(const fsdp_op_gpu *gpu);

// Bytes that one rank sends in one step (ring algorithms' counts), by collective, scalars apart; and the same
// bytes by the set of mesh axes that they are sent over.
typedef struct fsdp_traffic {
  int64_t bytes[FSDP_COLLECTIVE_COUNT], scalar_bytes;
  int64_t by_axes[1 << FSDP_MESH_AXES_MAX]; // by fsdp_axis_set of the configuration's mesh
} fsdp_traffic;

typedef struct fsdp_plan {
  fsdp_plan_config config;
  fsdp_placement *placement; // owns what is pointed to up to the units
  fsdp_graph *graph;
  fsdp_specs *specs;
  fsdp_propagation *propagation;
  fsdp_factored_mesh axes;
  fsdp_rows rows;
  fsdp_units *units;
  const fsdp_optimizer *optimizer; // of the parameters that train; unit_state has each unit's
  fsdp_program *program;
  fsdp_memory_report memory;
  fsdp_traffic traffic;
  fsdp_unit_state *unit_state; // by unit
  fsdp_fate *fates;            // by value of the graph
  bool verified;
} fsdp_plan;

// Builds and verifies the plan. FSDP_ERR_OPTION for combinations that make no sense. A plan that the verifier
// rejects is a broken invariant (assertion). The caller owns *plan.
fsdp_status fsdp_plan_create(const fsdp_plan_config *config, fsdp_plan **plan, fsdp_error *error);
// The same, with a placement that may be among the recent ones (placement.h; NULL: none).
fsdp_status fsdp_plan_create_among(const fsdp_plan_config *config, fsdp_placements *recent, fsdp_plan **plan,
                                   fsdp_error *error);
// Infers the waits of a plan that was made `unproved`, and verifies it as fsdp_plan_create does others.
void fsdp_plan_prove(fsdp_plan *plan);
void fsdp_plan_destroy(fsdp_plan *plan); // NULL is allowed

// The number of parts of the global batch, each some ranks' sequences, and in *part that of `rank`. The axes
// that cut the batch need not be in the order of ranks.
int fsdp_plan_batch_part(const fsdp_plan *plan, int rank, int *part);

// The same number before there is a plan. 0, and the status of fsdp_plan_create, if rules do not go with the
// mesh.
fsdp_status fsdp_plan_count_batch_parts(const fsdp_plan_config *config, int *parts, fsdp_error *error);

// Whether a plan without rules has a use for the mesh: its axes, and their sizes under the strategy (NULL: it
// is searched). FSDP_ERR_OPTION, with what is wrong of a mesh that the caller names.
fsdp_status fsdp_plan_check_mesh(const fsdp_mesh *mesh, const fsdp_strategy *strategy, fsdp_error *error);

// By all collectives, without scalars.
int64_t fsdp_traffic_sent_bytes(const fsdp_traffic *traffic);

// Device memory that a rank needs beside the arena: counted when a plan is compared with a limit, but no part
// of the plan.
int64_t fsdp_plan_reserve_bytes(const fsdp_plan *plan);
// Whether that is in part an estimate: no such device has measured it.
bool fsdp_plan_reserve_estimated(const fsdp_plan *plan);

// FSDP_ERR_OPTION if the configuration asks for a kernel of attention that cannot run.
fsdp_status fsdp_plan_check_attention(const fsdp_plan_config *config, fsdp_error *error);

// The kernel of all attention of such a plan, whose --attention must be allowed.
fsdp_attention_kernel fsdp_plan_attention(const fsdp_plan_config *config);

// The digests of a check section, in its order: the slots of each unit that has any; one's unit, and its slot
// in *slot (NULL is allowed).
int fsdp_plan_digest_count(const fsdp_plan *plan);
int fsdp_plan_digest_unit(const fsdp_plan *plan, int digest, const fsdp_slot **slot);
// The dtype in which a slot of the state is kept.
fsdp_dtype fsdp_plan_slot_dtype(const fsdp_plan *plan, int slot);
// Bytes that the check section reads on a rank; 0 if the plan has none.
int64_t fsdp_plan_check_bytes(const fsdp_plan *plan);

// How messages name an instruction: "all_gather of model.layers.3"; "" if there is none at the position.
void fsdp_plan_instr_name(const fsdp_plan *plan, int position, char *text, size_t bytes);
