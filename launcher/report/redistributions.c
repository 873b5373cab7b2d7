#include "launcher/report/redistributions.h"

#include "runtime/base/check.h"
#include "runtime/base/text.h"
#include "runtime/plan/mesh/names.h"

#include <stdlib.h>
#include <string.h>

typedef struct row {
  char module[FSDP_NAME_BYTES]; // with `*` for layers
  char value[FSDP_NAME_BYTES];
  fsdp_conversion conversion;
  bool is_backward;
  int count;
  int64_t bytes; // sent by a rank, of all of them
} row;

typedef struct table {
  const fsdp_plan *plan;
  row *rows;
  int count;
} table;

static const char *spread_name(fsdp_spread spread) {
  static const char *const names[] = {"whole", "rows", "columns", "partial sums"};
  return names[spread];
}

// Bytes that a rank sends in the collective of a conversion (a ring's counts); a slice sends nothing.
static int64_t sent_bytes(const fsdp_plan *plan, const fsdp_node *node) {
  const fsdp_conversion *c = &node->conversion;
  const fsdp_node_operand *last = &node->operands[node->operand_count - 1];
  int64_t ranks = fsdp_mesh_group_size(&plan->units->mesh, c->axes);
  int64_t from = fsdp_graph_bytes(plan->graph, node->operands[0].value, plan->config.param_dtype);
  int64_t to = fsdp_graph_bytes(plan->graph, last->value, plan->config.param_dtype);
  if (c->from == c->to || c->from == FSDP_SPREAD_WHOLE) return 0;
  if (c->from != FSDP_SPREAD_PARTIAL) return from * (ranks - 1);
  return c->to == FSDP_SPREAD_WHOLE ? 2 * from * (ranks - 1) / ranks : to * (ranks - 1);
}

static bool alike(const row *a, const row *b) {
  const fsdp_conversion *x = &a->conversion, *y = &b->conversion;
  return a->is_backward == b->is_backward && x->axes == y->axes && x->from == y->from && x->to == y->to &&
         strcmp(a->module, b->module) == 0 && strcmp(a->value, b->value) == 0;
}

static void add_node(table *t, const fsdp_node *node, bool is_backward) {
  const fsdp_graph *graph = t->plan->graph;
  const fsdp_value *value = &graph->values[node->operands[0].value];
  if (!fsdp_node_redistributes(node) || node->conversion.from == node->conversion.to) return;
  row made = {.conversion = node->conversion,
              .is_backward = is_backward,
              .count = 1,
              .bytes = sent_bytes(t->plan, node)};
  char path[FSDP_NAME_BYTES];
  fsdp_graph_module_path(graph, value->module, path);
  fsdp_name_pattern(path, made.module);
  memcpy(made.value, value->name, sizeof made.value);
  for (int r = 0; r < t->count; r++) {
    if (!alike(&t->rows[r], &made)) continue;
    t->rows[r].count++;
    t->rows[r].bytes += made.bytes;
    return;
  }
  t->rows = fsdp_realloc(t->rows, (size_t)(t->count + 1) * sizeof *t->rows);
  t->rows[t->count++] = made;
}

static table table_of(const fsdp_plan *plan) {
  table t = {.plan = plan};
  for (int n = 0; n < plan->graph->forward_count; n++) add_node(&t, &plan->graph->forward[n], false);
  for (int n = 0; n < plan->graph->backward_count; n++) add_node(&t, &plan->graph->backward[n], true);
  return t;
}

// The axes of the mesh as it was given.
static const char *print_axes(const fsdp_plan *plan, const row *w, char out[FSDP_MESH_TEXT_BYTES]) {
  return fsdp_mesh_print_axes(&plan->config.mesh, fsdp_factored_source(&plan->axes, w->conversion.axes), out);
}

void fsdp_redistributions_print(const fsdp_plan *plan, FILE *out) {
  table t = table_of(plan);
  if (t.count)
    fprintf(out,
            "\nActivations between placements in a micro-batch (what is recomputed apart)\n  %-52s %-24s "
            "%-18s %5s %10s\n",
            "of", "from -> to", "over", "times", "sent");
  for (int r = 0; r < t.count; r++) {
    const row *w = &t.rows[r];
    char of[2 * FSDP_NAME_BYTES], change[64], axes[FSDP_MESH_TEXT_BYTES];
    snprintf(of, sizeof of, "%s.%s", w->module, w->value);
    snprintf(change, sizeof change, "%s -> %s", spread_name(w->conversion.from),
             spread_name(w->conversion.to));
    fprintf(out, "  %-52s %-24s %-18s %5d %10s\n", of, change, print_axes(plan, w, axes), w->count,
            fsdp_print_bytes(w->bytes).text);
  }
  free(t.rows);
}

json_t *fsdp_redistributions_json(const fsdp_plan *plan) {
  table t = table_of(plan);
  json_t *rows = json_array();
  for (int r = 0; r < t.count; r++) {
    const row *w = &t.rows[r];
    char axes[FSDP_MESH_TEXT_BYTES];
    json_t *one = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:i, s:I}", "module", w->module, "value",
                            w->value, "from", spread_name(w->conversion.from), "to",
                            spread_name(w->conversion.to), "axes", print_axes(plan, w, axes), "backward",
                            w->is_backward, "count", w->count, "sent_bytes", (json_int_t)w->bytes);
    FSDP_CHECK(one && json_array_append_new(rows, one) == 0, "a redistribution that is not valid JSON");
  }
  free(t.rows);
  return rows;
}
