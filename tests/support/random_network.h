// Random networks of operators and strategies for some of them.
#pragma once

#include "runtime/plan/sharding/listed.h"
#include "runtime/plan/sharding/slices.h"
#include "tests/support/random_program.h"

// Adds a tensor of one (`columns` 0) or two dimensions, and an operator of one (`b` -1) or two inputs, which
// must be valid; it returns its output.
int network_add_tensor(fsdp_graph *graph, const char *name, fsdp_value_role role, int64_t rows,
                       int64_t columns);
int network_add_operator(fsdp_graph *graph, const char *kind, const char *name, int a, int b);

// The graph, which is destroyed, as propagation sees it in fp32.
fsdp_dataflow *network_of_listed(fsdp_graph *graph);
// The index of a tensor by its name, -1: none.
int network_find(const fsdp_dataflow *flow, const char *name);

// relu(x w1 + b1) w2, with the operators fc1, bias, act and fc2; x has 16 rows of 32.
fsdp_graph *network_feed_forward(void);

// Three to six operators on matrices whose sizes are one to three times `unit`.
fsdp_dataflow *random_network(random_source *random, int64_t unit);

// A strategy that a random operator of the network can have.
fsdp_given_strategy random_strategy(random_source *random, const fsdp_dataflow *flow,
                                    const fsdp_slice_mesh *mesh);

// Up to `most` of different operators, into items. Returns how many.
int random_strategies(random_source *random, const fsdp_dataflow *flow, const fsdp_slice_mesh *mesh, int most,
                      fsdp_given_strategy *items);

// "fc1: [[2, 1], [1, 4]]" as a line.
fsdp_given_strategy strategy_of_text(const char *text);
