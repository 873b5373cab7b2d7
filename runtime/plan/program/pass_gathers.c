// Gathers: when a unit's shards become one buffer, and which buffer each use of its weights reads.
//
// A unit is gathered before its first use and, unless it stays gathered, again before its first use in the
// backward. Units of one module that follow each other are gathered together, as one step: tensor parallelism
// makes several units of a layer; of blocks of experts each is a step. With prefetch depth N, a step's
// gathers are issued before the first use of what was gathered N steps earlier (N = 0: of the step itself).
// If that is before the unit's last use in the forward, the unit stays gathered instead. The buffer is freed
// after the last node that names it.
//
//   gathers  | embed | norms, products of layer 0 | norms, products of layer 1 | ...
//   step         0                1                            2
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

#include <stdlib.h>

typedef struct gather_event {
  int unit;
  int step;   // what is gathered together, counted from 0
  int before; // the first node of the origin that uses the unit first
  int last;   // the unit's last use before that, or FSDP_NO_NODE
} gather_event;

int step_gather_shards(step_builder *s, int u, int to, bool has_slot) {
  const fsdp_plan_config *c = s->config;
  const fsdp_unit_state *state = &s->unit_state[u];
  const fsdp_unit *unit = &s->units->units[u];
  int source_tensor = state->copy >= 0 ? state->copy : state->slot[FSDP_SLOT_MASTER];
  fsdp_dtype source_dtype = state->copy >= 0 ? c->param_dtype : c->master_dtype;
  fsdp_operand source = make_whole(s, source_tensor, source_dtype, FSDP_READ);
  fsdp_operand slot = make_own_slot(s, u, to, c->param_dtype, FSDP_WRITE);
  int first = FSDP_NO_NODE;
  if (has_slot) {
    source = slot;
  } else if (c->cpu_offload) {
    first = make_copy(s, FSDP_INSTR_H2D, u, source, slot);
  } else if (source_dtype != c->param_dtype || unit->shard_count == 1) {
    first = make_move(s, FSDP_STREAM_GATHER, u, source, slot);
  }
  if (unit->shard_count > 1) {
    fsdp_operand operands[2] = {first == FSDP_NO_NODE ? source : slot,
                                make_whole(s, to, c->param_dtype, FSDP_WRITE)};
    int gather = make_collective(s, FSDP_INSTR_ALL_GATHER, unit->shard_axes, FSDP_STREAM_GATHER, u, operands);
    if (first == FSDP_NO_NODE) first = gather;
  }
  return first;
}

static int make_buffer(step_builder *s, int u) {
  bool spans_sections = step_stays_gathered(s, u) && s->config->micro_batches > 1;
  return make_unit_tensor(s, u, "gathered", FSDP_SPACE_DEVICE, FSDP_CATEGORY_GATHERED,
                          spans_sections ? FSDP_LIVE_STEP : FSDP_LIVE_SECTION,
                          s->units->units[u].padded_numel, s->config->param_dtype);
}

// The step of unit `u`'s gather, which follows `previous` (NULL: it is the first).
static int step_after(const step_builder *s, const gather_event *previous, int u, bool is_backward) {
  if (!previous) return 0;
  const fsdp_unit *units = s->units->units;
  const bool together = units[previous->unit].module == units[u].module &&
                        units[previous->unit].expert_block == units[u].expert_block &&
                        s->nodes.nodes[previous->before].is_backward == is_backward;
  return previous->step + !together;
}

