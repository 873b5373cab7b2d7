#include "runtime/plan/mesh/expert_blocks.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stdlib.h>
#include <string.h>

typedef struct cutting {
  fsdp_graph *graph;
  int count;
  int64_t held;
  int *first; // by value: that of a parameter's second block, or of its gradient; 0: it has no blocks
  int values; // before any was added
} cutting;

// The first of a block's experts among those of a rank; of block `count` their number.
static int64_t begin_of(const cutting *c, int block) {
  return c->held * block / c->count;
}

int64_t fsdp_expert_blocks_held(const fsdp_graph *graph) {
  for (int n = 0; n < graph->forward_count; n++)
    if (fsdp_op_is_grouped(graph->forward[n].kind)) return graph->forward[n].attrs.experts;
  return 0;
}

// ---- Weights

static void narrow(const cutting *c, int value, int block) {
  fsdp_value *v = &c->graph->values[value];
  v->local_numel = v->local_numel / v->local[0] * (begin_of(c, block + 1) - begin_of(c, block));
  v->local[0] = begin_of(c, block + 1) - begin_of(c, block);
}

// A value like `value`, of another parameter.
static int copy_value(const cutting *c, int value, int param) {
  fsdp_graph *g = c->graph;
  const fsdp_value of = g->values[value];
  const int made = fsdp_graph_value(g, of.role, of.dtype, of.module, of.name, of.dims, of.shape);
  g->values[made] = of;
  g->values[made].param = param;
  return made;
}

// The values of blocks 1 and on follow each other.
static void add_values(const cutting *c, int value, int param) {
  for (int b = 1; b < c->count; b++) {
    const int made = copy_value(c, value, param + b - 1);
    if (b == 1) c->first[value] = made;
    narrow(c, made, b);
  }
  narrow(c, value, 0);
}

static void cut_param(const cutting *c, int param) {
  fsdp_graph *g = c->graph;
  const int first = g->part_count, value = g->params[param].value, gradient = g->values[value].gradient;
  FSDP_CHECK(g->values[value].local[0] == c->held, "%s has %lld experts", g->params[param].name,
             (long long)g->values[value].local[0]);
  g->params = fsdp_grow(g->params, first + c->count - 1, &g->param_capacity, sizeof *g->params);
  g->part_count += c->count - 1;
  add_values(c, value, first);
  if (gradient >= 0) add_values(c, gradient, first);
  for (int b = c->count - 1; b >= 0; b--) {
    fsdp_param *p = &g->params[b ? first + b - 1 : param];
    *p = g->params[param];
    p->expert_block = b + 1;
    p->cut.part_first = begin_of(c, b);
    p->cut.part_count = begin_of(c, b + 1) - begin_of(c, b);
    if (b == 0) continue;
    p->value = c->first[value] + b - 1;
    if (gradient >= 0) g->values[p->value].gradient = c->first[gradient] + b - 1;
  }
}

static void cut_params(const cutting *c) {
  enum { WEIGHT = 1 };
  const fsdp_graph *g = c->graph;
  for (int n = 0; n < g->forward_count; n++) {
    const fsdp_node *node = &g->forward[n];
    if (!fsdp_op_is_grouped(node->kind)) continue;
    const fsdp_value *weight = &g->values[node->operands[WEIGHT].value];
    // Further waves use the same ones.
    if (!g->params[weight->param].expert_block) cut_param(c, weight->param);
  }
}

// ---- Nodes

// Whether the op works on the rows of its experts alone.
static bool is_cut(const fsdp_node *node) {
  return fsdp_op_offsets_operand(node->kind) >= 0;
}

// What of a node is block `block`'s. Of all blocks the first to be done writes a value, and the others write
// beside it; rows of weights' gradients are zero but for the block's own, and are added.
static fsdp_node node_of(const cutting *c, const fsdp_node *whole, int block, bool is_first) {
  fsdp_node node = *whole;
  node.attrs.held_experts = c->held;
  node.attrs.first_expert = begin_of(c, block);
  node.attrs.experts = begin_of(c, block + 1) - begin_of(c, block);
  for (int o = 0; o < node.operand_count; o++) {
    fsdp_node_operand *operand = &node.operands[o];
    const int first = operand->value < c->values ? c->first[operand->value] : 0;
    if (first && block > 0) operand->value = first + block - 1;
    if (!first && !is_first && operand->access == FSDP_WRITE) operand->access = FSDP_UPDATE;
  }
  return node;
}

typedef struct node_list {
  fsdp_node *nodes;
  int count, capacity;
} node_list;

static void append(node_list *list, fsdp_node node) {
  list->nodes = fsdp_grow(list->nodes, list->count + 1, &list->capacity, sizeof *list->nodes);
  list->nodes[list->count++] = node;
}

// Nodes that follow each other are done for one block after the other, in the backward from the last on.
// at[n * count + b]: where block b of node n lies; NULL: not wanted.
static node_list cut_nodes(const cutting *c, const fsdp_node *nodes, int count, bool is_backward, int *at) {
  node_list list = {0};
  for (int n = 0, end; n < count; n = end) {
    for (end = n; end < count && is_cut(&nodes[end]);) end++;
    if (end == n) {
      for (int b = 0; b < c->count && at; b++) at[n * c->count + b] = list.count;
      append(&list, nodes[end++]);
      continue;
    }
    for (int i = 0; i < c->count; i++) {
      const int block = is_backward ? c->count - 1 - i : i;
      for (int m = n; m < end; m++) {
        if (at) at[m * c->count + block] = list.count;
        append(&list, node_of(c, &nodes[m], block, i == 0));
      }
    }
  }
  return list;
}

static int block_at(const cutting *c, int64_t first_expert) {
  int block = 0;
  while (begin_of(c, block) != first_expert) block++;
  return block;
}

static void take(node_list list, fsdp_node **nodes, int *count, int *capacity) {
  free(*nodes);
  *nodes = list.nodes, *count = list.count, *capacity = list.capacity;
}

void fsdp_expert_blocks_cut(fsdp_graph *graph, int count) {
  cutting c = {.graph = graph, .count = count, .held = fsdp_expert_blocks_held(graph)};
  if (count <= 1) return;
  FSDP_CHECK(count <= c.held && graph->part_count == graph->param_count, "%d blocks of %lld experts", count,
             (long long)c.held);
  c.values = graph->value_count;
  c.first = fsdp_alloc_zeroed((size_t)c.values, sizeof *c.first);
  cut_params(&c);
  int *at = fsdp_alloc((size_t)graph->forward_count * (size_t)count * sizeof *at);
  take(cut_nodes(&c, graph->forward, graph->forward_count, false, at), &graph->forward, &graph->forward_count,
       &graph->forward_capacity);
  take(cut_nodes(&c, graph->backward, graph->backward_count, true, NULL), &graph->backward,
       &graph->backward_count, &graph->backward_capacity);
  for (int n = 0; n < graph->backward_count; n++) {
    fsdp_node *node = &graph->backward[n];
    const int block = node->attrs.held_experts ? block_at(&c, node->attrs.first_expert) : 0;
    node->forward = at[node->forward * count + block];
  }
  free(at);
  free(c.first);
}
