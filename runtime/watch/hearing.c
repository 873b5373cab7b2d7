#include "runtime/watch/hearing.h"

#include "runtime/base/check.h"

#include <stdio.h>
#include <stdlib.h>

static int log2_of(int distance) {
  int order = 0;
  while (distance >> order > 1) order++;
  return order;
}

static bool is_power(int distance) {
  return (distance & (distance - 1)) == 0;
}

// Whether two nodes hear of each other; a node does of itself. *order: see fsdp_heard.
static bool hears(int from, int to, int nodes, int circle, int *order) {
  int ahead = (to - from + nodes) % nodes, back = nodes - ahead;
  bool is_ahead = is_power(ahead);
  *order = nodes <= circle || ahead == 0 ? 0 : is_ahead ? 2 * log2_of(ahead) : 2 * log2_of(back) + 1;
  return nodes <= circle || is_ahead || is_power(back);
}

// The nodes' numbers by rank; returns how many there are.
static int number_nodes(const fsdp_hearing_config *config, int *number, int *node_ranks_max) {
  int *ranks = fsdp_alloc_zeroed((size_t)config->size, sizeof *ranks), nodes = 0; // ranks: by node
  *node_ranks_max = 0;
  for (int r = 0; r < config->size; r++) {
    number[r] = config->node[r] == r ? nodes++ : number[config->node[r]];
    if (++ranks[number[r]] > *node_ranks_max) *node_ranks_max = ranks[number[r]];
  }
  free(ranks);
  return nodes;
}

void fsdp_hearing_find(const fsdp_hearing_config *config, fsdp_hearing *hearing) {
  *hearing = (fsdp_hearing){0};
  int *number = fsdp_alloc((size_t)config->size * sizeof *number), count = 0, order;
  int nodes = number_nodes(config, number, &hearing->node_ranks_max), mine = number[config->rank];
  for (int r = 0; r < config->size; r++) count += hears(number[r], mine, nodes, config->circle, &order);
  hearing->heard = fsdp_alloc((size_t)count * sizeof *hearing->heard);
  for (int r = 0; r < config->size; r++) {
    if (!hears(number[r], mine, nodes, config->circle, &order)) continue;
    if (r == config->rank) hearing->self = hearing->count;
    fsdp_heard *heard = &hearing->heard[hearing->count++];
    *heard = (fsdp_heard){.rank = r, .node = config->node[r], .local = number[r] == mine, .order = order};
    snprintf(heard->host, sizeof heard->host, "%s", config->hosts[r]);
  }
  if (nodes > config->circle) hearing->rounds = log2_of(nodes - 1) + 1;
  free(number);
}

void fsdp_hearing_release(fsdp_hearing *hearing) {
  free(hearing->heard);
}

int fsdp_hearing_index(const fsdp_hearing *hearing, int rank) {
  int low = 0, high = hearing->count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (hearing->heard[middle].rank < rank)
      low = middle + 1;
    else
      high = middle;
  }
  return low < hearing->count && hearing->heard[low].rank == rank ? low : -1;
}