// Every gather of the section, in the order of first uses. `uses` are those of the units' weights.
static int find_events(const step_builder *s, const fsdp_uses *uses, gather_event *events) {
  const fsdp_nodes *list = &s->nodes;
  int *seen = fsdp_alloc_zeroed((size_t)s->units->count, sizeof *seen); // uses so far, by unit
  int count = 0, origin_begin = list->first;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    const fsdp_list_node *node = &list->nodes[n];
    if (node->origin < 0 || node->origin != list->nodes[origin_begin].origin) origin_begin = n;
    for (int o = 0; o < node->operand_count; o++) {
      int u = fsdp_weights_unit(node->operands[o].tensor), use_count;
      if (u < 0 || step_is_resident(s, u)) continue;
      const fsdp_use *use = fsdp_uses_of(uses, node->operands[o].tensor, &use_count);
      int before = seen[u]++;
      bool stays = step_stays_gathered(s, u);
      bool needed = before == 0
                        ? !stays || s->gathered[u] < 0
                        : !stays && list->nodes[use[before - 1].node].is_backward != node->is_backward;
      if (!needed) continue;
      const int step = step_after(s, count ? &events[count - 1] : NULL, u, node->is_backward);
      events[count++] = (gather_event){.unit = u,
                                       .step = step,
                                       .before = origin_begin,
                                       .last = before ? use[before - 1].node : FSDP_NO_NODE};
    }
  }
  free(seen);
  return count;
}

// Every use of a resident unit reads the state itself.
static void name_resident(step_builder *s, const fsdp_uses *uses) {
  for (int u = 0; u < s->units->count; u++) {
    const fsdp_unit_state *state = &s->unit_state[u];
    if (!step_is_resident(s, u)) continue;
    int tensor = state->whole >= 0  ? state->whole
                 : state->copy >= 0 ? state->copy
                                    : state->slot[FSDP_SLOT_MASTER];
    int count;
    const fsdp_use *use = fsdp_uses_of(uses, FSDP_UNIT_WEIGHTS(u), &count);
    for (int i = 0; i < count; i++) s->nodes.nodes[use[i].node].operands[use[i].operand].tensor = tensor;
  }
}

static void insert_events(step_builder *s, const gather_event *events, int count) {
  int *place = fsdp_alloc((size_t)s->nodes.count * sizeof *place), places = 0;
  for (int n = s->nodes.first; n != FSDP_NO_NODE; n = s->nodes.nodes[n].next) place[n] = places++;
  int start = s->nodes.first; // the first node that comes from the graph
  while (start != FSDP_NO_NODE && s->nodes.nodes[start].origin < 0) start = s->nodes.nodes[start].next;
  for (int e = 0, leader = 0; e < count; e++) {
    const int step = events[e].step - s->config->prefetch; // its first use opens the way
    while (events[leader].step < step) leader++;
    int cursor = step < 0 ? start : events[leader].before, last = events[e].last;
    if (last != FSDP_NO_NODE && place[cursor] <= place[last]) continue;
    s->nodes.cursor = cursor;
    int first = step_gather_shards(s, events[e].unit, make_buffer(s, events[e].unit), false);
    s->nodes.nodes[first].is_bounded = true;
  }
  s->nodes.cursor = FSDP_NO_NODE;
  free(place);
}

// Every use reads the unit's last gathered buffer before it in the list.
static void name_buffers(step_builder *s) {
  for (int n = s->nodes.first; n != FSDP_NO_NODE; n = s->nodes.nodes[n].next) {
    fsdp_list_node *node = &s->nodes.nodes[n];
    for (int o = 0; o < node->operand_count; o++) {
      fsdp_operand *operand = &node->operands[o];
      int u = fsdp_weights_unit(operand->tensor);
      if (u >= 0) {
        FSDP_CHECK(s->gathered[u] >= 0, "unit '%s' is used before it is gathered", s->units->units[u].path);
        operand->tensor = s->gathered[u];
      } else if (operand->tensor >= 0 && (operand->access & FSDP_WRITE) &&
                 s->program->tensors[operand->tensor].category == FSDP_CATEGORY_GATHERED) {
        s->gathered[node->instr.unit] = operand->tensor;
      }
    }
  }
}

void pass_gathers(step_builder *s) {
  fsdp_uses uses = fsdp_uses_create(&s->nodes, s->program->tensor_count, s->units->count);
  gather_event *events = fsdp_alloc((size_t)s->units->count * 2 * sizeof *events);
  insert_events(s, events, find_events(s, &uses, events));
  name_resident(s, &uses);
  name_buffers(s);
  free(events);
  fsdp_uses_release(&uses);
  bool step_ends = s->is_last || !s->is_training;
  for (int u = 0; u < s->units->count; u++)
    if (step_ends || !step_stays_gathered(s, u)) s->gathered[u] = -1;
}
