// Placements on a mesh: local shapes, text, and the first pass of a plan, which writes those of ZeRO.
#pragma once

#include "models/graph/graph.h"
#include "runtime/plan/layout/mesh.h"

#include <stdio.h>

// All axes that a placement names. An axis that stands in two places is a broken invariant.
fsdp_axis_set fsdp_placement_axes(const fsdp_placement *placement);

// Lets `axes` cut a dimension, the axis of the lowest index outermost, behind those that cut it already.
void fsdp_placement_cut(fsdp_placement *placement, int dim, fsdp_axis_set axes);

// The shape of what one rank holds: each dimension divided by the axes that cut it, rounded up. `flat` does
// not count: it cuts storage. Returns the number of elements.
int64_t fsdp_placement_local_shape(const fsdp_placement *placement, const fsdp_mesh *mesh, int dims,
                                   const int64_t *shape, int64_t *local);

// "[[data,fsdp],null] partial=tensor flat=fsdp": an entry a dimension; what is empty is left out.
void fsdp_placement_print(const fsdp_placement *placement, const fsdp_mesh *mesh, int dims, FILE *out);

// Writes the placements that follow from the mesh alone into a graph whose shapes are one rank's: parameters
// lie flat over fsdp (and context); the batch's inputs lie over data and fsdp, and their shapes become the
// global batch's.
void fsdp_placement_write(fsdp_graph *graph, const fsdp_mesh *mesh);
