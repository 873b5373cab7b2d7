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

// The first attention, NULL: none; and in *weight the parameter of the product before it, -1: none.
static const fsdp_node *first_attention(const fsdp_graph *graph, int *weight) {
  *weight = -1;
  for (const fsdp_node *n = graph->forward; n < graph->forward + graph->forward_count; n++) {
    if (fsdp_op_gathers_keys(n->kind)) return n;
    if (n->weight_count) *weight = graph->values[n->weights[0]].param;
  }
  return NULL;
}

fsdp_factored_mesh fsdp_factored_mesh_of(const fsdp_specs *specs, const fsdp_graph *graph,
                                         const fsdp_mesh *mesh) {
  fsdp_factored_mesh out = {.mesh = *mesh, .axis = -1};
  int weight;
  const fsdp_node *attention = first_attention(graph, &weight);
  if (!attention || weight < 0) return out;
  const fsdp_op_attrs *attrs = &attention->attrs;
  const fsdp_dim_axes *outputs = &specs->params[weight].dim[graph->params[weight].transposed];
  const fsdp_axis_set heads = fsdp_dim_axis_set(outputs, mesh) & ~fsdp_spec_axes(&specs->input, mesh);
  if (__builtin_popcount(heads) != 1) return out;
  int axis = __builtin_ctz(heads), size = mesh->axes[axis].size;
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
