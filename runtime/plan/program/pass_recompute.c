// What the backward reads and the forward did not save is made again: the nodes that made it are repeated, in
// their order, before the first backward node that reads it. If they read something that was not saved
// either, that comes first. Nothing is made twice. Of what blocks of experts make, each in its own rows, a
// block's backward finds its part made again, so that no weights but its own are gathered for it.
#include "runtime/base/check.h"
#include "runtime/base/size.h"
#include "runtime/plan/program/passes.h"

#include <stdlib.h>

typedef struct recomputation {
  step_builder *s;
  fsdp_uses uses;
  int tensor_count; // when the pass began
  int origin_count;
  int *again; // by tensor: the tensor that holds it recomputed, or -1
  // By tensor: from which block of experts on it was recomputed, and from which on backward nodes have put
  // something else (a gradient) in its place. Blocks count by their first experts, and the last one is first.
  int64_t *made_from, *spent_from;
} recomputation;

#define ALL_BLOCKS INT64_MIN // all rows
#define NO_BLOCK   INT64_MAX

// The block whose rows a node works on.
static int64_t block_of(const fsdp_list_node *node) {
  const bool is_op = node->instr.kind == FSDP_INSTR_OP;
  return is_op && node->instr.attrs.held_experts ? node->instr.attrs.first_expert : ALL_BLOCKS;
}

static bool is_saved(const step_builder *s, int tensor) {
  return s->fate[tensor] == FSDP_FATE_KEEP || s->fate[tensor] == FSDP_FATE_OFFLOAD;
}

// Whether a tensor is made by a layer's forward and not there in its backward.
static bool is_dropped(const recomputation *r, int tensor) {
  const step_builder *s = r->s;
  if (tensor < 0 || tensor >= r->tensor_count) return false;
  if (s->program->tensors[tensor].category != FSDP_CATEGORY_ACTIVATIONS || is_saved(s, tensor)) return false;
  int node = fsdp_uses_definition(&r->uses, &s->nodes, tensor);
  return node != FSDP_NO_NODE && s->nodes.nodes[node].block >= 0 && !s->nodes.nodes[node].is_backward;
}

// The node that recomputes `node`, or only what remains of it if it made something that was saved.
static fsdp_list_node recomputing(const recomputation *r, const fsdp_list_node *node) {
  fsdp_list_node again = *node;
  again.is_backward = true;
  again.origin += r->origin_count;
  bool saved[FSDP_OP_MAX_OPERANDS] = {false};
  for (int o = 0; o < node->operand_count; o++)
    saved[o] = node->operands[o].access == FSDP_WRITE && node->operands[o].tensor >= 0 &&
               is_saved(r->s, node->operands[o].tensor);
  fsdp_op_remainder left;
  if (!fsdp_op_remainder_of(node->instr.op, saved, &left)) return again;
  again.instr.op = left.kind;
  again.operand_count = left.operand_count;
  for (int o = 0; o < left.operand_count; o++) {
    again.operands[o] = node->operands[left.operands[o]];
    // A result that what remains takes as an input is read.
    if (saved[left.operands[o]]) again.operands[o].access = fsdp_op_letters_of(left.kind)->operands[o].access;
  }
  return again;
}

// Readers of a dropped tensor now read the recomputed one.
static void rename_operands(const recomputation *r, fsdp_list_node *node) {
  for (int o = 0; o < node->operand_count; o++) {
    int tensor = node->operands[o].tensor;
    if (tensor >= 0 && tensor < r->tensor_count && r->again[tensor] >= 0)
      node->operands[o].tensor = r->again[tensor];
  }
}

static void remake(recomputation *r, int tensor, int64_t block);

