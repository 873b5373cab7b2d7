// What the files of propagation share.
#pragma once

#include "runtime/plan/sharding/slices.h"

// A decided neighbour of an operator: one of its operands lies, or is wanted, so.
typedef struct known_operand {
  int operand;
  fsdp_tensor_axes axes;
  fsdp_axis_set partial; // of an output: over which its reader makes summands of the gradient
  bool is_output;        // a reader wants it so
  bool is_shared;        // a parameter that another reader has so: no candidate may differ
} known_operand;

// What an operator is decided by.
typedef struct known_neighbours {
  known_operand *items;
  int count, capacity;
} known_neighbours;

// Reads the given lines into strategies of the operators that they name.
fsdp_status propagate_read_given(const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh,
                                 const fsdp_given_strategies *given, fsdp_operator_strategy *strategies,
                                 fsdp_error *error);

// What an operator's strategy is chosen by.
typedef struct propagate_choice {
  const fsdp_dataflow *flow;
  const fsdp_slice_mesh *mesh;
  int op;
  const known_neighbours *known;
  const fsdp_operator_limits *limits; // NULL: any axis may cut any letter
  bool first;                         // of the candidates that suit, the first, whatever it costs
} propagate_choice;

// The best candidate, into strategy->letters and strategy->redistributes. False: the limits and readers of
// its parameters leave it none.
bool propagate_choose(const propagate_choice *choice, fsdp_operator_strategy *strategy);
