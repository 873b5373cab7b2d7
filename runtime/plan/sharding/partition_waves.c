// Waves of routed rows, where experts are cut: what a rank's experts are sent beyond the planned capacity.
//
//   first wave   rows 0 to R of a rank's routed rows      gate_up and so on, saved as others are
//   later ones   rows R to 2R, ...                        the same nodes on the same inputs; recomputed
//
// One more node counts the rows that later waves have, and these waves, for the log.
//
// How many rows there are depends on the data, what is planned does not: a wave that has no rows does next to
// nothing. What later waves make is made again for the backward, so that their room is one for all layers.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/sharding/partition_internal.h"

#include <string.h>

// Whether an operand of the node has a row for each routed row of its wave.
static bool has_wave(const fsdp_node *node, int o) {
  return fsdp_op_letters_of(node->kind)
             ->operands[fsdp_node_row_operand(node, o)]
             .dims[0]
             .blocks[0]
             .letters[0] == 'u';
}

static bool works_on_wave(const fsdp_node *node) {
  return !node->weight_count && fsdp_op_letter_find(fsdp_op_letters_of(node->kind), 'u') != NULL;
}

static bool ends_wave(const fsdp_node *node) {
  return !has_wave(node, node->operand_count - 1);
}

// A value of a later wave, in the place of `value` of the first.
static int later_value(partitioner *p, int value, int64_t rows) {
  fsdp_graph *g = p->graph;
  const fsdp_value of = g->values[value];
  const value_spread spread = *partition_spread(p, value);
  const int made = fsdp_graph_value(g, of.role, of.dtype, of.module, of.name, of.dims, of.shape);
  fsdp_value *later = &g->values[made];
  memcpy(later->local, of.local, sizeof of.local);
  later->local[0] = rows;
  later->local_numel = of.local_numel / of.local[0] * rows;
  later->regathered = true;
  *partition_spread(p, made) = spread;
  return made;
}

// The wave of `rows` routed rows from `first` on.
static void repeat(partitioner *p, int64_t first, int64_t rows) {
  enum { VALUES = 4 * PARTITION_WAVE_NODES };
  int from[VALUES], to[VALUES], renamed = 0;
  for (int i = p->wave[0], end = p->wave[p->wave_count - 1]; i <= end; i++) {
    fsdp_node node = p->graph->forward[i];
    const bool moves = fsdp_node_redistributes(&node); // columns of what the wave made
    bool reads = false;
    for (int r = 0; r < renamed; r++) reads |= from[r] == node.operands[0].value;
    if (moves ? !reads : !works_on_wave(&node)) continue;
    node.attrs.first_routed = first;
    node.attrs.routed = rows;
    for (int o = 0; o < node.operand_count; o++) {
      fsdp_node_operand *operand = &node.operands[o];
      if (operand->access == FSDP_WRITE && (moves || has_wave(&node, o))) {
        FSDP_CHECK(renamed < VALUES, "a wave of more than %d values", VALUES);
        from[renamed] = operand->value;
        to[renamed++] = operand->value = later_value(p, operand->value, rows);
        continue;
      }
      if (operand->access == FSDP_WRITE) operand->access = FSDP_UPDATE; // adds to the sum
      for (int r = 0; r < renamed; r++)
        if (from[r] == operand->value) operand->value = to[r];
    }
    *fsdp_graph_forward_node(p->graph, node.kind, node.module, node.block) = node;
  }
}

void partition_waves(partitioner *p) {
  const int last = p->graph->forward_count - 1;
  const fsdp_op_attrs attrs = p->graph->forward[last].attrs;
  if (!works_on_wave(&p->graph->forward[last])) return;
  FSDP_CHECK(p->wave_count < PARTITION_WAVE_NODES, "a wave of more than %d nodes", PARTITION_WAVE_NODES);
  p->wave[p->wave_count++] = last;
  if (!ends_wave(&p->graph->forward[last])) return;
  const int64_t beyond = attrs.routed ? attrs.arrivals - attrs.routed : 0;
  const int64_t later = fsdp_op_later_wave_rows(&attrs);
  if (beyond > 0) fsdp_graph_count_overflow(p->graph, &p->graph->forward[p->wave[0]]);
  for (int64_t first = attrs.routed; first < attrs.routed + beyond; first += later)
    repeat(p, first, fsdp_min_i64(later, attrs.routed + beyond - first));
  p->wave_count = 0;
}
