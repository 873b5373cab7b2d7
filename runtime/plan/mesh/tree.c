// The wrapped module tree as PyTorch's repr() prints it.
#include "runtime/plan/mesh/units.h"

#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

// The repr of a module. Its lines after the first begin with `indent` spaces.
static char *module_repr(const fsdp_units *units, const fsdp_graph *graph, int module, int indent);

// The children of a module, one "(name): repr" per line; in a ModuleList, neighbours that print alike as one
// range.
static void put_children(FILE *out, const fsdp_units *units, const fsdp_graph *graph,
                         const fsdp_module *module, int indent) {
  bool folds = !strcmp(module->class_name, "ModuleList");
  for (int c = module->first_child; c >= 0;) {
    char *text = module_repr(units, graph, c, indent + 2);
    int count = 1, last = c, next = graph->modules[c].next_sibling;
    while (folds && next >= 0) {
      char *other = module_repr(units, graph, next, indent + 2);
      bool same = !strcmp(other, text);
      free(other);
      if (!same) break;
      count++;
      last = next;
      next = graph->modules[next].next_sibling;
    }
    fprintf(out, "\n%*s", indent + 2, "");
    if (count > 1)
      fprintf(out, "(%s-%s): %d x %s", graph->modules[c].name, graph->modules[last].name, count, text);
    else
      fprintf(out, "(%s): %s", graph->modules[c].name, text);
    free(text);
    c = next;
  }
  fprintf(out, "\n%*s", indent, "");
}

static char *module_repr(const fsdp_units *units, const fsdp_graph *graph, int module, int indent) {
  const fsdp_module *m = &graph->modules[module];
  const bool is_wrapped = units->unit_of_module[module] >= 0;
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "a text");
  if (is_wrapped) fprintf(out, "FullyShardedDataParallel(\n%*s(_fsdp_wrapped_module): ", indent + 2, "");
  fprintf(out, "%s(%s", m->class_name, m->detail);
  if (m->first_child >= 0) put_children(out, units, graph, m, is_wrapped ? indent + 2 : indent);
  fputc(')', out);
  if (is_wrapped) fprintf(out, "\n%*s)", indent, "");
  fclose(out);
  return text;
}

void fsdp_units_print_tree(const fsdp_units *units, const fsdp_graph *graph, FILE *out) {
  char *text = module_repr(units, graph, 0, 0);
  fprintf(out, "%s\n", text);
  free(text);
}
