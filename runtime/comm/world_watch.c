// The node's board, and the watch of a world of several ranks.
#include "runtime/base/check.h"
#include "runtime/comm/guard.h"
#include "runtime/comm/launcher_end.h"
#include "runtime/comm/shared_file.h"
#include "runtime/comm/world_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// What ranks exchange first.
typedef struct introduction {
  int process, node;
  bool launched;          // a child of mpirun or orted
  fsdp_shared_file board; // made by the first rank of each node
  char host[FSDP_HOST_NAME_BYTES];
} introduction;

static int first_of_node(const introduction *ranks, int node) {
  int first = 0;
  while (ranks[first].node != node) first++;
  return first;
}

void fsdp_world_watch_start(fsdp_world *world) {
  int size = world->size, rank = world->rank;
  introduction mine = {.process = getpid(), .node = world->node_index, .board = {.descriptor = -1}};
  memcpy(mine.host, world->host, sizeof mine.host);
  fsdp_launcher launcher = fsdp_launcher_find();
  mine.launched = launcher.is_parent;
  fsdp_launcher_close(&launcher);
  world->board_bytes = fsdp_watch_memory_bytes(size);
  int file = world->local_rank == 0 ? fsdp_shared_file_create("fsdp-board", world->board_bytes) : -1;
  mine.board = fsdp_shared_file_describe(file);
  introduction *ranks = fsdp_alloc((size_t)size * sizeof *ranks);
  fsdp_world_gather(world, &mine, (int64_t)sizeof mine, ranks);

  // To the watch, a rank that cannot open its node's board is a separate node.
  const introduction *first = &ranks[first_of_node(ranks, world->node_index)];
  int opened = fsdp_shared_file_open(first->process, &first->board);
  world->board = fsdp_shared_file_map(opened, world->board_bytes);
  unsigned char shares = world->board != NULL, *all = fsdp_alloc((size_t)size);
  if (!shares) {
    world->board =
        fsdp_shared_file_map(fsdp_shared_file_create("fsdp-board", world->board_bytes), world->board_bytes);
    FSDP_CHECK(world->board, "no memory for the progress board, %lld bytes", (long long)world->board_bytes);
  }
  fsdp_world_gather(world, &shares, 1, all);
  if (file >= 0) close(file); // all have opened it: gathering was the proof

  int *node = fsdp_alloc((size_t)size * sizeof *node), *process = fsdp_alloc((size_t)size * sizeof *process);
  char(*hosts)[FSDP_HOST_NAME_BYTES] = fsdp_alloc((size_t)size * sizeof *hosts);
  bool several = false, launched = true;
  for (int r = 0; r < size; r++) {
    int leader = first_of_node(ranks, ranks[r].node);
    node[r] = all[r] && all[leader] ? leader : r;
    several = several || node[r] != node[0];
    launched = launched && ranks[r].launched;
    process[r] = ranks[r].process;
    memcpy(hosts[r], ranks[r].host, sizeof hosts[r]);
  }
  fsdp_guard_config guard = {.rank = rank,
                             .size = size,
                             .node = node,
                             .process = process,
                             .hosts = hosts,
                             .memory = world->board,
                             .owns_launcher = launched};
  if (node[rank] == rank) fsdp_guard_start(&guard);
  if (several) fsdp_world_open_mail(world);
  fsdp_watch_config config = {.rank = rank,
                              .size = size,
                              .node = node,
                              .hosts = hosts,
                              .memory = world->board,
                              .mail = several ? &world->mail : NULL};
  world->watch = fsdp_watch_start(&config);
  free(hosts);
  free(process);
  free(node);
  free(all);
  free(ranks);
}

void fsdp_world_watch_stop(fsdp_world *world) {
  if (!world->watch) return;
  fsdp_watch_stop(world->watch);
  world->watch = NULL;
  munmap(world->board, (size_t)world->board_bytes);
}
