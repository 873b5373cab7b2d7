// The node's board, and the watch of a world of several ranks.
#include "runtime/base/check.h"
#include "runtime/base/shared_file.h"
#include "runtime/comm/world_internal.h"
#include "runtime/watch/guard.h"
#include "runtime/watch/launcher_end.h"
#include "runtime/watch/start_timer.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What the ranks of a node exchange first.
typedef struct introduction {
  int process;
  fsdp_shared_file board; // made by the first rank of each node
} introduction;

// Makes the node's board and opens it. To the watch, a rank that cannot open its node's board is a separate
// node. process[local_size] are the ids of the node's ranks. Returns whether the board is shared.
static bool open_board(fsdp_world *world, int *process) {
  size_t count = (size_t)world->local_size;
  world->board_bytes = fsdp_watch_memory_bytes(world->size);
  int file = world->local_rank == 0 ? fsdp_shared_file_create("fsdp-board", world->board_bytes) : -1;
  introduction mine = {.process = getpid(), .board = fsdp_shared_file_describe(file)};
  introduction *ranks = fsdp_alloc(count * sizeof *ranks);
  fsdp_world_gather_node(world, &mine, (int64_t)sizeof mine, ranks);
  for (size_t i = 0; i < count; i++) process[i] = ranks[i].process;
  int opened = fsdp_shared_file_open(ranks[0].process, &ranks[0].board);
  world->board = fsdp_shared_file_map(opened, world->board_bytes);
  bool shares = world->board != NULL;
  if (!shares) {
    world->board =
        fsdp_shared_file_map(fsdp_shared_file_create("fsdp-board", world->board_bytes), world->board_bytes);
    FSDP_NEED_MEMORY(world->board, "the progress board, %lld bytes", (long long)world->board_bytes);
  }
  fsdp_world_barrier(world);
  if (file >= 0) close(file); // all have opened it
  free(ranks);
  return shares;
}

// The watch's nodes, by rank: those of the world, but for ranks that share no board.
static int *find_watch_nodes(fsdp_world *world, bool shares) {
  const fsdp_world_nodes *nodes = &world->nodes;
  int *node = fsdp_alloc((size_t)world->size * sizeof *node);
  for (int r = 0; r < world->size; r++) node[r] = nodes->first[nodes->index[r]];
  if (fsdp_world_min(world, shares) != 0) return node;
  unsigned char own = shares, *all = fsdp_alloc((size_t)world->size);
  fsdp_world_gather(world, &own, 1, all);
  for (int r = world->size - 1; r >= 0; r--)
    if (!all[r] || !all[node[r]]) node[r] = r;
  free(all);
  return node;
}

// The guard of this rank's node, of which this is the first rank.
static void start_guard(const fsdp_world *world, const int *node, const int *process, bool launched) {
  int *ids = fsdp_alloc_zeroed((size_t)world->size, sizeof *ids);
  for (int i = 0; i < world->local_size; i++) ids[world->nodes.local_ranks[i]] = process[i];
  fsdp_guard_start(&(fsdp_guard_config){.rank = world->rank,
                                        .size = world->size,
                                        .node = node,
                                        .process = ids,
                                        .host = world->host,
                                        .memory = world->board,
                                        .owns_launcher = launched});
  free(ids);
}

void fsdp_world_watch_start(fsdp_world *world) {
  int size = world->size, rank = world->rank;
  fsdp_launcher launcher = fsdp_launcher_find();
  bool launched = fsdp_world_min(world, launcher.is_parent) != 0; // a child of mpirun or orted
  fsdp_launcher_close(&launcher);
  int *process = fsdp_alloc((size_t)world->local_size * sizeof *process);
  bool shares = open_board(world, process);
  int *node = find_watch_nodes(world, shares), largest = (int)fsdp_world_max(world, world->local_size);
  const char **hosts = fsdp_alloc((size_t)size * sizeof *hosts);
  bool several = false;
  for (int r = 0; r < size; r++) {
    several = several || node[r] != node[0];
    hosts[r] = world->nodes.hosts[world->nodes.index[r]];
  }
  if (several) fsdp_world_open_mail(world, fsdp_watch_mail_bytes(largest));
  // Behind all exchanges: a rank that waits in one has no watch that tells the guard when mpirun ends it.
  if (node[rank] == rank) start_guard(world, node, process, launched);
  fsdp_watch_config config = {.rank = rank,
                              .size = size,
                              .node = node,
                              .hosts = hosts,
                              .memory = world->board,
                              .mail = several ? &world->mail : NULL};
  fsdp_start_timer_end(); // from here on the watches of the others see how this process ends
  world->watch = fsdp_watch_start(&config);
  free(hosts);
  free(node);
  free(process);
}

void fsdp_world_watch_stop(fsdp_world *world) {
  if (!world->watch) return;
  fsdp_watch_stop(world->watch);
  world->watch = NULL;
  munmap(world->board, (size_t)world->board_bytes);
}
