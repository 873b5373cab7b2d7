#include "runtime/plan/layout/specs.h"

#include "runtime/base/check.h"
#include "runtime/plan/layout/names.h"
#include "runtime/plan/layout/placement.h"

#include <stdlib.h>
#include <string.h>

bool fsdp_module_has_output(const fsdp_graph *graph, int module) {
  return strcmp(graph->modules[module].class_name, "ModuleList") != 0;
}

static void cut(fsdp_dim_axes *dim, const fsdp_mesh *mesh, const char *name) {
  int axis = fsdp_mesh_find(mesh, name);
  if (axis >= 0 && mesh->axes[axis].size > 1) dim->axes[dim->count++] = (signed char)axis;
}

fsdp_axis_set fsdp_spec_axes(const fsdp_spec *spec, const fsdp_mesh *mesh) {
  fsdp_axis_set axes = 0;
  for (int d = 0; d < FSDP_MAX_DIMS; d++)
    for (int i = 0; i < spec->dim[d].count; i++) axes |= 1u << spec->dim[d].axes[i];
  return axes & fsdp_mesh_all_axes(mesh);
}

fsdp_specs *fsdp_specs_default(const fsdp_graph *graph, const fsdp_mesh *mesh) {
  fsdp_specs *specs = fsdp_alloc_zeroed(1, sizeof *specs);
  specs->params = fsdp_alloc_zeroed((size_t)graph->param_count, sizeof *specs->params);
  specs->modules = fsdp_alloc_zeroed((size_t)graph->module_count, sizeof *specs->modules);
  specs->input.dims = 2;
  cut(&specs->input.dim[0], mesh, FSDP_AXIS_DATA);
  cut(&specs->input.dim[0], mesh, FSDP_AXIS_FSDP);
  for (int p = 0; p < graph->param_count; p++) {
    specs->params[p].dims = graph->params[p].dims;
    cut(&specs->params[p].dim[0], mesh, FSDP_AXIS_FSDP);
    cut(&specs->params[p].dim[0], mesh, FSDP_AXIS_CONTEXT);
  }
  for (int m = 0; m < graph->module_count; m++)
    if (fsdp_module_has_output(graph, m))
      specs->modules[m] = (fsdp_spec){.dims = FSDP_OUTPUT_DIMS, .dim = {specs->input.dim[0]}};
  return specs;
}

void fsdp_specs_destroy(fsdp_specs *specs) {
  if (!specs) return;
  free(specs->params);
  free(specs->modules);
  free(specs);
}

void fsdp_specs_write(const fsdp_specs *specs, fsdp_graph *graph, const fsdp_mesh *mesh) {
  for (int p = 0; p < graph->param_count; p++)
    graph->values[graph->params[p].value].placement.flat = fsdp_spec_axes(&specs->params[p], mesh);
  const fsdp_dim_axes *batch = &specs->input.dim[0];
  for (int v = 0; v < graph->value_count; v++) {
    fsdp_value *value = &graph->values[v];
    if (value->role != FSDP_VALUE_INPUT) continue;
    for (int i = 0; i < batch->count; i++) {
      const fsdp_mesh_axis *axis = &mesh->axes[batch->axes[i]];
      if (axis->size == 1) continue;
      fsdp_placement_cut(&value->placement, 0, 1u << batch->axes[i]);
      value->shape[0] *= axis->size;
      value->numel *= axis->size;
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

typedef struct line {
  char name[FSDP_NAME_BYTES]; // with integers as they are
  char pattern[FSDP_NAME_BYTES];
  const fsdp_spec *spec;
} line;

static void add(line *lines, int *count, const char *name, const fsdp_spec *spec) {
  line *l = &lines[(*count)++];
  snprintf(l->name, sizeof l->name, "%s", name);
  fsdp_name_pattern(name, l->pattern);
  l->spec = spec;
}

static bool equal(const fsdp_spec *a, const fsdp_spec *b) {
  bool same = a->dims == b->dims;
  for (int d = 0; d < FSDP_MAX_DIMS && same; d++)
    same = a->dim[d].count == b->dim[d].count &&
           memcmp(a->dim[d].axes, b->dim[d].axes, (size_t)a->dim[d].count) == 0;
  return same;
}

// Whether line `at` is the first of its pattern; *alike says whether all of them have one spec.
static bool opens(const line *lines, int count, int at, bool *alike) {
  *alike = true;
  for (int i = 0; i < count; i++) {
    if (i == at || strcmp(lines[i].pattern, lines[at].pattern) != 0) continue;
    if (i < at) return false;
    *alike = *alike && equal(lines[i].spec, lines[at].spec);
  }
  return true;
}

static void print_line(const char *name, const fsdp_spec *spec, const fsdp_mesh *mesh, FILE *out) {
  char text[FSDP_SPEC_TEXT_BYTES];
  fprintf(out, "%s: %s\n", *name ? name : "''", fsdp_spec_print(spec, mesh, text));
}

void fsdp_specs_print(const fsdp_specs *specs, const fsdp_graph *graph, const fsdp_mesh *mesh, FILE *out) {
  int count = 0;
  line *lines = fsdp_alloc_zeroed((size_t)(graph->param_count + graph->module_count + 1), sizeof *lines);
  add(lines, &count, "input", &specs->input);
  for (int p = 0; p < graph->param_count; p++) add(lines, &count, graph->params[p].name, &specs->params[p]);
  for (int m = 0; m < graph->module_count; m++) {
    char path[FSDP_NAME_BYTES];
    fsdp_graph_module_path(graph, m, path);
    if (specs->modules[m].dims) add(lines, &count, path, &specs->modules[m]);
  }
  bool alike;
  for (int i = 0; i < count; i++) {
    if (!opens(lines, count, i, &alike)) continue;
    if (alike) print_line(lines[i].pattern, lines[i].spec, mesh, out);
    for (int j = i; j < count && !alike; j++)
      if (!strcmp(lines[j].pattern, lines[i].pattern)) print_line(lines[j].name, lines[j].spec, mesh, out);
  }
  free(lines);
}
