// Shared by the scheduler's parts; nobody else includes it.
//
//   schedule.c          sections, the sequence of compute nodes, recomputation, where gathers are issued
//   schedule_compute.c  one node -> its kernel instructions, with operands in unit buffers
//   schedule_state.c    state tensors, gathers, reductions
//   schedule_update.c   step scalars, gradient norm, updates, results
//   schedule_check.c    digests of the state, which replicas compare
#pragma once

#include "runtime/plan/program/schedule.h"

// Everything of a unit that the program has made so far.
typedef struct unit_tensors {
  int gathered;  // current buffer of the whole unit, -1: not gathered
  int grad;      // current full gradient, -1: none (the shard itself where nothing is scattered)
  int host_grad; // offload: the gradient shard in host memory
} unit_tensors;

// One compute node of a section, in order of execution.
typedef struct sequence_node {
  fsdp_node node;
  bool is_backward; // backward list or recomputation: the second reading of the weights
  bool is_recompute;
} sequence_node;

// One gather of a unit: it must be there before sequence node `first`.
typedef struct gather_event {
  int unit;
  int first;
} gather_event;

typedef struct scheduler {
  fsdp_plan *plan;
  const fsdp_plan_config *config;
  const fsdp_graph *graph;
  const fsdp_units *units;
  fsdp_program *program;
  int shard_count, replica_count, rank_count; // F, R, W

  fsdp_dtype grad_dtype;  // of full gradients
  fsdp_dtype shard_dtype; // of gradient shards
  bool resident;          // compute reads the masters or kept copies in place: nothing is ever gathered
  bool keeps_gathered;    // a gathered unit stays so from its first forward to its last backward of the step
  bool direct_grads;  // gradients are written into the shard itself (one rank in the shard group, no offload)
  bool carries_grads; // full gradients are kept over the micro-batches of a step

  unit_tensors *unit;   // by unit
  int *tensor_of_value; // by graph value, in this section; -1: none
  int *last_grad_node;  // by unit: sequence index of its last gradient contribution
  int *first_grad_node; // by unit: of its first
  sequence_node *sequence;
  int sequence_count, sequence_capacity;
  gather_event *events;
  int event_count, event_next; // event_next: the next one to issue
  int *forward_order;          // units with parameters in the order of their first forward use
  int forward_order_count;

  bool is_first, is_last, is_training; // of this section's micro-batch
  int last_compute;                    // position of the last compute instruction of this section, -1: none

  // Tensors of a step.
  int scalars, host_scalars, count, loss, norm_partials, norm_total, norm, factor;
  int partial_count; // units that hold parameters
} scheduler;

// ---- schedule_compute.c

// Emits the kernels of one node.
void schedule_node(scheduler *s, const sequence_node *entry);

// ---- schedule_state.c

void schedule_state_tensors(scheduler *s);
// Whether unit `u` must be gathered before use in this section.
bool schedule_unit_gathers(const scheduler *s, int u);
void schedule_gather(scheduler *s, int u);
// The buffer that holds unit `u` whole in compute dtype right now.
int schedule_unit_source(const scheduler *s, int u);
// The buffer that unit `u`'s weight gradients are written to, made if need be. *carried: it already holds
// gradients of earlier micro-batches.
int schedule_unit_grad(scheduler *s, int u, bool *carried);
// After the last contribution to unit `u`'s gradient in this micro-batch.
void schedule_reduce(scheduler *s, int u);

// ---- schedule_update.c

void schedule_begin_step(scheduler *s);       // step scalars and the count of targets
void schedule_feed_batch(scheduler *s);       // tokens and targets
void schedule_unit_norm(scheduler *s, int u); // its part of the gradient norm, when its shard is final
void schedule_unit_update(scheduler *s, int u, fsdp_stream stream);
void schedule_update_section(scheduler *s);
void schedule_evaluation_result(scheduler *s);

// ---- schedule_check.c

void schedule_check_section(scheduler *s);

// ---- small makers

int schedule_tensor(scheduler *s, const char *owner, const char *what, fsdp_space space,
                    fsdp_category category, fsdp_lifetime lifetime, int unit, int module, int64_t bytes);
fsdp_operand schedule_whole(const scheduler *s, int tensor, fsdp_dtype dtype, fsdp_access access);
int schedule_op(scheduler *s, fsdp_stream stream, fsdp_op_kind op, const fsdp_op_attrs *attrs, int unit,
                int module, const fsdp_operand *operands, int operand_count);
int schedule_move(scheduler *s, fsdp_instr_kind kind, int unit, fsdp_operand from, fsdp_operand to);
int schedule_collective(scheduler *s, fsdp_instr_kind kind, fsdp_group group, int unit,
                        const fsdp_operand *operands, int operand_count);
