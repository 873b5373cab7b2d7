// What propagation made of the strategies that were given, for a person.
#pragma once

#include "runtime/plan/propagate/propagate.h"

#include <stdio.h>

// Every operator's strategy as a line for --op-strategies, with who decided it behind; then what is
// redistributed, with the bytes that a rank receives in one forward, and their sum. Operators alike but for
// the integers in their names become one line. `mesh` has the axes' names; NULL: none were given.
void fsdp_strategies_print(const fsdp_network *network, const fsdp_propagation *propagation,
                           const fsdp_given_strategies *given, const fsdp_mesh *mesh, FILE *out);

// A warning for each operator, once for those alike, that no strategy suits without redistribution.
void fsdp_strategies_warn(const fsdp_network *network, const fsdp_propagation *propagation,
                          const char *program, FILE *out);
