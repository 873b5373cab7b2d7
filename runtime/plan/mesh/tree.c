// The wrapped module tree as PyTorch's repr() prints it.
#include "runtime/plan/mesh/units.h"

#include "runtime/base/check.h"

#include <stdlib.h>
#include <string.h>

// Writes `text` with every line after the first indented by two spaces.
static void put_indented(FILE *out, const char *text) {
  for (; *text; text++) {
    fputc(*text, out);
    if (*text == '\n') fputs("  ", out);
  }
}

static char *module_repr(const fsdp_units *units, const fsdp_graph *graph, int module);

// The children of a module, one "(name): repr" per line; in a ModuleList, neighbours that print alike as one
// range.
static void put_children(FILE *out, const fsdp_units *units, const fsdp_graph *graph,
                         const fsdp_module *module) {
  bool folds = !strcmp(module->class_name, "ModuleList");
  for (int c = module->first_child; c >= 0;) {
    char *text = module_repr(units, graph, c);
    int count = 1, last = c, next = graph->modules[c].next_sibling;
    while (folds && next >= 0) {
      char *other = module_repr(units, graph, next);
      bool same = !strcmp(other, text);
      free(other);
      if (!same) break;
      count++;
      last = next;
      next = graph->modules[next].next_sibling;
    }
    fputs("\n  ", out);
    if (count > 1)
      fprintf(out, "(%s-%s): %d x ", graph->modules[c].name, graph->modules[last].name, count);
    else
      fprintf(out, "(%s): ", graph->modules[c].name);
    put_indented(out, text);
    free(text);
    c = next;
  }
  fputc('\n', out);
}

// The repr of a module without its own wrapper.
static char *bare_repr(const fsdp_units *units, const fsdp_graph *graph, const fsdp_module *module) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "a text");
  fprintf(out, "%s(%s", module->class_name, module->detail);
  if (module->first_child >= 0) put_children(out, units, graph, module);
  fputc(')', out);
  fclose(out);
  return text;
}

static char *module_repr(const fsdp_units *units, const fsdp_graph *graph, int module) {
  char *bare = bare_repr(units, graph, &graph->modules[module]);
  if (units->unit_of_module[module] < 0) return bare;
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  FSDP_NEED_MEMORY(out, "a text");
  fputs("FullyShardedDataParallel(\n  (_fsdp_wrapped_module): ", out);
  put_indented(out, bare);
  fputs("\n)", out);
  fclose(out);
  free(bare);
  return text;
}

void fsdp_units_print_tree(const fsdp_units *units, const fsdp_graph *graph, FILE *out) {
  char *text = module_repr(units, graph, 0);
  fprintf(out, "%s\n", text);
  free(text);
}
