#include "runtime/plan/sharding/specs.h"

#include "runtime/base/check.h"
#include "runtime/plan/mesh/names.h"

#include <stdlib.h>
#include <string.h>

// ---- Axes

void fsdp_dim_axes_add(fsdp_dim_axes *dim, const fsdp_mesh *mesh, const char *name) {
  int axis = fsdp_mesh_find(mesh, name);
  if (axis >= 0 && mesh->axes[axis].size > 1) dim->axes[dim->count++] = (signed char)axis;
}

fsdp_axis_set fsdp_dim_axis_set(const fsdp_dim_axes *dim, const fsdp_mesh *mesh) {
  fsdp_axis_set axes = 0;
  for (int i = 0; i < dim->count; i++) axes |= 1u << dim->axes[i];
  return axes & fsdp_mesh_all_axes(mesh);
}

fsdp_axis_set fsdp_spec_axes(const fsdp_spec *spec, const fsdp_mesh *mesh) {
  fsdp_axis_set axes = 0;
  for (int d = 0; d < FSDP_MAX_DIMS; d++) axes |= fsdp_dim_axis_set(&spec->dim[d], mesh);
  return axes;
}

// The next axis with more than one rank, from *at on; -1: none is left.
static int next_axis(const fsdp_dim_axes *dim, const fsdp_mesh *mesh, int *at) {
  while (*at < dim->count && mesh->axes[dim->axes[*at]].size == 1) ++*at;
  return *at < dim->count ? dim->axes[(*at)++] : -1;
}

bool fsdp_dim_axes_equal(const fsdp_dim_axes *a, const fsdp_dim_axes *b, const fsdp_mesh *mesh) {
  for (int i = 0, j = 0;;) {
    int axis = next_axis(a, mesh, &i);
    if (axis != next_axis(b, mesh, &j)) return false;
    if (axis < 0) return true;
  }
}

// ---- Specs

fsdp_specs *fsdp_specs_default(const fsdp_graph *graph, const fsdp_mesh *mesh) {
  fsdp_specs *specs = fsdp_alloc_zeroed(1, sizeof *specs);
  specs->params = fsdp_alloc_zeroed((size_t)graph->param_count, sizeof *specs->params);
  specs->outputs = fsdp_alloc_zeroed((size_t)graph->module_count, sizeof *specs->outputs);
  specs->input.dims = 2;
  fsdp_dim_axes_add(&specs->input.dim[0], mesh, FSDP_AXIS_DATA);
  fsdp_dim_axes_add(&specs->input.dim[0], mesh, FSDP_AXIS_FSDP);
  fsdp_dim_axes_add(&specs->input.dim[0], mesh, FSDP_AXIS_EXPERT);
  fsdp_dim_axes_add(&specs->input.dim[1], mesh, FSDP_AXIS_CONTEXT);
  for (int p = 0; p < graph->param_count; p++) {
    specs->params[p].dims = graph->params[p].dims;
    fsdp_dim_axes_add(&specs->params[p].dim[0], mesh, FSDP_AXIS_FSDP);
    fsdp_dim_axes_add(&specs->params[p].dim[0], mesh, FSDP_AXIS_CONTEXT);
    fsdp_dim_axes_add(&specs->params[p].dim[0], mesh, FSDP_AXIS_EXPERT);
  }
  fsdp_specs_outputs_as_input(specs, graph);
  return specs;
}

void fsdp_specs_outputs_as_input(fsdp_specs *specs, const fsdp_graph *graph) {
  for (int m = 0; m < graph->module_count; m++)
    for (int i = 0; i < graph->modules[m].output_count; i++) {
      fsdp_spec *spec = &specs->outputs[m][i];
      *spec = (fsdp_spec){.dims = graph->modules[m].output_dims[i]};
      for (int d = 0; d < spec->dims && d < 2 && spec->dims == FSDP_OUTPUT_DIMS; d++)
        spec->dim[d] = specs->input.dim[d];
    }
}

void fsdp_specs_destroy(fsdp_specs *specs) {
  if (!specs) return;
  free(specs->params);
  free(specs->outputs);
  free(specs);
}

const fsdp_spec *fsdp_specs_rule(const fsdp_specs *specs, int module) {
  const fsdp_spec *spec = specs->outputs[module];
  return spec->source == FSDP_SPEC_GIVEN && spec->dims > 2 ? spec : NULL;
}

