// What a block's forward saves for its backward. Without recomputation every activation is kept until its
// last use. With it, a block keeps what its graph marks (its input); the rest is dropped after the forward.
// The nodes that made what the backward reads are repeated, in order, before the block's first backward node.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

#include <stdlib.h>
#include <string.h>

typedef struct recomputation {
  step_builder *s;
  fsdp_uses uses;
  int tensor_count; // when the pass began
  int origin_count;
  bool *needed; // by tensor: dropped, and read by the block's backward
  int *again;   // by tensor: the tensor that holds it recomputed, or -1
} recomputation;

// Whether a tensor is made by the forward of `block` and dropped after it.
static bool is_dropped(const recomputation *r, int tensor, int block) {
  const step_builder *s = r->s;
  if (tensor < 0 || tensor >= r->tensor_count) return false;
  if (s->program->tensors[tensor].category != FSDP_CATEGORY_ACTIVATIONS || s->kept[tensor]) return false;
  int node = fsdp_uses_definition(&r->uses, &s->nodes, tensor);
  return node != FSDP_NO_NODE && s->nodes.nodes[node].block == block && !s->nodes.nodes[node].is_backward;
}

// The node that recomputes `node`, or only what remains of it if it made something that was kept.
static fsdp_list_node recomputing(const recomputation *r, const fsdp_list_node *node) {
  fsdp_list_node again = *node;
  again.is_backward = true;
  again.origin += r->origin_count;
  bool kept[FSDP_OP_MAX_OPERANDS] = {false};
  for (int o = 0; o < node->operand_count; o++) {
    const fsdp_operand *operand = &node->operands[o];
    kept[o] = operand->access == FSDP_WRITE && operand->tensor >= 0 && r->s->kept[operand->tensor];
  }
  fsdp_op_remainder left;
  if (!fsdp_op_remainder_of(node->instr.op, kept, &left)) return again;
  again.instr.op = left.kind;
  again.operand_count = left.operand_count;
  for (int o = 0; o < left.operand_count; o++) {
    again.operands[o] = node->operands[left.operands[o]];
    if (kept[left.operands[o]]) again.operands[o].access = FSDP_READ;
  }
  return again;
}

static bool makes_needed(const recomputation *r, const fsdp_list_node *node) {
  for (int o = 0; o < node->operand_count; o++) {
    const fsdp_operand *operand = &node->operands[o];
    if (operand->access != FSDP_READ && operand->tensor >= 0 && r->needed[operand->tensor]) return true;
  }
  return false;
}

static void need_inputs(recomputation *r, const fsdp_list_node *node, int block) {
  for (int o = 0; o < node->operand_count; o++)
    if (is_dropped(r, node->operands[o].tensor, block)) r->needed[node->operands[o].tensor] = true;
}

// Readers of a dropped tensor now read the recomputed one.
static void rename_reads(const recomputation *r, fsdp_list_node *node) {
  for (int o = 0; o < node->operand_count; o++) {
    int tensor = node->operands[o].tensor;
    if (tensor >= 0 && tensor < r->tensor_count && r->again[tensor] >= 0)
      node->operands[o].tensor = r->again[tensor];
  }
}

// Repeats a forward node at the cursor; it writes new tensors.
static void insert_again(recomputation *r, const fsdp_list_node *node) {
  fsdp_program *program = r->s->program;
  fsdp_list_node again = recomputing(r, node);
  for (int o = 0; o < again.operand_count; o++) {
    const fsdp_operand *operand = &again.operands[o];
    if (operand->access != FSDP_WRITE || r->again[operand->tensor] >= 0) continue;
    FSDP_CHECK(!r->s->kept[operand->tensor], "%s is kept and recomputed",
               program->tensors[operand->tensor].name);
    fsdp_tensor copy = program->tensors[operand->tensor];
    r->again[operand->tensor] = fsdp_program_tensor(program, &copy);
  }
  rename_reads(r, &again);
  fsdp_nodes_insert(&r->s->nodes, &again);
}

// Recomputes `block` before its first backward node, `first`.
static void recompute_block(recomputation *r, int block, int first, int forward_begin) {
  fsdp_nodes *list = &r->s->nodes;
  for (int n = first; n != FSDP_NO_NODE && list->nodes[n].block == block; n = list->nodes[n].next)
    need_inputs(r, &list->nodes[n], block);
  int begin = forward_begin, end = begin, count = 1;
  while (list->nodes[list->nodes[end].next].block == block &&
         !list->nodes[list->nodes[end].next].is_backward) {
    end = list->nodes[end].next;
    count++;
  }
  int *runs = fsdp_alloc((size_t)count * sizeof *runs), run_count = 0; // last first
  for (int n = end;; n = list->nodes[n].previous) {
    fsdp_list_node again = recomputing(r, &list->nodes[n]);
    if (makes_needed(r, &again)) {
      need_inputs(r, &again, block);
      runs[run_count++] = n;
    }
    if (n == begin) break;
  }
  list->cursor = first;
  while (run_count) insert_again(r, &list->nodes[runs[--run_count]]);
  list->cursor = FSDP_NO_NODE;
  for (int n = first; n != FSDP_NO_NODE && list->nodes[n].block == block; n = list->nodes[n].next)
    rename_reads(r, &list->nodes[n]);
  free(runs);
}

void pass_recompute(step_builder *s) {
  fsdp_nodes *list = &s->nodes;
  if (!s->config->recompute_block || !s->is_training) return;
  size_t tensor_count = (size_t)s->program->tensor_count, block_count = (size_t)s->graph->block_count;
  recomputation r = {.s = s,
                     .uses = fsdp_uses_create(list, s->program->tensor_count, s->units->count),
                     .tensor_count = s->program->tensor_count,
                     .needed = fsdp_alloc_zeroed(tensor_count, sizeof(bool)),
                     .again = fsdp_alloc(tensor_count * sizeof(int))};
  for (size_t t = 0; t < tensor_count; t++) r.again[t] = -1;
  int *forward_begin = fsdp_alloc(block_count * sizeof *forward_begin); // first node, by block
  for (size_t b = 0; b < block_count; b++) forward_begin[b] = FSDP_NO_NODE;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    const fsdp_list_node *node = &list->nodes[n];
    if (node->origin >= r.origin_count) r.origin_count = node->origin + 1;
    if (node->block >= 0 && forward_begin[node->block] == FSDP_NO_NODE) forward_begin[node->block] = n;
  }
  int block = -1;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    const fsdp_list_node *node = &list->nodes[n];
    if (!node->is_backward || node->block == block) continue;
    block = node->block;
    if (block >= 0) recompute_block(&r, block, n, forward_begin[block]);
  }
  free(forward_begin);
  fsdp_uses_release(&r.uses);
  free(r.needed);
  free(r.again);
}