// Repeats a forward node at the cursor, after what it reads of the wanted block; it writes new tensors. Where
// all blocks are wanted, as for what is gathered of their rows, so they are of what each of them reads.
static void repeat(recomputation *r, int n, int64_t wanted) {
  fsdp_program *program = r->s->program;
  fsdp_list_node again = recomputing(r, &r->s->nodes.nodes[n]);
  const int64_t block = block_of(&again);
  for (int o = 0; o < again.operand_count; o++) {
    int tensor = again.operands[o].tensor;
    if (again.operands[o].access != FSDP_READ || tensor < 0) continue;
    const int64_t spent = r->spent_from[tensor];
    FSDP_CHECK(spent == NO_BLOCK || (block != ALL_BLOCKS && block < spent),
               "%s is recomputed from what is no longer there", program->tensors[tensor].name);
    if (is_dropped(r, tensor)) remake(r, tensor, wanted);
  }
  for (int o = 0; o < again.operand_count; o++) {
    int tensor = again.operands[o].tensor;
    if (again.operands[o].access == FSDP_READ || tensor < 0) continue;
    // The block that is first here may not have been in the forward.
    if (block != ALL_BLOCKS && is_dropped(r, tensor))
      again.operands[o].access = r->again[tensor] < 0 ? FSDP_WRITE : FSDP_UPDATE;
    if (again.operands[o].access != FSDP_WRITE || r->again[tensor] >= 0) continue;
    fsdp_tensor copy = program->tensors[tensor];
    int made = fsdp_program_tensor(program, &copy);
    // What was saved is written once more beside it, and its readers keep reading what was saved.
    if (is_saved(r->s, tensor))
      again.operands[o].tensor = made;
    else
      r->again[tensor] = made;
    if (block == ALL_BLOCKS && !is_saved(r->s, tensor)) r->made_from[tensor] = ALL_BLOCKS;
  }
  rename_operands(r, &again);
  fsdp_nodes_insert(&r->s->nodes, &again);
}

// Repeats, at the cursor, every forward node that wrote the tensor (the slices of a gemm, and what works on
// it in place), unless that was done before; of what blocks of experts wrote, that of `block` alone.
static void remake(recomputation *r, int tensor, int64_t block) {
  const fsdp_list_node *definition = &r->s->nodes.nodes[fsdp_uses_definition(&r->uses, &r->s->nodes, tensor)];
  const int64_t wanted = block_of(definition) == ALL_BLOCKS ? ALL_BLOCKS : block, made = r->made_from[tensor];
  if (made <= wanted) return;
  r->made_from[tensor] = wanted;
  int count;
  const fsdp_use *use = fsdp_uses_of(&r->uses, tensor, &count);
  for (int i = 0; i < count; i++) {
    const fsdp_list_node *node = &r->s->nodes.nodes[use[i].node];
    if (node->is_backward) break;
    if (node->operands[use[i].operand].access == FSDP_READ) continue;
    if (wanted != ALL_BLOCKS ? block_of(node) == wanted : block_of(node) < made)
      repeat(r, use[i].node, wanted);
  }
}

// Remakes what nodes [begin, end) of one origin read, before all of them.
static void serve_origin(recomputation *r, int begin, int end) {
  fsdp_nodes *list = &r->s->nodes;
  list->cursor = begin;
  for (int n = begin; n != end; n = list->nodes[n].next) {
    const int64_t block = block_of(&list->nodes[n]);
    for (int o = 0; o < list->nodes[n].operand_count; o++)
      if (is_dropped(r, list->nodes[n].operands[o].tensor))
        remake(r, list->nodes[n].operands[o].tensor, block);
    for (int o = 0; o < list->nodes[n].operand_count; o++) {
      const fsdp_operand *operand = &list->nodes[n].operands[o];
      if (operand->access != FSDP_UPDATE || operand->tensor < 0 || operand->tensor >= r->tensor_count)
        continue;
      r->spent_from[operand->tensor] = fsdp_min_i64(r->spent_from[operand->tensor], block);
    }
    rename_operands(r, &list->nodes[n]);
  }
  list->cursor = FSDP_NO_NODE;
}

void pass_recompute(step_builder *s) {
  fsdp_nodes *list = &s->nodes;
  if (!s->is_training) return;
  recomputation r = {.s = s,
                     .uses = fsdp_uses_create(list, s->program->tensor_count, s->units->count),
                     .tensor_count = s->program->tensor_count,
                     .again = fsdp_alloc((size_t)s->program->tensor_count * sizeof(int)),
                     .made_from = fsdp_alloc((size_t)s->program->tensor_count * sizeof(int64_t)),
                     .spent_from = fsdp_alloc((size_t)s->program->tensor_count * sizeof(int64_t))};
  for (int t = 0; t < r.tensor_count; t++) {
    r.again[t] = -1;
    r.made_from[t] = r.spent_from[t] = NO_BLOCK;
  }
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next)
    if (list->nodes[n].origin >= r.origin_count) r.origin_count = list->nodes[n].origin + 1;
  for (int n = list->first; n != FSDP_NO_NODE;) {
    int end = fsdp_nodes_after_origin(list, n);
    if (list->nodes[n].is_backward) serve_origin(&r, n, end);
    n = end;
  }
  fsdp_uses_release(&r.uses);
  free(r.again);
  free(r.made_from);
  free(r.spent_from);
}
