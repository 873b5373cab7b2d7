// Dropout on the forward of one rank, where GPT-2 has it: of the embedding before anything else reads it, of
// attention's probabilities, and of what is added to the residual stream before it is added.
//
//   embedding ──► dropout ──► norm ...    product ──► (sum over ranks) ──► dropout ──► h = x + delta
//
// It is added when everything else lies where it will, so no strategy knows of it: a value drops where it
// is, and the node says which rows and columns of the whole these are.
#include "runtime/base/random.h"

#include "runtime/base/check.h"
#include "runtime/plan/sharding/partition_internal.h"

#include <stdlib.h>

// Where the residual stream begins: the value that the first norm reads, before it was gathered or cut for
// it, but with all that is added to it in place (learned positions); and the first node that reads it.
typedef struct stream_begin {
  int value, node;
} stream_begin;

static bool has_operand(const fsdp_node *node, int value, fsdp_access access) {
  for (int o = 0; o < node->operand_count; o++)
    if (node->operands[o].value == value && node->operands[o].access == access) return true;
  return false;
}

static stream_begin find_stream(const fsdp_graph *g) {
  stream_begin found = {-1, 0};
  int n = 0;
  while (n < g->forward_count && !fsdp_op_has(g->forward[n].kind, FSDP_TRAIT_NORM)) n++;
  if (n == g->forward_count) return found;
  found.value = g->forward[n].operands[0].value;
  while (--n >= 0 && !has_operand(&g->forward[n], found.value, FSDP_UPDATE)) {
    const fsdp_node *node = &g->forward[n];
    const bool makes =
        fsdp_node_redistributes(node) && node->operand_count == 2 && node->operands[1].value == found.value;
    if (makes && node->conversion.from != FSDP_SPREAD_PARTIAL) found.value = node->operands[0].value;
  }
  while (!has_operand(&g->forward[found.node], found.value, FSDP_READ)) found.node++;
  return found;
}

static uint64_t key_of(const partitioner *p, int module) {
  char path[FSDP_NAME_BYTES];
  fsdp_graph_module_path(p->graph, module, path);
  return fsdp_random_stream(path);
}

static int64_t draws_of(const partitioner *p) {
  return p->rows.batch * p->rows.local_seq;
}

// A value's first row among the rank's draws. Ranks that share experts have sequences of their own, and draws
// for these alone.
static fsdp_affine first_row_of(partitioner *p, int value) {
  const fsdp_axis_set rows = partition_spread(p, value)->rows;
  return fsdp_affine_of_place(p->mesh, rows & ~p->decisions->dispatch, 0, p->graph->values[value].local[0]);
}

// Appends the op that drops elements of `value`.
static void drop(partitioner *p, int value, float rate) {
  const value_spread spread = *partition_spread(p, value);
  const fsdp_value *v = &p->graph->values[value];
  FSDP_CHECK(v->dims == 2 && !spread.partial, "'%s' is dropped before it is whole", v->name);
  fsdp_node *n = fsdp_graph_forward_node(p->graph, FSDP_PLAN_OP_DROPOUT, v->module, spread.block);
  n->attrs = (fsdp_op_attrs){.batch = 1,
                             .seq = v->local[0],
                             .channels = v->local[1],
                             .dropout = rate,
                             .drop_key = key_of(p, v->module),
                             .draws = draws_of(p)};
  n->first_row = first_row_of(p, value);
  n->first_index = fsdp_affine_of_place(p->mesh, spread.columns, 0, v->local[1]);
  fsdp_node_operand_add(n, value, FSDP_UPDATE);
  fsdp_node_operand_add(n, p->graph->inputs[FSDP_INPUT_DRAWS], FSDP_READ);
}

// What a node adds to the residual stream; -1: nothing. A sum that is taken by itself adds into it.
static int added_by(const fsdp_node *node) {
  const int added = fsdp_op_added(node->kind);
  if (added >= 0) return node->operands[added].value;
  return node->kind == fsdp_op_move(FSDP_UPDATE) ? node->operands[1].value : -1;
}

// Lets an op that can (ops.def: $draws) drop its probabilities.
static void drop_probabilities(partitioner *p, fsdp_node *node) {
  const fsdp_op_letters *op = fsdp_op_letters_of(node->kind);
  if (op->operands[op->operand_count - 1].given != FSDP_GIVEN_BY_DRAWS) return;
  node->attrs.dropout = p->graph->dropout.attention;
  node->attrs.drop_key = key_of(p, node->module);
  node->attrs.draws = draws_of(p);
  node->first_row = first_row_of(p, partition_first_output(node));
  fsdp_node_operand_add(node, p->graph->inputs[FSDP_INPUT_DRAWS], FSDP_READ);
}

void partition_add_dropout(partitioner *p) {
  fsdp_graph *g = p->graph;
  const fsdp_dropout rates = g->dropout;
  if (!fsdp_dropout_any(&rates)) return;
  const stream_begin begin = find_stream(g);
  fsdp_node *nodes = g->forward;
  const int count = g->forward_count;
  g->forward = NULL;
  g->forward_count = g->forward_capacity = 0;
  for (int n = 0; n < count; n++) {
    fsdp_node node = nodes[n];
    const int added = added_by(&node);
    if (n == begin.node && begin.value >= 0 && rates.embedding > 0) drop(p, begin.value, rates.embedding);
    if (added >= 0 && rates.residual > 0) drop(p, added, rates.residual);
    if (rates.attention > 0) drop_probabilities(p, &node);
    *fsdp_graph_forward_node(g, node.kind, node.module, node.block) = node;
  }
  free(nodes);
}
