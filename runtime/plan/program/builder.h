// What the passes share while they make a program: decisions, the node list, tensors that several name.
#pragma once

#include "runtime/plan/program/nodes.h"
#include "runtime/plan/program/schedule.h"

// What follows from strategy, precision and accumulation.
typedef struct step_modes {
  fsdp_dtype grad_dtype;  // of full gradients
  fsdp_dtype shard_dtype; // of gradient shards
  bool keeps_gathered;    // a gathered unit stays so from its first forward to its last backward of the step
  bool direct_grads;  // gradients are written into the shard itself (one rank in the shard group, no offload)
  bool carries_grads; // full gradients are kept across the micro-batches of a step
} step_modes;

typedef struct step_builder {
  const fsdp_plan_config *config;
  const fsdp_fate *fates; // of the graph's values
  const fsdp_graph *graph;
  const fsdp_units *units;
  fsdp_program *program;
  fsdp_unit_state *unit_state; // by unit
  step_modes modes;
  fsdp_nodes nodes;
  int *forward_order; // units with parameters in the order of their first use in the forward
  int forward_order_count;

  // The section being made.
  bool is_first, is_last, is_training; // of its micro-batch

  // Tensors of a step that several passes name.
  int scalars, host_scalars, count, losses; // inputs
  int row;                                  // inputs, of an evaluation: whose logits the caller wants
  int logits;                               // lower: of that row, on the device
  int inputs[FSDP_INPUT_COUNT];             // inputs, of this micro-batch
  int norm_partials;                        // inputs; one number per unit, filled by gradients
  int factor;                               // update

  fsdp_fate *fate; // lower: of activations, by tensor
  int fate_capacity;
  int *gathered;     // gathers, by unit: the buffer that holds it whole now, -1: none
  int *gradient;     // gradients, by unit: its full gradient, -1: none
  int partial_count; // gradients: numbers of norm_partials that are made
} step_builder;

// Whether this rank's shard is all of unit `u`, in the memory that compute reads.
bool step_holds_all(const step_builder *s, int u);
// Whether parameters are kept between steps in the dtype of compute.
bool step_keeps_parameters(const fsdp_plan_config *c);
// Whether compute reads the masters, or kept parameters, of unit `u` in place: it is never gathered.
bool step_is_resident(const step_builder *s, int u);
// Whether unit `u` stays gathered from its first to its last use in the step.
bool step_stays_gathered(const step_builder *s, int u);
// The dtype of a slot of unit `u`'s state.
fsdp_dtype step_slot_dtype(const step_builder *s, int u, int slot);
// Where the state lies: the device, or the host if offloaded.
fsdp_space step_state_space(const step_builder *s);