const fsdp_spec *fsdp_specs_residual_rule(const fsdp_specs *specs, const fsdp_graph *graph,
                                          const fsdp_node *sum) {
  int added = fsdp_op_added(sum->kind);
  int layer = added < 0 ? -1 : fsdp_graph_layer_of(graph, graph->values[sum->operands[added].value].module);
  return layer < 0 ? NULL : fsdp_specs_rule(specs, layer);
}

fsdp_axis_set fsdp_spec_sequence(const fsdp_spec *spec, const fsdp_mesh *mesh) {
  return spec && spec->dims > 1 ? fsdp_dim_axis_set(&spec->dim[1], mesh) : 0;
}

fsdp_axis_set fsdp_specs_sequence(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh) {
  fsdp_axis_set axes = 0;
  for (int m = 0; m < graph->module_count; m++) axes |= fsdp_spec_sequence(specs->outputs[m], mesh);
  return axes;
}

void fsdp_specs_find_makers(const fsdp_graph *graph, int *maker) {
  for (int m = 0; m < graph->module_count; m++) maker[m] = -1;
  for (int n = 0; n < graph->forward_count; n++)
    for (int m = graph->forward[n].module; m >= 0; m = graph->modules[m].parent) maker[m] = n;
  for (int n = 0; n < graph->forward_count; n++) {
    const fsdp_node *node = &graph->forward[n];
    int values[FSDP_OP_MAX_OPERANDS + FSDP_NODE_MAX_WEIGHTS], count = 0;
    for (int o = 0; o < node->operand_count; o++) values[count++] = node->operands[o].value;
    for (int w = 0; w < node->weight_count; w++) values[count++] = node->weights[w];
    for (int v = 0; v < count; v++) {
      int param = graph->values[values[v]].param;
      if (param >= 0 && maker[graph->params[param].module] < 0) maker[graph->params[param].module] = n;
    }
  }
}

// ---- Text

const char *fsdp_spec_print(const fsdp_spec *spec, const fsdp_mesh *mesh, char out[FSDP_SPEC_TEXT_BYTES]) {
  FILE *text = fmemopen(out, FSDP_SPEC_TEXT_BYTES, "w");
  fputc('[', text);
  for (int d = 0; d < spec->dims; d++) {
    const fsdp_dim_axes *dim = &spec->dim[d];
    if (d) fputs(", ", text);
    if (dim->count == 0) fputs("null", text);
    if (dim->count > 1) fputc('[', text);
    for (int i = 0; i < dim->count; i++) fprintf(text, "%s%s", i ? ", " : "", mesh->axes[dim->axes[i]].name);
    if (dim->count > 1) fputc(']', text);
  }
  fputc(']', text);
  fclose(text);
  return out;
}

typedef struct listing {
  const fsdp_mesh *mesh;
  fsdp_name_line *lines;
  char (*texts)[FSDP_SPEC_TEXT_BYTES]; // by line
  int count;
} listing;

static void add(listing *l, const char *name, int output, const fsdp_spec *spec, const char *note) {
  const char *text = fsdp_spec_print(spec, l->mesh, l->texts[l->count]);
  l->lines[l->count++] = fsdp_name_line_of(name, output, text, note);
}

void fsdp_specs_print(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh,
                      const char *const *notes, FILE *out) {
  const size_t most = (size_t)(1 + graph->param_count + FSDP_MODULE_MAX_OUTPUTS * graph->module_count);
  listing l = {
      .mesh = mesh, .lines = fsdp_alloc(most * sizeof *l.lines), .texts = fsdp_alloc(most * sizeof *l.texts)};
  add(&l, "input", -1, &specs->input, NULL);
  for (int p = 0; p < graph->param_count; p++)
    add(&l, graph->params[p].name, -1, &specs->params[p], notes ? notes[p] : NULL);
  for (int m = 0; m < graph->module_count; m++) {
    const int outputs = graph->modules[m].output_count;
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(graph, m, path);
    for (int i = 0; i < outputs; i++) add(&l, path, outputs > 1 ? i : -1, &specs->outputs[m][i], NULL);
  }
  fsdp_name_lines_print(l.lines, l.count, false, 60, out);
  free(l.lines);
  free(l.texts);
}
