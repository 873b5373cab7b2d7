#include "runtime/plan/sharding/factored.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

fsdp_axis_set fsdp_factored_of(const fsdp_factored_mesh *factored, fsdp_axis_set axes) {
  if (factored->axis >= 0) {
    const fsdp_axis_set up_to = (2u << factored->axis) - 1; // the axes up to that of key/value heads
    axes = (axes & up_to) | (axes & (1u << factored->axis)) << 1 | (axes & ~up_to) << 1;
  }
  return axes & fsdp_mesh_all_axes(&factored->mesh);
}

fsdp_axis_set fsdp_factored_axes(const fsdp_factored_mesh *factored, const fsdp_dim_axes *dim) {
  fsdp_axis_set axes = 0;
  for (int i = 0; i < dim->count; i++) axes |= 1u << dim->axes[i];
  return fsdp_factored_of(factored, axes);
}

fsdp_axis_set fsdp_factored_source(const fsdp_factored_mesh *factored, fsdp_axis_set axes) {
  if (factored->axis < 0) return axes;
  fsdp_axis_set up_to = (2u << factored->axis) - 1; // the axes up to that of key/value heads
  return (axes & up_to) | (axes >> 1 & (1u << factored->axis)) | (axes >> 1 & ~up_to);
}

// The name of the replicas' half of an axis.
static void name_replica(const char *name, char out[FSDP_AXIS_NAME_BYTES]) {
  snprintf(out, FSDP_AXIS_NAME_BYTES, "%.7s" FSDP_AXIS_REPLICA, name);
}

fsdp_mesh fsdp_factored_whole(const fsdp_mesh *mesh) {
  fsdp_mesh whole = {0};
  for (int a = 0; a < mesh->count; a++) {
    fsdp_mesh_axis *before = whole.count ? &whole.axes[whole.count - 1] : NULL;
    char replica[FSDP_AXIS_NAME_BYTES] = "";
    if (before) name_replica(before->name, replica);
    if (before && !strcmp(mesh->axes[a].name, replica)) {
      before->size *= mesh->axes[a].size;
    } else {
      whole.axes[whole.count++] = mesh->axes[a];
    }
  }
  return whole;
}

static bool names_axis(const fsdp_dim_axes *dim, int axis) {
  for (int i = 0; i < dim->count; i++)
    if (dim->axes[i] == axis) return true;
  return false;
}

// The axis that alone cuts the outputs of the product before the first attention, -1: none, or several.
static int heads_axis(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh) {
  int weight = -1, found = -1, count = 0;
  for (int n = 0; n < graph->forward_count && !fsdp_op_gathers_keys(graph->forward[n].kind); n++)
    if (graph->forward[n].weight_count) weight = graph->values[graph->forward[n].weights[0]].param;
  if (weight < 0) return -1;
  const fsdp_dim_axes *dim = &specs->params[weight].dim[graph->params[weight].transposed];
  for (int i = 0; i < dim->count; i++) {
    int axis = dim->axes[i];
    if (mesh->axes[axis].size == 1 || names_axis(&specs->input.dim[0], axis) ||
        names_axis(&specs->input.dim[1], axis))
      continue;
    found = axis;
    count++;
  }
  return count == 1 ? found : -1;
}

// Those of the first attention.
static const fsdp_op_attrs *attention_attrs(const fsdp_graph *graph) {
  for (int n = 0; n < graph->forward_count; n++)
    if (fsdp_op_gathers_keys(graph->forward[n].kind)) return &graph->forward[n].attrs;
  return NULL;
}

fsdp_factored_mesh fsdp_factored_mesh_of(const fsdp_specs *specs, const fsdp_graph *graph,
                                         const fsdp_mesh *mesh) {
  fsdp_factored_mesh out = {.mesh = *mesh, .axis = -1};
  int axis = heads_axis(specs, graph, mesh);
  const fsdp_op_attrs *attrs = attention_attrs(graph);
  if (axis < 0 || !attrs) return out;
  int size = mesh->axes[axis].size;
  int64_t groups = attrs->kv_heads, replicas = groups < size ? size / groups : 1;
  while (size % replicas) replicas--;
  if (attrs->heads == groups || replicas == 1) return out; // one query head a group: nothing for replicas
  FSDP_CHECK(mesh->count < FSDP_MESH_AXES_MAX, "no room for the replicas of axis %s", mesh->axes[axis].name);
  memmove(&out.mesh.axes[axis + 2], &mesh->axes[axis + 1],
          (size_t)(mesh->count - axis - 1) * sizeof *mesh->axes);
  out.mesh.count++;
  out.mesh.axes[axis].size = size / (int)replicas;
  out.mesh.axes[axis + 1].size = (int)replicas;
  name_replica(mesh->axes[axis].name, out.mesh.axes[axis + 1].name);
  out.axis = axis;
  return out;
}
