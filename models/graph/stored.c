#include "models/graph/stored.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <string.h>

static int name_count(const fsdp_param *param) {
  int count = 0;
  while (count < FSDP_STORED_MAX_NAMES && param->stored[count]) count++;
  return count;
}

static bool is_stacked(const fsdp_param *param) {
  return param->stored[0] && strchr(param->stored[0], '*');
}

int fsdp_stored_count(const fsdp_graph *graph, int param) {
  const fsdp_param *p = &graph->params[param];
  return is_stacked(p) ? (int)p->shape[0] * name_count(p) : 1;
}

// The name with `expert` in the place of its star.
static void write_name(const fsdp_graph *graph, const fsdp_param *p, const char *name, int expert,
                       char *out) {
  char path[FSDP_NAME_BYTES];
  const int star = (int)strcspn(name, "*");
  fsdp_graph_module_path(graph, p->stored_below, path);
  int length = name[star]
                   ? snprintf(out, FSDP_NAME_BYTES, "%s.%.*s%d%s", path, star, name, expert, name + star + 1)
                   : snprintf(out, FSDP_NAME_BYTES, "%s.%s", path, name);
  FSDP_CHECK(length < FSDP_NAME_BYTES, "a stored name longer than %d bytes", FSDP_NAME_BYTES);
}

fsdp_stored fsdp_stored_at(const fsdp_graph *graph, int param, int index) {
  const fsdp_param *p = &graph->params[param];
  const int names = name_count(p), stack = is_stacked(p);
  fsdp_stored out = {.dims = p->dims - stack, .numel = p->numel / fsdp_stored_count(graph, param)};
  memcpy(out.shape, p->shape + stack, (size_t)out.dims * sizeof *out.shape);
  if (!names) {
    memcpy(out.name, p->name, sizeof out.name);
    return out;
  }
  out.shape[0] /= names;
  write_name(graph, p, p->stored[index % names], index / names, out.name);
  return out;
}
