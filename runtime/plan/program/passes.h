// The passes that make a step program: from graph and units to the list of instructions.
//
//   inputs      step scalars, tokens and targets                                   pass_inputs.c
//   lower       graph nodes, one matrix product per weight                         pass_lower.c
//   join        products whose weights are neighbours in a unit become one         pass_join.c
//   recompute   what a block saves for its backward, and what is computed again    pass_recompute.c
//   workspaces  scratch of kernels                                                 pass_workspaces.c
//   gathers     buffers of whole units, and when they are filled                   pass_gathers.c
//   gradients   buffers of gradients, their reductions, updates behind them        pass_gradients.c
//   update      norm, clipping, updates that wait for it, results                  pass_update.c
//   check       digests of the state, which replicas compare                       pass_check.c
//
// A pass reads the node list (nodes.h) and the decisions below, and changes the list; what it keeps from one
// section to the next is a field of its own. Passes make no waits and no addresses: the order of the list is
// what both are inferred from. Only these files include this header.
#pragma once

#include "runtime/plan/plan.h"
#include "runtime/plan/program/nodes.h"

// What strategy, precision and accumulation come to.
typedef struct step_modes {
  int shard_count, replica_count, rank_count; // F, R, W
  fsdp_dtype grad_dtype;                      // of full gradients
  fsdp_dtype shard_dtype;                     // of gradient shards
  bool resident;       // compute reads the masters or kept copies in place: nothing is ever gathered
  bool keeps_gathered; // a gathered unit stays so from its first forward to its last backward of the step
  bool direct_grads;  // gradients are written into the shard itself (one rank in the shard group, no offload)
  bool carries_grads; // full gradients are kept over the micro-batches of a step
} step_modes;

typedef struct step_builder {
  fsdp_plan *plan;
  const fsdp_plan_config *config;
  const fsdp_graph *graph;
  const fsdp_units *units;
  fsdp_program *program;
  step_modes modes;
  fsdp_nodes nodes;
  int *forward_order; // units with parameters in the order of their first use in the forward
  int forward_order_count;

  // The section being made.
  bool is_first, is_last, is_training; // of its micro-batch

  // Tensors of a step that several passes name.
  int scalars, host_scalars, count, loss; // inputs
  int tokens, targets;                    // inputs, of this micro-batch
  int norm_partials;                      // inputs; one number a unit, filled by gradients
  int factor;                             // update

  bool *kept; // lower: activations, by tensor, that a recomputed block keeps
  int kept_capacity;
  int *gathered;     // gathers, by unit: the buffer that holds it whole now, -1: none
  int *gradient;     // gradients, by unit: its full gradient, -1: none
  int partial_count; // gradients: numbers of norm_partials that are made
} step_builder;

// Whether unit `u` stays gathered from its first use to its last one of the step.
bool step_stays_gathered(const step_builder *s, int u);
// Where the state lies: the device, or the host if offloaded.
fsdp_space step_state_space(const step_builder *s);

void pass_step_inputs(step_builder *s);  // once a step, and once an evaluation
void pass_batch_inputs(step_builder *s); // once a micro-batch
void pass_lower(step_builder *s);
void pass_join(step_builder *s);
void pass_recompute(step_builder *s);
void pass_workspaces(step_builder *s);
void pass_gathers(step_builder *s);
void pass_gradients(step_builder *s);
void pass_update(step_builder *s);
void pass_evaluation_result(step_builder *s);
void pass_check(step_builder *s);

// The update of unit `u` from its gradient shard: in pass_update, or behind its reduction.
void step_unit_update(step_builder *s, int u, fsdp_stream stream);
