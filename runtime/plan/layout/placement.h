// Placements on a mesh: local shapes, parts, text.
#pragma once

#include "models/graph/graph.h"
#include "runtime/plan/layout/mesh.h"

#include <stdio.h>

// All axes that a placement names. An axis that appears twice is a broken invariant.
fsdp_axis_set fsdp_placement_axes(const fsdp_placement *placement);

// Lets `axes` cut a dimension, inside those that cut it already; the axis with the lowest index is outermost.
void fsdp_placement_cut(fsdp_placement *placement, int dim, fsdp_axis_set axes);

// The shape of what one rank holds: each dimension divided by the axes that cut it, rounded up. `flat` does
// not count: it cuts storage. Returns the number of elements.
int64_t fsdp_placement_local_shape(const fsdp_placement *placement, const fsdp_mesh *mesh, int dims,
                                   const int64_t *shape, int64_t *local);

// "[[data,fsdp],null] partial=tensor flat=fsdp": an entry per dimension; empty parts are omitted.
void fsdp_placement_print(const fsdp_placement *placement, const fsdp_mesh *mesh, int dims, FILE *out);

// Which part of dimension `dim` a rank holds, counted along the dimension, and of how many.
int fsdp_placement_part(const fsdp_placement *placement, const fsdp_mesh *mesh, int dim, int rank,
                        int *parts);
