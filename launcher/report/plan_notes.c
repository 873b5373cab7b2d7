#include "launcher/report/plan_notes.h"

#include "launcher/report/strategies.h"
#include "runtime/base/size.h"
#include "runtime/base/text.h"
#include "runtime/plan/mesh/cut.h"

#include <string.h>

// ---- Padding

// Ranks of a group that have none of `count` things, of which each rank has up to `share`.
static int64_t idle_ranks(int64_t count, int64_t share, int64_t ranks) {
  return fsdp_max_i64(0, ranks - (count + share - 1) / share);
}

// The sequence: in parts over some ranks, or in pieces.
static bool print_rows(const fsdp_plan *plan, char *out, size_t out_bytes) {
  const fsdp_rows *rows = &plan->rows;
  char names[FSDP_MESH_TEXT_BYTES];
  bool parts = rows->parts > 1;
  int64_t ranks = parts ? rows->parts : rows->pieces;
  int64_t idle = idle_ranks(rows->seq, parts ? rows->chunk : rows->piece, ranks);
  if (idle == 0) return false;
  const fsdp_axis_set axes = fsdp_factored_source(&plan->axes, parts ? rows->part_axes : rows->piece_axes);
  snprintf(out, out_bytes,
           "on %lld of the %lld ranks over %s a sequence is nothing but padding: %lld token%s %s too few to "
           "divide; use longer sequences, or fewer ranks on that axis",
           (long long)idle, (long long)ranks, fsdp_mesh_print_axes(&plan->config.mesh, axes, names),
           (long long)rows->seq, fsdp_plural((int)rows->seq), rows->seq == 1 ? "is" : "are");
  return true;
}

// Ranks of a group over the axes of the cut that have no item of any block.
static int64_t idle_of_cut(const fsdp_cut *cut, const fsdp_mesh *mesh) {
  int64_t groups = fsdp_mesh_group_size(mesh, cut->group_axes), busy = 0;
  int64_t items = fsdp_mesh_group_size(mesh, cut->item_axes);
  for (int b = 0; b < cut->block_count; b++) {
    const fsdp_cut_block *block = &cut->blocks[b];
    int64_t own_groups = (block->groups + groups - 1) / groups,
            own_items = (block->items + items - 1) / items;
    int64_t with = (groups - idle_ranks(block->groups, own_groups, groups)) *
                   (items - idle_ranks(block->items, own_items, items));
    busy = fsdp_max_i64(busy, with);
  }
  return cut->block_count ? groups * items - busy : 0;
}

bool fsdp_padding_note(const fsdp_plan *plan, char *out, size_t out_bytes) {
  const fsdp_mesh *mesh = &plan->units->mesh;
  int64_t most = 0;
  int worst = -1, count = 0;
  if (print_rows(plan, out, out_bytes)) return true;
  for (int p = 0; p < plan->graph->param_count; p++) {
    int64_t idle = idle_of_cut(&plan->graph->params[p].cut, mesh);
    count += idle > 0;
    if (idle > most) most = idle, worst = p;
  }
  if (worst < 0) return false;
  char names[FSDP_MESH_TEXT_BYTES];
  fsdp_axis_set axes = fsdp_cut_axes(&plan->graph->params[worst].cut);
  snprintf(out, out_bytes,
           "on %lld of the %d ranks over %s %s is nothing but padding (%d parameter%s in all): it has fewer "
           "items to divide; fewer ranks on that axis would do the same work",
           (long long)most, fsdp_mesh_group_size(mesh, axes),
           fsdp_mesh_print_axes(&plan->config.mesh, fsdp_factored_source(&plan->axes, axes), names),
           plan->graph->params[worst].name, count, fsdp_plural(count));
  return true;
}

bool fsdp_positions_note(const fsdp_plan *plan, char *out, size_t out_bytes) {
  const fsdp_plan_config *c = &plan->config;
  if (c->seq <= c->model.max_position_embeddings) return false;
  snprintf(out, out_bytes,
           "sequences of %lld tokens are longer than the %lld positions that the model was made for",
           (long long)c->seq, (long long)c->model.max_position_embeddings);
  return true;
}

// ---- Warnings

// Whether a module before this one has the same line.
static bool is_known(const fsdp_specs *specs, int module) {
  for (int m = 0; m < module; m++)
    if (specs->outputs[m][0].outcome && !strcmp(specs->outputs[m][0].place, specs->outputs[module][0].place))
      return true;
  return false;
}

void fsdp_plan_warn(const fsdp_plan *plan, const char *program, FILE *out) {
  if (plan->propagation) fsdp_strategies_warn(plan->propagation, program, out);
  for (int m = 0; plan->config.sharding && m < plan->graph->module_count; m++) {
    const fsdp_spec *rule = plan->specs->outputs[m];
    if (!rule->outcome || is_known(plan->specs, m)) continue;
    char path[FSDP_NAME_BYTES], text[FSDP_SPEC_TEXT_BYTES];
    fsdp_graph_module_path(plan->graph, m, path);
    fprintf(out, "%s: warning: %s: \"%s\": %s is not followed: %s\n", program, rule->place, path,
            fsdp_spec_print(rule, &plan->config.mesh, text),
            rule->outcome == FSDP_RULE_NO_TENSOR
                ? "the plan has no tensor of this output's own, so the line stores nothing"
                : "the op that makes this output, maybe with others, stores it otherwise");
  }
}
