// The functions with which an op's backward rule builds (op_row.h): nodes, and the gradients of values.
//
// A value needs a gradient if it is a parameter that trains or made from one. Rules need not ask: that of a
// node which makes no such value is not called, and of the nodes that one appends, those stay that write a
// gradient which is needed.
//
// A value's gradient is one buffer. The residual stream's gradient is a single value for the whole backward:
// both inputs of `h = x + delta` have h's gradient, so the rule of ADD_RMSNORM lets all three share it, and
// every norm adds its own part to it in place. That is safe because nodes run in order: the readers of the
// gradient of `delta` come before the next update.
#pragma once

#include "models/graph/graph.h"

// Appends a backward node with the module, block and attributes of `forward`; the pointer is valid until the
// next one.
fsdp_node *fsdp_backward_node(fsdp_graph *graph, fsdp_op_kind kind, const fsdp_node *forward);

// The gradient of `value`, which a later op of the forward has already written.
int fsdp_backward_gradient(const fsdp_graph *graph, int value);

// The gradient of `value` as an output, made on first use. *access is WRITE then, and UPDATE (which adds to
// it) on every later use.
int fsdp_backward_gradient_made(fsdp_graph *graph, int value, fsdp_access *access);

// Adds the gradient of `value` as an output of `node`: one that nothing reads if the value needs none.
void fsdp_backward_output(fsdp_graph *graph, fsdp_node *node, int value);
// The same with a gradient of that dtype, where it is not the value's.
void fsdp_backward_output_as(fsdp_graph *graph, fsdp_node *node, int value, fsdp_value_dtype dtype);

// Appends the node of `kind` whose operands are those of `forward` by their names, as BACKWARD_BY in ops.def
// says. A gradient whose row names no dtype is computed in that of the graph, also if its value is fp32.
void fsdp_backward_by_names(fsdp_graph *graph, fsdp_op_kind kind, const fsdp_node *forward);
