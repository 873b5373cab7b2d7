// The mesh that options mean for a number of ranks.
//
//   --mesh given   its axes, and behind them those that it lacks of --context-, --expert-, --tensor-parallel
//   no --mesh      data, fsdp, context, expert, tensor: the last ones as these options say, so that the ranks
//                  that exchange most are neighbours; the ranks left over are data's and fsdp's by strategy
#pragma once

#include "models/graph/attention_kernel.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/text/option_query.h"

// The ranks to plan for.
typedef struct fsdp_setup_ranks {
  int ranks, ranks_per_node;
  bool fills_nodes;      // every node has ranks_per_node neighbouring ranks, the last of a plan maybe fewer
  int64_t machine_bytes; // memory of this machine, shared by ranks_per_node ranks; 0: do not limit by it
  bool gpu;              // this rank has a GPU to train on
  int64_t gpu_bytes;     // free on it for this rank
  fsdp_op_gpu target;    // what the plan's kernels depend on; of all ranks' GPUs the least
} fsdp_setup_ranks;

// Those of --ranks and --ranks-per-node, for a plan without ranks.
fsdp_setup_ranks fsdp_setup_ranks_planned(const fsdp_options *options);

// FSDP_ERR_OPTION if the sizes do not make the number of ranks, or hybrid cannot divide its nodes.
fsdp_status fsdp_mesh_choose(const fsdp_options *options, const fsdp_setup_ranks *ranks, fsdp_mesh *mesh,
                             fsdp_error *error);

// Where options leave the axes to strategies of operators (no --mesh, no --tensor-parallel, no
// --context-parallel), propagates over the prime factors of the ranks and takes config->mesh from what comes
// out. config has its model and strategies. FSDP_ERR_INPUT, FSDP_ERR_OPTION.
fsdp_status fsdp_propagate_mesh(const fsdp_options *options, const fsdp_setup_ranks *ranks,
                                fsdp_plan_config *config, fsdp_error *error);

// The axes that span nodes, "data+fsdp", in `out`; NULL if all ranks are on one node, or do not fill nodes in
// order.
const char *fsdp_mesh_across_nodes(const fsdp_mesh *mesh, const fsdp_setup_ranks *ranks,
                                   char out[FSDP_MESH_TEXT_BYTES]);

// What the strategy came to be on the mesh that was chosen, as a sentence. False if it is as its name says.
bool fsdp_mesh_note(const fsdp_options *options, const fsdp_mesh *mesh, char *note, size_t note_bytes);
