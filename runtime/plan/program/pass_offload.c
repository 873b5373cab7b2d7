// Saved activations that wait for their backward in host memory.
//
//   forward    | layer i | ... | layer i + N |            N: --prefetch
//     compute   makes it
//     save       copies it to the host .......| the device's memory is free from here
//   backward   | layer i + N | ... | layer i |
//     load         |copies it back into new device memory
//     compute                           |reads that
//
// The copy down may take the time of N layers without stopping anyone, and so may the copy up, which begins
// where layer i + N is as far as layer i is at the first reader. What the last N layers save would have to
// come back before it has left: it is kept (saving.h).
#include "runtime/base/check.h"
#include "runtime/plan/program/make.h"
#include "runtime/plan/program/passes.h"

#include <stdlib.h>

typedef struct offloading {
  step_builder *s;
  fsdp_uses uses;
  int *place, *node_at; // by node: its place in the list when the pass began; and the node of each place
  int *forward_begin;   // by layer: its first node in the forward, and in the backward
  int *backward_begin;  // (recomputation included)
  int first_backward;   // node
} offloading;

// What one value's way to the host and back is made of.
typedef struct journey {
  int tensor;
  int save, load; // nodes before which the copies go
  int read;       // the place of its first reader in the backward
} journey;

// The node at which the backward of `layer` is as far as that of its own layer is at `node`.
static int same_progress(const offloading *f, int node, int layer) {
  const fsdp_nodes *list = &f->s->nodes;
  int begin = f->place[f->backward_begin[list->nodes[node].block]];
  int place = f->place[f->backward_begin[layer]], steps = f->place[node] - begin;
  while (steps-- > 0 && list->nodes[f->node_at[place + 1]].block == layer) place++;
  return f->node_at[place];
}

// The nodes around which tensor `t` travels.
static journey plan_journey(const offloading *f, int t) {
  const step_builder *s = f->s;
  const fsdp_nodes *list = &s->nodes;
  int count, last_forward = FSDP_NO_NODE, first_read = FSDP_NO_NODE;
  const fsdp_use *use = fsdp_uses_of(&f->uses, t, &count);
  for (int i = 0; i < count; i++) {
    if (!list->nodes[use[i].node].is_backward) {
      last_forward = use[i].node;
    } else if (first_read == FSDP_NO_NODE) {
      first_read = use[i].node;
    }
  }
  FSDP_CHECK(last_forward != FSDP_NO_NODE && first_read != FSDP_NO_NODE && list->nodes[first_read].block >= 0,
             "%s is offloaded, and no layer's backward reads it", s->program->tensors[t].name);
  int ahead = s->config->prefetch, layer = list->nodes[first_read].block, next = layer + 1 + ahead;
  journey j = {.tensor = t, .read = f->place[first_read]};
  j.save = next < s->graph->block_count ? f->forward_begin[next] : f->first_backward;
  if (f->place[j.save] <= f->place[last_forward]) j.save = fsdp_nodes_after_origin(list, last_forward);
  j.load = ahead > 0 ? same_progress(f, first_read, layer + ahead) : first_read;
  // A layer that is recomputed for a later one, which reads what it made, comes before its turn.
  if (f->place[j.load] > j.read) j.load = first_read;
  return j;
}

static void insert_copies(offloading *f, const journey *j) {
  step_builder *s = f->s;
  fsdp_program *program = s->program;
  int count;
  const fsdp_use *use = fsdp_uses_of(&f->uses, j->tensor, &count);
  fsdp_dtype dtype = s->nodes.nodes[use[0].node].operands[use[0].operand].dtype;
  fsdp_tensor back = program->tensors[j->tensor], host = back;
  host.space = FSDP_SPACE_HOST;
  int on_host = fsdp_program_tensor(program, &host), again = fsdp_program_tensor(program, &back);
  s->nodes.cursor = j->save;
  int save = make_copy_saved(s, FSDP_INSTR_D2H, j->tensor, on_host, dtype);
  s->nodes.cursor = fsdp_nodes_origin_begin(&s->nodes, j->load);
  int load = make_copy_saved(s, FSDP_INSTR_H2D, on_host, again, dtype);
  s->nodes.cursor = FSDP_NO_NODE;
  s->nodes.nodes[save].instr.module = s->nodes.nodes[load].instr.module = back.module;
  s->nodes.nodes[load].is_backward = s->nodes.nodes[load].is_bounded = true;
  for (int i = 0; i < count; i++) {
    fsdp_list_node *node = &s->nodes.nodes[use[i].node];
    if (node->is_backward) node->operands[use[i].operand].tensor = again;
  }
}

static offloading survey(step_builder *s) {
  const fsdp_nodes *list = &s->nodes;
  size_t layers = (size_t)s->graph->block_count;
  offloading f = {.s = s,
                  .uses = fsdp_uses_create(list, s->program->tensor_count, s->units->count),
                  .place = fsdp_alloc((size_t)list->count * sizeof(int)),
                  .node_at = fsdp_alloc((size_t)list->count * sizeof(int)),
                  .forward_begin = fsdp_alloc(layers * sizeof(int)),
                  .backward_begin = fsdp_alloc(layers * sizeof(int)),
                  .first_backward = FSDP_NO_NODE};
  for (size_t b = 0; b < layers; b++) f.forward_begin[b] = f.backward_begin[b] = FSDP_NO_NODE;
  int place = 0;
  for (int n = list->first; n != FSDP_NO_NODE; n = list->nodes[n].next) {
    const fsdp_list_node *node = &list->nodes[n];
    f.node_at[place] = n;
    f.place[n] = place++;
    if (node->is_backward && f.first_backward == FSDP_NO_NODE) f.first_backward = n;
    if (node->block < 0) continue;
    int *begin = node->is_backward ? &f.backward_begin[node->block] : &f.forward_begin[node->block];
    if (*begin == FSDP_NO_NODE) *begin = n;
  }
  return f;
}

static int by_read(const void *a, const void *b) {
  const journey *x = a, *y = b;
  return (x->read > y->read) - (x->read < y->read);
}

void pass_offload(step_builder *s) {
  if (!s->is_training) return;
  offloading f = survey(s);
  int tensor_count = s->program->tensor_count, count = 0;
  journey *journeys = fsdp_alloc((size_t)tensor_count * sizeof *journeys);
  for (int t = 0; t < tensor_count && t < s->fate_capacity; t++) {
    int uses;
    fsdp_uses_of(&f.uses, t, &uses);
    if (s->fate[t] == FSDP_FATE_OFFLOAD && uses) journeys[count++] = plan_journey(&f, t);
  }
  // Loads go up in the order in which the backward reads them.
  qsort(journeys, (size_t)count, sizeof *journeys, by_read);
  for (int i = 0; i < count; i++) insert_copies(&f, &journeys[i]);
  fsdp_uses_release(&f.uses);
  free(f.place), free(f.node_at), free(f.forward_begin), free(f.backward_begin);
  free(journeys);
}
