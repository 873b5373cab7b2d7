#include "runtime/plan/program/nodes.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

void fsdp_nodes_clear(fsdp_nodes *list) {
  list->count = 0;
  list->first = list->last = list->cursor = FSDP_NO_NODE;
}

void fsdp_nodes_release(fsdp_nodes *list) {
  free(list->nodes);
  *list = (fsdp_nodes){0};
}

void fsdp_nodes_reserve(fsdp_nodes *list, int nodes) {
  list->nodes = fsdp_grow(list->nodes, nodes, &list->capacity, sizeof *list->nodes);
}

int fsdp_nodes_add(fsdp_nodes *list) {
  list->nodes = fsdp_grow(list->nodes, list->count + 1, &list->capacity, sizeof *list->nodes);
  const int index = list->count++, next = list->cursor;
  const int previous = next == FSDP_NO_NODE ? list->last : list->nodes[next].previous;
  *(previous == FSDP_NO_NODE ? &list->first : &list->nodes[previous].next) = index;
  *(next == FSDP_NO_NODE ? &list->last : &list->nodes[next].previous) = index;
  list->nodes[index].previous = previous;
  list->nodes[index].next = next;
  return index;
}

int fsdp_nodes_insert(fsdp_nodes *list, const fsdp_list_node *node) {
  const int index = fsdp_nodes_add(list);
  fsdp_list_node *made = &list->nodes[index];
  const int previous = made->previous, next = made->next;
  memcpy(made, node,
         offsetof(fsdp_list_node, operands) + (size_t)node->operand_count * sizeof *node->operands);
  made->previous = previous;
  made->next = next;
  return index;
}

void fsdp_nodes_remove(fsdp_nodes *list, int node) {
  int previous = list->nodes[node].previous, next = list->nodes[node].next;
  FSDP_CHECK(list->cursor != node, "the node at the cursor is removed");
  *(previous == FSDP_NO_NODE ? &list->first : &list->nodes[previous].next) = next;
  *(next == FSDP_NO_NODE ? &list->last : &list->nodes[next].previous) = previous;
}

int fsdp_nodes_origin_begin(const fsdp_nodes *list, int node) {
  const fsdp_list_node *nodes = list->nodes;
  while (nodes[node].origin >= 0 && nodes[node].previous != FSDP_NO_NODE &&
         nodes[nodes[node].previous].origin == nodes[node].origin)
    node = nodes[node].previous;
  return node;
}

int fsdp_nodes_after_origin(const fsdp_nodes *list, int node) {
  int origin = list->nodes[node].origin;
  while (node != FSDP_NO_NODE && list->nodes[node].origin == origin) node = list->nodes[node].next;
  return node;
}

static bool is_named(int tensor, int unit_count, unsigned named) {
  int weights = fsdp_weights_unit(tensor), gradient = fsdp_gradient_unit(tensor);
  return ((named & FSDP_NAMED_WEIGHTS) && weights >= 0 && weights < unit_count) ||
         ((named & FSDP_NAMED_GRADIENTS) && gradient >= 0 && gradient < unit_count);
}

// `written`: by tensor, by the nodes before.
static void check_node(const fsdp_list_node *node, const fsdp_program *program, int unit_count,
                       unsigned named, bool *written, const char *pass) {
  for (int o = 0; o < node->operand_count; o++) {
    const fsdp_operand *operand = &node->operands[o];
    if (operand->tensor < 0 && is_named(operand->tensor, unit_count, named)) continue;
    FSDP_CHECK(operand->tensor >= 0 && operand->tensor < program->tensor_count,
               "pass %s: operand %d of %s names %d, which is no tensor", pass, o,
               fsdp_instr_name(&node->instr), operand->tensor);
    const fsdp_tensor *tensor = &program->tensors[operand->tensor];
    FSDP_CHECK(
        !(operand->access & FSDP_READ) || written[operand->tensor] || tensor->lifetime != FSDP_LIVE_SECTION,
        "pass %s: %s reads %s, which nothing has written", pass, fsdp_instr_name(&node->instr), tensor->name);
  }
  for (int o = 0; o < node->operand_count; o++)
    if (node->operands[o].tensor >= 0 && (node->operands[o].access & FSDP_WRITE))
      written[node->operands[o].tensor] = true;
}

void fsdp_nodes_check_origins(const fsdp_nodes *list) {
  int most = -1, last = -1;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next)
    if (list->nodes[n].origin > most) most = list->nodes[n].origin;
  bool *began = fsdp_alloc_zeroed((size_t)most + 2, sizeof *began);
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    const int origin = list->nodes[n].origin;
    if (origin < 0) continue;
    FSDP_CHECK(origin == last || !began[origin], "nodes of origin %d are apart", origin);
    began[last = origin] = true;
  }
  free(began);
}

void fsdp_nodes_check(const fsdp_nodes *list, const fsdp_program *program, int unit_count, unsigned named,
                      const char *pass) {
  bool *written = fsdp_alloc_zeroed((size_t)program->tensor_count + 1, sizeof *written);
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next)
    check_node(&list->nodes[n], program, unit_count, named, written, pass);
  free(written);
}

static int key_of(const fsdp_uses *uses, int tensor) {
  int key = tensor >= 0 ? tensor : uses->tensor_count - 2 - tensor;
  FSDP_CHECK(tensor != -1 && key < uses->key_count, "tensor %d of %d in the list", tensor,
             uses->tensor_count);
  return key;
}

fsdp_uses fsdp_uses_create(const fsdp_nodes *list, int tensor_count, int unit_count) {
  fsdp_uses uses = {.tensor_count = tensor_count, .key_count = tensor_count + 2 * unit_count};
  uses.first = fsdp_alloc_zeroed((size_t)uses.key_count + 1, sizeof *uses.first);
  int total = 0;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    for (int o = 0; o < list->nodes[n].operand_count; o++, total++)
      uses.first[key_of(&uses, list->nodes[n].operands[o].tensor) + 1]++;
  }
  for (int k = 0; k < uses.key_count; k++) uses.first[k + 1] += uses.first[k];
  uses.uses = fsdp_alloc((size_t)total * sizeof *uses.uses);
  int *next = fsdp_alloc((size_t)uses.key_count * sizeof *next); // where each key's next use goes
  memcpy(next, uses.first, (size_t)uses.key_count * sizeof *next);
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    for (int o = 0; o < list->nodes[n].operand_count; o++)
      uses.uses[next[key_of(&uses, list->nodes[n].operands[o].tensor)]++] = (fsdp_use){n, o};
  }
  free(next);
  return uses;
}

void fsdp_uses_release(fsdp_uses *uses) {
  free(uses->first);
  free(uses->uses);
}

const fsdp_use *fsdp_uses_of(const fsdp_uses *uses, int tensor, int *count) {
  int key = key_of(uses, tensor);
  *count = uses->first[key + 1] - uses->first[key];
  return uses->uses + uses->first[key];
}

int fsdp_uses_definition(const fsdp_uses *uses, const fsdp_nodes *list, int tensor) {
  int count;
  const fsdp_use *use = fsdp_uses_of(uses, tensor, &count);
  for (int i = 0; i < count; i++)
    if (list->nodes[use[i].node].operands[use[i].operand].access & FSDP_WRITE) return use[i].node;
  return FSDP_NO_NODE;
}
