#include "runtime/plan/mesh/placement.h"

#include "runtime/base/check.h"

fsdp_axis_set fsdp_placement_axes(const fsdp_placement *placement) {
  fsdp_axis_set axes = placement->partial;
  FSDP_CHECK(!(axes & placement->flat), "a partial sum is stored whole");
  axes |= placement->flat;
  for (int d = 0; d < FSDP_MAX_DIMS; d++) {
    for (int i = 0; i < placement->dim[d].count; i++) {
      fsdp_axis_set axis = 1u << placement->dim[d].axes[i];
      FSDP_CHECK(!(axes & axis), "axis %d stands twice in a placement", placement->dim[d].axes[i]);
      axes |= axis;
    }
  }
  return axes;
}

fsdp_axis_set fsdp_placement_token_axes(const fsdp_graph *graph) {
  const int tokens = graph->inputs[FSDP_INPUT_TOKENS];
  return tokens < 0 ? 0 : fsdp_placement_axes(&graph->values[tokens].placement);
}

void fsdp_dim_axes_cut(fsdp_dim_axes *dim, fsdp_axis_set axes) {
  for (int a = 0; a < FSDP_MESH_AXES_MAX; a++)
    if (axes >> a & 1) dim->axes[dim->count++] = (signed char)a;
}

void fsdp_placement_cut(fsdp_placement *placement, int dim, fsdp_axis_set axes) {
  FSDP_CHECK(!(fsdp_placement_axes(placement) & axes), "an axis stands twice in a placement");
  fsdp_dim_axes_cut(&placement->dim[dim], axes);
}

int fsdp_placement_part(const fsdp_placement *placement, const fsdp_mesh *mesh, int dim, int rank,
                        int *parts) {
  int coordinates[FSDP_MESH_AXES_MAX], part = 0;
  fsdp_mesh_coordinates(mesh, rank, coordinates);
  *parts = 1;
  for (int i = 0; i < placement->dim[dim].count; i++) {
    int axis = placement->dim[dim].axes[i], size = mesh->axes[axis].size;
    part = part * size + coordinates[axis];
    *parts *= size;
  }
  return part;
}
