#include "runtime/plan/program/nodes.h"

#include "runtime/base/check.h"
#include "runtime/base/size.h"

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

int fsdp_nodes_insert(fsdp_nodes *list, const fsdp_list_node *node) {
  fsdp_list_node copy = *node; // it may be one of the array that moves
  if (list->count == list->capacity) {
    list->capacity = list->capacity ? 2 * list->capacity : 256;
    list->nodes = fsdp_realloc(list->nodes, (size_t)list->capacity * sizeof *list->nodes);
  }
  int index = list->count++, next = list->cursor;
  copy.next = next;
  copy.previous = next == FSDP_NO_NODE ? list->last : list->nodes[next].previous;
  *(copy.previous == FSDP_NO_NODE ? &list->first : &list->nodes[copy.previous].next) = index;
  *(next == FSDP_NO_NODE ? &list->last : &list->nodes[next].previous) = index;
  list->nodes[index] = copy;
  return index;
}

void fsdp_nodes_remove(fsdp_nodes *list, int node) {
  int previous = list->nodes[node].previous, next = list->nodes[node].next;
  FSDP_CHECK(list->cursor != node, "the node at the cursor is removed");
  *(previous == FSDP_NO_NODE ? &list->first : &list->nodes[previous].next) = next;
  *(next == FSDP_NO_NODE ? &list->last : &list->nodes[next].previous) = previous;
}

int fsdp_nodes_after_origin(const fsdp_nodes *list, int node) {
  int origin = list->nodes[node].origin;
  while (node != FSDP_NO_NODE && list->nodes[node].origin == origin) node = list->nodes[node].next;
  return node;
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
