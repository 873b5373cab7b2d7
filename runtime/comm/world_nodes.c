// Which rank is on which node.
#include "runtime/base/check.h"
#include "runtime/comm/world_internal.h"

#include <stdlib.h>

// Numbers nodes by their lowest rank.
static void number_nodes(fsdp_world *world, int first_local) {
  fsdp_world_nodes *nodes = &world->nodes;
  size_t size = (size_t)world->size;
  int *first = fsdp_alloc(size * sizeof *first), local = 0; // by rank: the lowest of its node
  fsdp_world_gather(world, &first_local, (int64_t)sizeof first_local, first);
  nodes->index = fsdp_alloc(size * sizeof *nodes->index);
  nodes->first = fsdp_alloc(size * sizeof *nodes->first);
  nodes->local_ranks = fsdp_alloc((size_t)world->local_size * sizeof *nodes->local_ranks);
  world->node_count = 0;
  bool even = true;
  for (int r = 0; r < world->size; r++) {
    FSDP_CHECK(first[r] >= 0 && first[r] <= r && first[first[r]] == first[r], "rank %d of the node of %d", r,
               first[r]);
    if (first[r] == r) nodes->first[world->node_count] = r;
    nodes->index[r] = first[r] == r ? world->node_count++ : nodes->index[first[r]];
    even = even && first[r] == r / world->local_size * world->local_size;
    if (first[r] != first_local) continue;
    FSDP_CHECK(local < world->local_size, "more than the node's %d ranks", world->local_size);
    nodes->local_ranks[local++] = r;
  }
  world->node_index = nodes->index[world->rank];
  free(first);
  // Nodes may differ in size: all ranks must get the same answer.
  world->even_nodes = fsdp_world_min(world, even) != 0;
}

// The name of a node is its first rank's. The first ranks exchange names, and broadcast them on their nodes.
static void exchange_hosts(fsdp_world *world) {
  fsdp_world_nodes *nodes = &world->nodes;
  nodes->hosts = fsdp_alloc((size_t)world->node_count * sizeof *nodes->hosts);
  fsdp_peers leaders = fsdp_world_among(world, nodes->first, world->node_count);
  fsdp_exchange_gather(&leaders, world->host, FSDP_HOST_NAME_BYTES, nodes->hosts);
  fsdp_peers node = fsdp_world_among(world, nodes->local_ranks, world->local_size);
  fsdp_exchange_broadcast(&node, 0, nodes->hosts, world->node_count * (int64_t)sizeof *nodes->hosts);
}

void fsdp_world_find_nodes(fsdp_world *world, int first_local) {
  number_nodes(world, first_local);
  exchange_hosts(world);
}

void fsdp_world_release_nodes(fsdp_world *world) {
  free(world->nodes.index);
  free(world->nodes.first);
  free(world->nodes.local_ranks);
  free(world->nodes.hosts);
}
